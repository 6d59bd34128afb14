"""That no key stands in two rows, shown by the order of the rows alone, in one pass that holds a chunk of them.

Tables are mostly written in the order of their key's first column: an identifier that rises, or the time. Then equal keys are neighbours,
and each run of equal first values can be looked at by itself. Where the rows have no such order, the pass ends at the first row that
shows it, and the caller counts the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.validation.snapshot_view import TableView, numpy_of

ORDERED: Final = frozenset({"int8", "int16", "int32", "int64", "date", "timestamp"})
"""Types that are integers: equal values have equal bits."""
MAX_RUN: Final = 2**20
"""Rows with one value of the first column that are held; the keys of a longer run are counted."""

Columns = Sequence[npt.NDArray[Any]]


def has_unique_order(view: TableView, key: Sequence[str]) -> bool:
    """Return whether the order of the rows shows that no two have the same key, and that each has one; False where it does not show it."""
    if not all(view.contract.types[name] in ORDERED for name in key):
        return False
    return has_no_repeats(_keys(view, key))


def has_no_repeats(chunks: Iterable[Columns | None]) -> bool:
    """Return whether no two rows are equal; False where the first column falls anywhere, or a run is too long: then it is not known.

    Args:
        chunks: the rows in their order, a column of integers each, [n]; None: a value is missing, which ends the pass.
    """
    held: Columns = ()
    for chunk in chunks:
        if chunk is None:
            return False
        columns = [np.concatenate(both) for both in zip(held, chunk, strict=True)] if len(held) else chunk
        first = columns[0]
        if not len(first):
            continue
        # The last run may go on in the next chunk.
        last = int(np.searchsorted(first, first[-1], side="left"))
        if (first[1:] < first[:-1]).any() or len(first) - last > MAX_RUN:
            return False
        if not _all_different([column[:last] for column in columns]):
            return False
        held = [column[last:] for column in columns]
    return _all_different(held)


def _keys(view: TableView, key: Sequence[str]) -> Iterator[Columns | None]:
    for chunk in view.chunks(key):
        columns = [chunk.column(name) for name in key]
        if any(column.null_count for column in columns):
            yield None
            return
        yield [numpy_of(_integers(column)) for column in columns]


def _integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _all_different(columns: Columns) -> bool:
    """Return whether no two of [n] rows are equal; the first column does not fall."""
    if not columns or len(columns[0]) < 2:
        return True
    begins = columns[0][1:] != columns[0][:-1]
    if begins.all():
        return True
    # One integer for each row, where it has room for all columns.
    codes, num_codes = np.concatenate([[0], np.cumsum(begins)]), int(begins.sum()) + 1
    for column in columns[1:]:
        least, most = int(column.min()), int(column.max())
        num_values = most - least + 1
        if num_codes * num_values >= 2**63:
            return False
        codes = codes * num_values + (column.astype(np.int64, copy=False) - least)
        num_codes *= num_values
    codes.sort()
    return bool((codes[1:] != codes[:-1]).all())
