"""A snapshot as validation sees it: the columns of each table, read from its parts one at a time, and SQL over columns in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.snapshot_meta import TableFacts, snapshot_meta
from training.sources.table_contract import TableContract
from training.sources.tables import ARROW_TYPES
from training.sql.expressions import hardened
from training.store import Manifest

PART_COLUMN: Final = "nightshift_part"
RELATION: Final = "columns_in_memory"
NUMBERS: Final = frozenset({"int8", "int16", "int32", "int64", "float", "double"})
GROUP_BYTES: Final = 64 * 2**20
"""Columns are read in groups of about this size, or one by one where a column is larger."""


class ColumnSource(Protocol):
    """Where the columns of a table come from."""

    def read(self, column: str, kind: str) -> pa.ChunkedArray:
        """Return a column over all parts, in their order, as the type that the YAML calls `kind`."""
        ...

    def part_rows(self) -> list[int]:
        """Return the number of rows of each part."""
        ...

    def size_bytes(self, column: str) -> int:
        """Return about how much memory a column takes."""
        ...


class ParquetParts:
    """The Parquet files of a table."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)

    @cached_property
    def _metadata(self) -> list[pq.FileMetaData]:
        return [pq.read_metadata(path) for path in self._paths]

    def read(self, column: str, kind: str) -> pa.ChunkedArray:
        parts = (
            pq.ParquetFile(path, metadata=metadata).read(columns=[column]).column(column)
            for path, metadata in zip(self._paths, self._metadata, strict=True)
        )
        wanted = ARROW_TYPES[kind]
        return pa.chunked_array([chunk for part in parts for chunk in part.cast(wanted).chunks], wanted)

    def part_rows(self) -> list[int]:
        return [metadata.num_rows for metadata in self._metadata]

    def size_bytes(self, column: str) -> int:
        stored = 0
        for metadata in self._metadata:
            place = metadata.schema.names.index(column)
            groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
            stored += sum(group.column(place).total_uncompressed_size for group in groups)
        # Great Expectations judges 64-bit numbers, independent of the width in the file.
        return max(stored, 8 * sum(self.part_rows()))


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
    _held: dict[str, pa.ChunkedArray] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.contract.name

    def part_schema(self, part: str) -> Mapping[str, str]:
        """Return column name to type name of one part."""
        schema: Mapping[str, str] = self.facts["parts"][part].get("schema", self.facts["schema"])
        return schema

    def sound_columns(self) -> list[str]:
        """Return the declared columns that every part has, with the declared type."""
        schemas = [self.part_schema(part) for part in self.facts["parts"]]
        return [name for name, kind in self.contract.types.items() if all(schema.get(name) == kind for schema in schemas)]

    def hold(self, columns: Iterable[str]) -> None:
        """Read columns, and keep them in memory until `release`."""
        for column in columns:
            self._held[column] = self.column(column)

    def release(self) -> None:
        """Free the columns that are held."""
        self._held.clear()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a sound column; one that is not held is read from the files."""
        return self._held[name] if name in self._held else self.source.read(name, self.contract.types[name])

    def groups(self) -> Iterator[list[str]]:
        """Yield the names of all sound columns, as many at a time as `GROUP_BYTES` holds."""
        group: list[str] = []
        size_bytes = 0
        for name in self.sound_columns():
            column_bytes = self.source.size_bytes(name)
            if group and size_bytes + column_bytes > GROUP_BYTES:
                yield group
                group, size_bytes = [], 0
            group.append(name)
            size_bytes += column_bytes
        if group:
            yield group

    def rows(self, query: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Run a query over columns, which should be held; `{table}` stands for them, and `PART_COLUMN` is the number of the part.

        Instants must be converted: the driver cannot return them.
        """
        part_rows = self.source.part_rows()
        part = np.repeat(np.arange(len(part_rows), dtype=np.int32), part_rows)
        return self.query(query, {**{name: self.column(name) for name in columns}, PART_COLUMN: arrow_of(part, pa.int32())})

    def query(self, query: str, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> list[tuple[Any, ...]]:
        """Run a query over arrays of one length; `{table}` stands for them."""
        self.connection.register(RELATION, pa.table(dict(columns)))
        try:
            return self.connection.execute(query.replace("{table}", RELATION)).fetchall()
        finally:
            self.connection.unregister(RELATION)


def numpy_of(values: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return numbers without nulls as NumPy's; `to_numpy` would import pandas."""
    return np.concatenate([np.from_dlpack(chunk) for chunk in values.chunks if len(chunk)] or [np.empty(0)])


def valid_of(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return for each row whether its value is not null."""
    return numpy_of(values.is_valid().cast(pa.uint8())).astype(np.bool_)


def arrow_of(values: npt.NDArray[Any], arrow_type: pa.DataType) -> pa.Array:
    """Return numbers as Arrow's, without a copy; `pa.array` would import pandas."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def open_snapshot(manifest: Manifest, folder: Path, contracts: list[TableContract]) -> list[TableView]:
    """Open the tables of a snapshot whose files lie in `folder`, in the order of the contracts.

    One thread: equal data give equal sums on every machine.
    """
    connection = hardened([folder], threads=1)
    views = []
    for contract in contracts:
        facts = snapshot_meta(manifest)["tables"][contract.name]
        digests = {part: manifest.files[part].digest for part in facts["parts"]}
        source = ParquetParts(folder / part for part in facts["parts"])
        views.append(TableView(contract=contract, facts=facts, digests=digests, source=source, connection=connection))
    return views
