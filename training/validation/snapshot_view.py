"""A snapshot as validation sees it: chunks of rows of some columns of a table, and SQL over all of its rows; never all rows in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.snapshot.meta import TableFacts, snapshot_meta
from training.data.snapshot.parquet_parts import (
    CHUNK_ROWS,
    KEPT_FOOTERS,
    MERGED_BYTES,
    MERGED_FOLDER,
    ColumnSource,
    MergedParts,
    ParquetParts,
)
from training.runtime.stage_memory import engine_memory_bytes
from training.sources.table_contract import TableContract
from training.sql.expressions import hardened, quoted
from training.store import Manifest

NUMBERS: Final = frozenset({"int8", "int16", "int32", "int64", "float", "double"})
GROUP_BYTES: Final = 64 * 2**20
"""So many columns are read at a time that a chunk of them is about this large."""
VALUE_BYTES: Final = 8


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
