"""Snapshots with every kind of damage that validation looks for, in columns of every type, and a suite with every kind of expectation."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.contracts import sha256_hex
from training.sources.arrow_schema import schema_of
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.store import Manifest
from training.store.manifests import FileEntry
from training.validation.all_checks import CheckRules
from training.validation.snapshot_view import TableView, open_snapshot

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
NUM_DAYS: Final = 10
ROWS_OF_A_DAY: Final = 300
DAY_US: Final = 86_400_000_000
WORDS: Final = np.array([f"w{number:02d}" for number in range(40)])
Columns = dict[str, pa.Array]
Damage = Callable[[int, Columns], Columns]


def rules() -> CheckRules:
    return CheckRules(
        as_of=START + timedelta(days=NUM_DAYS, hours=2),
        start=START,
        end=START + timedelta(days=NUM_DAYS),
        zone=ZoneInfo("Europe/Berlin"),
        label="label",
        volume_change=0.2,
        freshness=timedelta(hours=6),
    )


def sound_day(day: int) -> Columns:
    rng = np.random.default_rng(day)
    rows = ROWS_OF_A_DAY
    at = round(START.timestamp() * 1e6) + day * DAY_US + np.sort(rng.integers(0, DAY_US, rows))
    optional = rng.random(rows) < 0.1
    return {
        "id": pa.array(day * rows + np.arange(rows), pa.int64()),
        "part": pa.array(rng.integers(0, 3, rows), pa.int8()),
        "at": pa.array(at, pa.timestamp("us", tz="UTC")),
        "label": pa.array(rng.integers(0, 2, rows), pa.int8()),
        "x": pa.array(rng.normal(day / 3, 2, rows)),
        "y": pa.array(rng.integers(0, 30, rows) / 10, pa.float32()),
        "big": pa.array(2**60 + 2**40 * rng.integers(0, 1000, rows) + 1, pa.int64()),
        "count": pa.array(rng.integers(-100, 100, rows), pa.int32(), mask=optional),
        "short": pa.array(rng.integers(0, 50, rows), pa.int16()),
        "same": pa.array(np.full(rows, 3), pa.int32()),
        "word": pa.array(WORDS[np.minimum(rng.geometric(0.15, rows) - 1, 39)], mask=optional),
        "flag": pa.array(rng.random(rows) < 0.3, mask=rng.random(rows) < 0.1),
        "born": pa.array(rng.integers(0, 20_000, rows).astype("datetime64[D]"), pa.date32(), mask=optional),
        "seen": pa.array(at + rng.integers(0, 10**9, rows), pa.timestamp("us", tz="UTC")),
    }


NULLABLE: Final = frozenset({"count", "word", "flag", "born"})
TYPES: Final = schema_of(pa.table(sound_day(0)).schema, source="orders")


def sound(day: int, columns: Columns) -> Columns:
    del day
    return columns


def damaged_values(day: int, columns: Columns) -> Columns:
    """Nulls, NaN and infinite numbers, repeated keys, rows of another day, values out of range, a newest day unlike the others."""
    rows = len(columns["id"])
    rng = np.random.default_rng(100 + day)

    def changed(name: str, places: slice, value: Any) -> None:
        values = columns[name].to_pylist()
        values[places] = [value] * len(values[places])
        columns[name] = pa.array(values, columns[name].type)

    changed("x", slice(0, 3), float("nan"))
    changed("x", slice(3, 5), float("inf"))
    changed("x", slice(5, 6), float("-inf"))
    changed("x", slice(6, 10), None)
    changed("y", slice(0, 5), 7.25)
    changed("short", slice(0, 2), 999)
    changed("word", slice(20, 25), "Ünknown ' word")
    if day == NUM_DAYS - 1:
        columns["x"] = pa.array([None if value is None else value + 4 for value in columns["x"].to_pylist()], pa.float64())
        columns["flag"] = pa.array(np.ones(rows, bool))
        changed("at", slice(0, 4), START)
        changed("at", slice(4, 6), None)
        changed("label", slice(0, 7), None)
    if day == 2:
        columns["id"] = pa.array(np.repeat(columns["id"].to_numpy()[::2], 2), pa.int64())
        columns["y"] = pa.array(np.full(rows, np.nan), pa.float32())
    if day == 4:
        columns = {name: values.slice(0, rows // 2) for name, values in columns.items()}
        columns["big"] = pa.array(rng.integers(-(2**62), 2**62, rows // 2), pa.int64())
    return columns


def all_null(day: int, columns: Columns) -> Columns:
    """Columns without a value: of all days, or of the newest."""
    rows = len(columns["id"])
    for name in ("count", "word", "flag", "born", "x"):
        if name != "x" or day == NUM_DAYS - 1:
            columns[name] = pa.nulls(rows, columns[name].type)
    return columns


def damaged_schema(day: int, columns: Columns) -> Columns:
    """A column that is missing, one of another type, one that nobody declared, and texts as Parquet's dictionaries."""
    if day == 3:
        del columns["short"]
        columns["x"] = columns["x"].cast(pa.float32())
        columns["extra"] = columns["id"]
    if day == 5:
        columns["word"] = columns["word"].dictionary_encode()
    return columns


def encoded(day: int, columns: Columns) -> Columns:
    """Sound values in other encodings of their types."""
    if day % 2:
        columns["word"] = columns["word"].dictionary_encode()
    return columns


def empty(day: int, columns: Columns) -> Columns:
    """No rows at all."""
    del day
    return {name: values.slice(0, 0) for name, values in columns.items()}


