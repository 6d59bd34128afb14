"""Exact quantiles of more values than fit the memory: sorted runs of values on local disk, in which ranks are looked up by bisection.

A float64 is taken as an integer of 64 bits that is ordered as the values are. At most 64 halvings of the range of these integers, with
the number of values up to each middle, give the value of a rank to the last bit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

QUANTILE_BYTES: Final = 64 * 2**20
"""Of values in memory; as many are one run on disk."""
SIGN: Final = np.uint64(1 << 63)


class Quantiles:
    """Values in, quantiles out; equal to `numpy.quantile` (linear) of all values in one array."""

    def __init__(self, folder: Path | None, memory_bytes: int | None = None) -> None:
        """Begin without values.

        Args:
            folder: takes the values that are too many for the memory; None: they stay there.
            memory_bytes: of values in memory; None: `QUANTILE_BYTES`.
        """
        self._folder = folder
        self._memory_bytes = QUANTILE_BYTES if memory_bytes is None else memory_bytes
        self._in_memory: list[NDArray[np.float64]] = []
        self._file: Any = None
        self._run_lengths: list[int] = []
        """Of the runs in the file, in its order."""
        self.count = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Take values, all finite, [n]."""
        if not len(values):
            return
        # -0.0 becomes 0.0: equal values have one form, whichever of them has the rank.
        self._in_memory.append(values + 0.0)
        self.count += len(values)
        if self._folder is not None and sum(map(len, self._in_memory)) * values.itemsize > self._memory_bytes:
            self._write_run()

    def at(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the quantiles, [shares]; the values are gone afterwards. At least one value must have been added."""
        if self._file is None:
            values, self._in_memory = np.concatenate(self._in_memory), []
            return np.asarray(np.quantile(values, shares))
        self._write_run()
        places = (self.count - 1) * shares
        lower = np.floor(places).astype(np.int64)
        ranks = np.unique(np.concatenate([lower, np.minimum(lower + 1, self.count - 1)]))
        with self._file:
            found = dict(zip(ranks.tolist(), self._of_ranks(ranks).tolist(), strict=True))
        self._file = None
        # Between two values numpy's own interpolation, so that the bits are the same.
        return np.array(
            [
                np.quantile([found[rank], found[min(rank + 1, self.count - 1)]], place - rank)
                for place, rank in zip(places.tolist(), lower.tolist(), strict=True)
            ]
        )

    def _write_run(self) -> None:
        if not self._in_memory:
            return
        run, self._in_memory = np.concatenate(self._in_memory), []
        run.sort()
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)
        self._file.write(run.data)
        self._run_lengths.append(len(run))

    def _of_ranks(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of these ranks, from 0."""
        self._file.flush()
        runs = np.split(np.memmap(self._file, dtype=np.float64, mode="r"), np.cumsum(self._run_lengths)[:-1])
        low = np.full(len(ranks), _keys_of(np.array([min(run[0] for run in runs)]))[0])
        high = np.full(len(ranks), _keys_of(np.array([max(run[-1] for run in runs)]))[0])
        while (low < high).any():
            middle = low + (high - low) // np.uint64(2)
            values = _values_of(middle)
            is_reached = sum(np.searchsorted(run, values, side="right") for run in runs) > ranks
            high = np.where(is_reached, middle, high)
            low = np.where(is_reached, low, np.minimum(middle + np.uint64(1), high))
        # The integer of -0.0 is the smaller one.
        return _values_of(low) + 0.0


def _keys_of(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return integers that are ordered as the values are: the bits of negative ones are ordered the other way round."""
    bits = values.view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def _values_of(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the float64 of each key."""
    return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float64)
