"""Which rows of each value of a column have the smallest hashes, for a split in which each value has its share.

Of a row are in memory only arrays that are mapped from files: the number of its value and its hash, gathered value by value, so that the
hash up to which a value's rows are test is found by partial sorting in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import ScratchArrays, gathered_places, slices_of

HALF: Final = Fraction(1, 2)


def value_numbers(column: Iterable[pa.ChunkedArray], num_rows: int, arrays: ScratchArrays) -> tuple[NDArray[np.int32], int]:
    """Return a number for the value of each row, [n], from 0 in the order of appearance, and how many there are; null is a value.

    Args:
        column: texts, integers, booleans or the label, some rows at a time.
    """
    number_of: dict[Any, int] = {}

    def numbers() -> Iterator[NDArray[np.int32]]:
        for rows in column:
            encoded = pc.dictionary_encode(rows.combine_chunks(), null_encoding="encode")
            here = [number_of.setdefault(value, len(number_of)) for value in encoded.dictionary.to_pylist()]
            yield np.array(here, dtype=np.int32)[np.asarray(encoded.indices)]

    return arrays.filled(numbers(), num_rows, np.int32), len(number_of)


class SmallestHashes:
    """Which rows of each stratum have the smallest hashes; of equal hashes the earlier row comes first."""

    def __init__(self, hashes: NDArray[np.uint64], strata: NDArray[np.int32], num_strata: int, arrays: ScratchArrays) -> None:
        """Gather the hashes by stratum.

        Args:
            hashes: [n].
            strata: [n] numbers from 0.
            num_strata: how many there are.
            arrays: makes the arrays.
        """
        self._hashes, self._strata = hashes, strata
        self.sizes = np.zeros(num_strata, dtype=np.int64)
        """[strata] rows."""
        for part in slices_of(len(strata)):
            self.sizes += np.bincount(strata[part], minlength=num_strata)
        self._ends = np.cumsum(self.sizes)
        self._gathered = arrays.empty(len(strata), np.uint64)
        places = gathered_places((strata[part] for part in slices_of(len(strata))), self.sizes)
        for part, gathered in zip(slices_of(len(strata)), places, strict=True):
            self._gathered[gathered] = hashes[part]

    def chosen(self, counts: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
        """Yield whether each row is one of those with the smallest hashes of its stratum, some rows at a time.

        Args:
            counts: [strata] how many are, at most the stratum's rows.
        """
        limits, num_equal = self._limits(counts)
        for part in slices_of(len(self._strata)):
            codes, hashes = self._strata[part], self._hashes[part]
            found = (hashes < limits[codes]) & (counts[codes] > 0)
            # One row by one: hashes of 64 bits are equal only where keys are.
            for row in np.flatnonzero((hashes == limits[codes]) & (num_equal[codes] > 0)).tolist():
                code = codes[row]
                found[row] = num_equal[code] > 0
                num_equal[code] -= 1
            yield found

    def _limits(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the largest chosen hash of each stratum, and how many rows with that hash are chosen; 0 where none are."""
        limits, num_equal = np.zeros(len(counts), dtype=np.uint64), np.zeros(len(counts), dtype=np.int64)
        # A plain array over the same memory: taking a slice of a mapped one costs more than sorting a small stratum.
        gathered = self._gathered.view(np.ndarray)
        for code in np.flatnonzero(counts).tolist():
            rows, count = gathered[self._ends[code] - self.sizes[code] : self._ends[code]], int(counts[code])
            rows.partition(count - 1)
            limits[code] = rows[count - 1]
            num_equal[code] = sum(int((rows[:count][part] == limits[code]).sum()) for part in slices_of(count))
        return limits, num_equal


def shares_of(sizes: NDArray[np.int64], share: Fraction) -> NDArray[np.int64]:
    """Return `sizes * share`, [strata], each rounded to the nearest integer, halves up."""
    different, places = np.unique(sizes, return_inverse=True)
    return np.array([math.floor(size * share + HALF) for size in different.tolist()], dtype=np.int64)[places]