def empty_day(day: int, columns: Columns) -> Columns:
    """One day without rows, and one that is the copy of another."""
    if day == 3:
        return empty(day, columns)
    return sound_day(6) if day == 7 else columns


def few_rows(day: int, columns: Columns) -> Columns:
    """One row a day."""
    del day
    return {name: values.slice(0, 1) for name, values in columns.items()}


DAMAGES: Final[dict[str, Damage]] = {
    damage.__name__: damage for damage in (sound, encoded, damaged_values, all_null, damaged_schema, empty, empty_day, few_rows)
}


def _expectation(kind: str, severity: str = "critical", **arguments: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": arguments, "severity": severity}


SUITE: Final[dict[str, Any]] = {
    "name": "damaged",
    "expectations": [
        _expectation("expect_table_columns_to_match_set", column_set=sorted(TYPES), exact_match=True),
        _expectation("expect_table_columns_to_match_ordered_list", column_list=list(TYPES)),
        _expectation("expect_column_values_to_be_between", column="x", min_value=-20, max_value=20),
        _expectation("expect_column_values_to_be_between", column="y", min_value=0.1, max_value=2.9, mostly=0.9),
        _expectation("expect_column_values_to_be_between", column="big", min_value=2**60, max_value=2**60 + 2**50),
        _expectation("expect_table_row_count_to_be_between", min_value=100, max_value=2900, severity="warning"),
        _expectation("expect_column_values_to_not_be_null", column="x"),
        _expectation("expect_column_values_to_not_be_null", column="count", mostly=0.8),
        _expectation("expect_column_values_to_be_in_set", column="word", value_set=[str(word) for word in WORDS]),
        _expectation("expect_column_values_to_match_regex", column="word", regex="^w[0-9]+$", severity="warning"),
        _expectation("expect_column_values_to_be_unique", column="id"),
        _expectation("expect_column_mean_to_be_between", column="y", min_value=1, max_value=2),
        _expectation("expect_column_max_to_be_between", column="short", min_value=10, max_value=100),
        _expectation("expect_column_unique_value_count_to_be_between", column="part", min_value=3, max_value=3),
        _expectation("expect_column_distinct_values_to_be_in_set", column="flag", value_set=[True, False]),
        _expectation(
            "expect_column_quantile_values_to_be_between",
            column="x",
            quantile_ranges={"quantiles": [0.1, 0.5, 0.9], "value_ranges": [[-9, 9], [-9, 9], [-9, 9]]},
        ),
        _expectation("expect_column_pair_values_a_to_be_greater_than_b", column_A="seen", column_B="at", or_equal=True),
        _expectation("expect_compound_columns_to_be_unique", column_list=["id", "part"]),
        _expectation("expect_multicolumn_sum_to_equal", column_list=["same", "same"], sum_total=6),
        _expectation(
            "expect_column_values_to_be_between",
            column="x",
            min_value=-5,
            max_value=5,
            row_condition="part == 1",
            condition_parser="pandas",
            severity="warning",
        ),
        _expectation("expect_column_to_exist", column="seen", column_index=13),
        _expectation("expect_column_to_exist", column="gone"),
        _expectation("expect_column_values_to_not_be_null", column="gone", severity="info"),
        _expectation("expect_column_values_to_be_of_type", column="y", type_="float64"),
        _expectation("expect_column_median_to_be_between", column="count", min_value=-50, max_value=50),
        _expectation("expect_column_stdev_to_be_between", column="short", min_value=1, max_value=20),
    ],
}


def open_views(folder: Path, damage: str) -> tuple[list[TableView], Path]:
    """Write a snapshot of two tables: days as partitions, and the same rows as one file. Return its views and the suites' folder."""
    days = [DAMAGES[damage](day, sound_day(day)) for day in range(NUM_DAYS)]
    suites = folder / "suites"
    meta: dict[str, Any] = {}
    files: dict[str, FileEntry] = {}
    suites.mkdir()
    (suites / "damaged.json").write_text(json.dumps(SUITE))
    decoded = [{name: values.cast(pa.string()) if name == "word" else values for name, values in columns.items()} for columns in days]
    whole = pa.concat_tables([pa.table(columns) for columns in decoded], promote_options="permissive")
    written: dict[str, list[tuple[str, str | None, pa.Table]]] = {
        "orders": [
            (f"orders/{day}.parquet", str((START + timedelta(days=day)).date()), pa.table(columns)) for day, columns in enumerate(days)
        ],
        "facts": [("facts/all.parquet", None, whole)],
    }
    contracts = []
    for name, parts in written.items():
        (folder / name).mkdir()
        facts: dict[str, Any] = {}
        for part, day, table in parts:
            pq.write_table(table, folder / part)
            schema = schema_of(table.schema, source=name)
            facts[part] = {"rows": table.num_rows, "partition": day, "schema": schema}
            files[part] = FileEntry(digest=sha256_hex((folder / part).read_bytes()), size_bytes=1)
        meta[name] = {"rows": sum(part["rows"] for part in facts.values()), "schema": TYPES, "parts": facts}
        contracts.append(
            TableContract(
                name=name,
                kind="parquet",
                uri=f"file:///{name}",
                columns={column: Column(type=kind, nullable=column in NULLABLE) for column, kind in TYPES.items()},
                key=("id", "part") if name == "orders" else ("id",),
                event_time="at",
                partitioned=name == "orders",
                suite="damaged",
            )
        )
    return open_snapshot(Manifest(kind="snapshot", files=files, meta={"tables": meta}), folder, contracts), suites
