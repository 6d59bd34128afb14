"""Groups as dense numbers, [n] int32, from 0 in the order of first appearance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import ColumnBatches, ScratchArrays, slices_of
from training.runtime.stage_memory import engine_memory_bytes
from training.sql.expressions import hardened

IN_MEMORY_ROWS: Final = 1 << 20
"""DuckDB numbers the values of more rows: it spills what does not fit its limit."""
RESULT_ROWS: Final = 65_536

Groups = NDArray[np.int32]


def group_numbers(values: NDArray[np.generic]) -> Groups:
    """Return [n]: a dense number per different value of an array."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]


def column_numbers(frame: ColumnBatches, column: str, arrays: ScratchArrays) -> Groups:
    """Return [n]: a dense number per different value of a column without nulls."""
    if frame.num_rows <= IN_MEMORY_ROWS:
        return group_numbers(pa.chunked_array([chunk for rows in frame.column_batches(column) for chunk in rows.chunks]).to_numpy())
    return arrays.filled(_numbered(frame, column, arrays), frame.num_rows, np.int32)


def kept_numbers(groups: Groups, kept: NDArray[np.bool_], arrays: ScratchArrays) -> Groups:
    """Return dense numbers of the rows for which `kept`, [n], is true."""
    number_of = np.full(int(groups.max(initial=-1)) + 1, -1, dtype=np.int32)

    def numbers() -> Iterator[Groups]:
        count = 0
        for part in slices_of(len(groups)):
            here = groups[part][kept[part]]
            values, first = np.unique(here, return_index=True)
            new = values[np.argsort(first, kind="stable")]
            new = new[number_of[new] < 0]
            number_of[new] = np.arange(count, count + len(new), dtype=np.int32)
            count += len(new)
            yield number_of[here]

    return arrays.filled(numbers(), int(np.count_nonzero(kept)), np.int32)


def _numbered(frame: ColumnBatches, column: str, arrays: ScratchArrays) -> Iterator[Groups]:
    with hardened([arrays.folder], memory_limit=f"{engine_memory_bytes()}B") as connection:

        def read_again() -> None:
            # A reader is read once.
            connection.register("numbered_rows", _numbered_rows(frame.column_batches(column)))

        read_again()
        connection.execute("CREATE TEMP TABLE firsts AS SELECT value, min(number) AS first FROM numbered_rows GROUP BY value")
        connection.execute("CREATE TEMP TABLE dense AS SELECT value, row_number() OVER (ORDER BY first) - 1 AS dense FROM firsts")
        connection.execute("DROP TABLE firsts")
        read_again()
        query = "SELECT dense FROM numbered_rows r JOIN dense d ON r.value IS NOT DISTINCT FROM d.value ORDER BY r.number"
        for batch in connection.sql(query).to_arrow_reader(RESULT_ROWS):
            yield batch.column(0).to_numpy()


def _numbered_rows(batches: Iterable[pa.ChunkedArray]) -> pa.RecordBatchReader:
    tables = _with_numbers(batches)
    first = next(tables)

    def found() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        for table in tables:
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, found())


def _with_numbers(batches: Iterable[pa.ChunkedArray]) -> Iterator[pa.Table]:
    start = 0
    for values in batches:
        yield pa.table({"number": np.arange(start, start + len(values)), "value": values})
        start += len(values)
