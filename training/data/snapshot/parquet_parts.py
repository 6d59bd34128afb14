"""The Parquet files of a table, read as one: chunks of rows, SQL over all rows, and many small files made one.

DuckDB keeps some KB of each file of a query, and opening a small one takes longer than reading it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.sql.arrow_types import ARROW_TYPES
from training.sql.expressions import literal

FILE_COLUMN: Final = "nightshift_file"
ROW_COLUMN: Final = "file_row_number"
CHUNK_ROWS: Final = 2**16
"""Rows that are in memory at a time: enough for the processor's arithmetic, few enough for its caches."""
KEPT_FOOTERS: Final = 1024
"""Of more files, a footer (about 20 KB in memory) is read again each time: it is small beside the file, or the file is tiny."""
MERGED_BYTES: Final = 256 * 2**10
"""Of more files than `KEPT_FOOTERS`, their mean size up to which validation makes one file of them: DuckDB keeps some KB of each file
that a query reads, and opening one takes longer than reading it."""
MERGED_FOLDER: Final = "_merged"
"""No table's name begins with an underscore."""
MAX_WAITING: Final = 1024
"""Pieces of a chunk that are in memory as they were read: one of a single row takes some KB."""


class ColumnSource(Protocol):
    """Where the columns of a table come from."""

    def chunks(self, types: Mapping[str, str]) -> Iterator[pa.Table]:
        """Yield all rows of some columns, in the order of the parts, `CHUNK_ROWS` at a time, fewer only in the last chunk.

        Args:
            types: column to the type that the YAML names.
        """
        ...

    def relation(self) -> str:
        """Return SQL of all parts' rows; `FILE_COLUMN` is the path of a row's part, `ROW_COLUMN` its number there."""
        ...

    def paths(self) -> list[Path]:
        """Return the file of each part."""
        ...


class ParquetParts:
    """The Parquet files of a table."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)

    @cached_property
    def _metadata(self) -> Sequence[pq.FileMetaData | None]:
        """Footer of each file, which several passes need; None: it is read with the file."""
        return [pq.read_metadata(path) for path in self._paths] if len(self._paths) <= KEPT_FOOTERS else [None] * len(self._paths)

    def chunks(self, types: Mapping[str, str]) -> Iterator[pa.Table]:
        schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in types.items()])
        waiting: list[pa.Table] = []
        num_waiting = 0
        for batch in self._batches(list(types)):
            waiting.append(pa.Table.from_batches([batch]).cast(schema))
            num_waiting += batch.num_rows
            if len(waiting) >= MAX_WAITING:
                waiting = [pa.concat_tables(waiting).combine_chunks()]
            while num_waiting >= CHUNK_ROWS:
                rows = pa.concat_tables(waiting)
                yield rows.slice(0, CHUNK_ROWS)
                waiting, num_waiting = [rows.slice(CHUNK_ROWS)], num_waiting - CHUNK_ROWS
        if num_waiting:
            yield pa.concat_tables(waiting)

    def relation(self) -> str:
        files = ", ".join(literal(str(path)) for path in self._paths)
        return f"read_parquet([{files}], hive_partitioning = false, filename = {literal(FILE_COLUMN)}, file_row_number = true)"

    def paths(self) -> list[Path]:
        return self._paths

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for path, metadata in zip(self._paths, self._metadata, strict=True):
            # With `pre_buffer`, Arrow's default, every row group that was read stays in memory.
            with pq.ParquetFile(path, metadata=metadata, pre_buffer=False) as file:
                for batch in file.iter_batches(CHUNK_ROWS, columns=columns, use_threads=False):
                    yield batch.select(columns)


class MergedParts:
    """The sound columns of a table of many small files, in one file, written when they are first read."""

    def __init__(self, parts: ParquetParts, rows: Sequence[int], types: Mapping[str, str], path: Path) -> None:
        """Write nothing yet.

        Args:
            parts: the table's files.
            rows: of each of them.
            types: the columns that all of them have, to the type that the YAML names.
            path: of the file, on local disk.
        """
        self._parts, self._rows, self._types, self._path = parts, rows, types, path

    def chunks(self, types: Mapping[str, str]) -> Iterator[pa.Table]:
        return ParquetParts([self._merged]).chunks(types)

    def relation(self) -> str:
        return f"read_parquet({literal(str(self._merged))}, hive_partitioning = false)"

    def paths(self) -> list[Path]:
        return self._parts.paths()

    @cached_property
    def _merged(self) -> Path:
        self._path.parent.mkdir(exist_ok=True)
        own = pa.schema([(FILE_COLUMN, pa.string()), (ROW_COLUMN, pa.int64())])
        schema = pa.schema([*((name, ARROW_TYPES[kind]) for name, kind in self._types.items()), *own])
        names = pa.array([str(path) for path in self._parts.paths()], pa.string())
        ends = np.cumsum(self._rows)
        starts, first = ends - self._rows, 0
        # Statistics leave NaN out.
        with pq.ParquetWriter(self._path, schema, compression="lz4", use_dictionary=[FILE_COLUMN], write_statistics=False) as writer:
            for rows in self._parts.chunks(self._types):
                numbers = np.arange(first, first + rows.num_rows)
                part = np.searchsorted(ends, numbers, side="right")
                writer.write_table(
                    rows.append_column(own.field(0), names.take(part)).append_column(own.field(1), pa.array(numbers - starts[part]))
                )
                first += rows.num_rows
        return self._path


def merged(paths: Sequence[Path], types: Mapping[str, str], folder: Path, table: str) -> list[Path]:
    """Return the paths, or that of one file with their rows in their order, where they are many and small.

    Args:
        paths: of a table's Parquet files.
        types: of the columns that all of them have, by the YAML's names.
        folder: the new file is below it.
        table: names the new file.
    """
    if len(paths) <= KEPT_FOOTERS or sum(path.stat().st_size for path in paths) > len(paths) * MERGED_BYTES:
        return list(paths)
    path = folder / MERGED_FOLDER / f"{table}.parquet"
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in types.items()])
    with pq.ParquetWriter(path, schema, compression="lz4", write_statistics=False) as writer:
        for rows in ParquetParts(paths).chunks(types):
            writer.write_table(rows)
    return [path]
