"""Arrays with a value per row: in memory, or above a size mapped from a file on local disk, which the system takes out of memory.

Functions that take such arrays read them a slice at a time (`slices_of`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import pyarrow as pa

SLICE_ROWS: Final = 1 << 20
MEMORY_BYTES: Final = 16 * 2**20
"""A larger array is in a file."""


class ColumnBatches(Protocol):
    """Rows of which a column can be read, some rows at a time: an engine's frame, or a dataset."""

    @property
    def num_rows(self) -> int: ...

    def column_batches(self, name: str) -> Iterator[pa.ChunkedArray]: ...


class ScratchArrays:
    """Makes them; the files are gone with the process."""

    def __init__(self, folder: Path) -> None:
        """Begin without arrays.

        Args:
            folder: on local disk.
        """
        self.folder = folder

    def empty(self, num_rows: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return [num_rows], not filled.

        Raises:
            OSError: the disk is full.
        """
        kind = np.dtype(dtype)
        if num_rows * kind.itemsize <= MEMORY_BYTES:
            return np.empty(num_rows, dtype=kind)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            # Without it, a full disk would end the process by a signal when a page is written, without a word. macOS lacks it.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_rows * kind.itemsize)
            return np.memmap(file, dtype=kind, mode="w+", shape=(num_rows,))

    def column(self, frame: ColumnBatches, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """Return a column without nulls, [n] as `dtype`; times in UTC."""
        return self.filled(map(_numpy, frame.column_batches(name)), frame.num_rows, dtype)

    def filled(self, parts: Iterable[NDArray[Any]], num_rows: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return [num_rows] as `dtype` of parts, which together have as many values."""
        found = self.empty(num_rows, dtype)
        first = 0
        for values in parts:
            found[first : first + len(values)] = values
            first += len(values)
        return found

    def selected(self, values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the values of the rows for which `mask`, [n], is true."""
        parts = (values[part][mask[part]] for part in slices_of(len(mask)))
        return self.filled(parts, int(np.count_nonzero(mask)), values.dtype)

    def numbers_of(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the numbers of the rows for which `mask`, [n], is true, ascending."""
        found: NDArray[np.int64] = self.empty(int(np.count_nonzero(mask)), np.int64)
        done = 0
        for part in slices_of(len(mask)):
            numbers = np.flatnonzero(mask[part])
            numbers += part.start
            found[done : done + len(numbers)] = numbers
            done += len(numbers)
        return found


def _numpy(values: pa.ChunkedArray) -> NDArray[Any]:
    found: NDArray[Any] = values.to_numpy()
    return found.astype("datetime64[us]", copy=False) if found.dtype.kind == "M" else found


def gathered_places(codes: Iterable[NDArray[np.int32]], sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield where each row stands when rows are gathered by their code, in the order of the codes, those of one code in their own order.

    Args:
        codes: [n] from 0, some rows at a time.
        sizes: [codes] rows.
    """
    free = np.cumsum(sizes) - sizes
    for here in codes:
        order = np.argsort(here, kind="stable")
        in_order = here[order]
        firsts = np.flatnonzero(np.diff(in_order, prepend=-1))
        counts = np.diff(firsts, append=len(in_order))
        places = np.empty(len(here), dtype=np.int64)
        places[order] = np.repeat(free[in_order[firsts]] - firsts, counts) + np.arange(len(here))
        free[in_order[firsts]] += counts
        yield places


def slices_of(num_rows: int) -> Iterator[slice]:
    """Yield the slices that together are all rows, in their order."""
    for first in range(0, num_rows, SLICE_ROWS):
        yield slice(first, min(first + SLICE_ROWS, num_rows))
