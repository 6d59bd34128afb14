"""A snapshot as DuckDB sees it: one relation per table over its parts, and the numbers that the checks judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb

from training.data.expressions import hardened, literal, quoted
from training.data.tables import TableContract
from training.store import Manifest

PART_COLUMN: Final = "nightshift_part_path"
NUMBERS: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"})
FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})


@dataclass(frozen=True, kw_only=True)
class TableView:
    """One table of a snapshot on local disk. `relation` is its SQL name; `PART_COLUMN` holds the path of each row's part."""

    contract: TableContract
    facts: Mapping[str, Any]
    """The table's entry in the manifest."""
    digests: Mapping[str, str]
    """Part name to digest."""
    paths: Mapping[str, Path]
    """Part name to local file."""
    connection: duckdb.DuckDBPyConnection
    relation: str
    sql_types: Mapping[str, str] = field(default_factory=dict)
    """Column to DuckDB's type, over all parts."""

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

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query; `{table}` stands for the relation. Instants must be converted: the driver cannot return them."""
        return self.connection.execute(query.replace("{table}", self.relation)).fetchall()


def open_snapshot(manifest: Manifest, folder: Path, contracts: list[TableContract]) -> list[TableView]:
    """Open the tables of a snapshot whose files lie in `folder`, in the order of the contracts.

    One thread: equal data give equal sums, in whatever order a machine with more threads would add.
    """
    connection = hardened([folder], threads=1)
    views = []
    for number, contract in enumerate(contracts):
        facts = manifest.meta["tables"][contract.name]
        paths = {part: folder / part for part in facts["parts"]}
        relation = quoted(f"table_{number}")
        files = ", ".join(literal(str(path)) for path in paths.values())
        read = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false, filename = {literal(PART_COLUMN)})"
        connection.execute(f"CREATE VIEW {relation} AS SELECT * FROM {read}")  # noqa: S608 - quoted names, paths as literals
        described = connection.execute(f"DESCRIBE {relation}").fetchall()
        views.append(
            TableView(
                contract=contract,
                facts=facts,
                digests={part: manifest.files[part].digest for part in paths},
                paths=paths,
                connection=connection,
                relation=relation,
                sql_types={row[0]: row[1] for row in described if row[0] != PART_COLUMN},
            )
        )
    return views


def column_statistics(view: TableView) -> dict[str, dict[str, Any]]:
    """Return rows, nulls (NaN is one), infinite, minimum, maximum and for numbers mean and deviation, by sound column; in one pass."""
    columns = view.sound_columns()
    if not columns:
        return {}
    selected: list[str] = []
    names: list[tuple[str, str]] = []
    for column in columns:
        expressions = _expressions(quoted(column), view.sql_types[column])
        selected += expressions.values()
        names += [(column, name) for name in expressions]
    values = view.rows(f"SELECT {', '.join(selected)} FROM {{table}}")[0]  # noqa: S608 - quoted column names
    statistics: dict[str, dict[str, Any]] = {column: {} for column in columns}
    for (column, name), value in zip(names, values, strict=True):
        statistics[column][name] = value
    return statistics


def _expressions(column: str, sql_type: str) -> dict[str, str]:
    is_float = sql_type in FLOATS
    expressions = {
        "rows": "count(*)",
        "nulls": f"count(*) FILTER ({column} IS NULL{f' OR isnan({column})' if is_float else ''})",
        "infinite": f"count(*) FILTER (isinf({column}))" if is_float else "0",
        "minimum": f"CAST(min({column}) AS VARCHAR)",
        "maximum": f"CAST(max({column}) AS VARCHAR)",
    }
    if sql_type in NUMBERS:
        number = f"CASE WHEN isfinite({column}) THEN {column} END" if is_float else column
        expressions |= {"minimum": f"min({number})", "maximum": f"max({number})"}
        expressions |= {"mean": f"avg(CAST({number} AS DOUBLE))", "deviation": f"stddev_pop(CAST({number} AS DOUBLE))"}
    return expressions
