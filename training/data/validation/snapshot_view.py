"""A snapshot as validation sees it: chunks of rows of some columns of a table, and SQL over all of its rows; never all rows in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.snapshot_meta import TableFacts, snapshot_meta
from training.runtime.stage_memory import engine_memory_bytes
from training.sources.table_contract import TableContract
from training.sources.tables import ARROW_TYPES
from training.sql.expressions import hardened, literal, quoted
from training.store import Manifest

FILE_COLUMN: Final = "nightshift_file"
ROW_COLUMN: Final = "file_row_number"
NUMBERS: Final = frozenset({"int8", "int16", "int32", "int64", "float", "double"})
CHUNK_ROWS: Final = 2**16
"""Rows that are in memory at a time: enough for the processor's arithmetic, few enough for its caches."""
GROUP_BYTES: Final = 64 * 2**20
"""So many columns are read at a time that a chunk of them is about this large."""
VALUE_BYTES: Final = 8
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


@dataclass(frozen=True, kw_only=True)
class TableView:
    """One table of a snapshot on local disk."""

    contract: TableContract
    facts: TableFacts
    """The table's entry in the manifest."""
    digests: Mapping[str, str]
    """Part name to digest."""
    source: ColumnSource
    connection: duckdb.DuckDBPyConnection

    @property
    def name(self) -> str:
        return self.contract.name

    def part_schema(self, part: str) -> Mapping[str, str]:
        """Return column name to type name of one part."""
        schema: Mapping[str, str] = self.facts["parts"][part].get("schema", self.facts["schema"])
        return schema

    def sound_columns(self) -> list[str]:
        """Return the declared columns that every part has, with the declared type."""
        return _sound_columns(self.contract, self.facts)

    @property
    def sound_event_time(self) -> str | None:
        """The column of the event time, None where the table has none that can be read."""
        event_time = self.contract.event_time
        return event_time if event_time in self.sound_columns() else None

    def chunks(self, columns: Iterable[str]) -> Iterator[pa.Table]:
        """Yield all rows of some sound columns, see `ColumnSource.chunks`."""
        return self.source.chunks({name: self.contract.types[name] for name in columns})

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query over all parts; `{table}` stands for them, see `ColumnSource.relation`.

        Instants must be converted: the driver cannot return them.
        """
        return self.connection.execute(self.sql(query)).fetchall()

    def sql(self, query: str) -> str:
        """Return a query with `{table}` replaced."""
        return query.replace("{table}", self.source.relation())


def groups_of(columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the columns in groups that are read at a time."""
    size = max(1, GROUP_BYTES // (CHUNK_ROWS * VALUE_BYTES))
    for start in range(0, len(columns), size):
        yield list(columns[start : start + size])


def rows_bytes(view: TableView, columns: Collection[str]) -> int:
    """Return how much memory all rows of some columns take: 8 bytes for a value, and the bytes of texts."""
    texts = [name for name in columns if view.contract.types[name] == "string"]
    lengths = [f"coalesce(sum(strlen({quoted(name)})), 0)" for name in texts]
    text_bytes = sum(int(length) for length in view.rows(f"SELECT {', '.join(lengths)} FROM {{table}}")[0]) if texts else 0  # noqa: S608
    return VALUE_BYTES * view.facts["rows"] * len(columns) + text_bytes


def numpy_of(values: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return numbers without nulls as NumPy's; `to_numpy` would import pandas."""
    return np.concatenate([np.from_dlpack(chunk) for chunk in values.chunks if len(chunk)] or [np.empty(0)])


def valid_of(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return for each row whether its value is not null."""
    return numpy_of(values.is_valid().cast(pa.uint8())).astype(np.bool_)


def open_snapshot(manifest: Manifest, folder: Path, contracts: list[TableContract]) -> list[TableView]:
    """Open the tables of a snapshot whose files lie in `folder`, in the order of the contracts.

    One thread: rows come in the order of the files.
    """
    connection = hardened([folder], threads=1, memory_limit=f"{engine_memory_bytes()}B", trusts_statistics=False)
    views = []
    for contract in contracts:
        facts = snapshot_meta(manifest)["tables"][contract.name]
        digests = {part: manifest.files[part].digest for part in facts["parts"]}
        source = _source(contract, facts, folder, sum(manifest.files[part].size_bytes for part in digests))
        views.append(TableView(contract=contract, facts=facts, digests=digests, source=source, connection=connection))
    return views


def _source(contract: TableContract, facts: TableFacts, folder: Path, size_bytes: int) -> ColumnSource:
    parts, count = ParquetParts(folder / part for part in facts["parts"]), len(facts["parts"])
    if count <= KEPT_FOOTERS or size_bytes > count * MERGED_BYTES:
        return parts
    types = {name: contract.types[name] for name in _sound_columns(contract, facts)}
    rows = [part["rows"] for part in facts["parts"].values()]
    return MergedParts(parts, rows, types, folder / MERGED_FOLDER / f"{contract.name}.parquet")


def _sound_columns(contract: TableContract, facts: TableFacts) -> list[str]:
    """Return the declared columns that every part has, with the declared type."""
    schemas = [part.get("schema", facts["schema"]) for part in facts["parts"].values()]
    return [name for name, kind in contract.types.items() if all(schema.get(name) == kind for schema in schemas)]
