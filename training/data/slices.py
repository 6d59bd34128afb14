"""Slices of rows, so that what is computed of a column at a time takes the memory of some rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SLICE_ROWS: Final = 1 << 20


def slices_of(num_rows: int) -> Iterator[slice]:
    """Yield the slices that together are all rows, in their order."""
    for first in range(0, num_rows, SLICE_ROWS):
        yield slice(first, min(first + SLICE_ROWS, num_rows))
