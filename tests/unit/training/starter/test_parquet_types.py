"""`nightshift init` on Parquet files as other tools write them: it declares what `ingest` reads, with the keys that this needs."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.starter.orders_bench import NUM_ROWS, ROWS, checked_with_data, found
from training.sql.expressions import hardened
from training.starter.column_types import json_column
from training.starter.parquet_files import plain_parquet

HALF = NUM_ROWS // 2
COLUMNS: dict[str, pa.Array] = {
    "items": pa.array([row["items"] for row in ROWS], pa.uint8()),
    "value": pa.array([Decimal(number) / 100 for number in range(NUM_ROWS)], pa.decimal128(38, 2)),
    "total": pa.array([Decimal(number) for number in range(NUM_ROWS)], pa.decimal128(38, 0)),
    "ordered_at": pa.array([datetime.fromisoformat(row["ordered_at"]).replace(tzinfo=None) for row in ROWS], pa.timestamp("ns")),
    "large": pa.array([2**64 - 1] * NUM_ROWS, pa.uint64()),
    "address": pa.array([{"zip": "1011", "geo": {"lat": 52.4}}] * NUM_ROWS),
}
DECLARED = (
    "items: {type: int64}",
    "value: {type: double, stored_as: decimal}",
    "total: {type: int64, scale: 0}",
    "ordered_at: {type: timestamp, zone: UTC}",
    "weight: {type: double}",
    "country: {type: string}",
)


def test_types_of_other_tools_are_declared_with_their_keys_and_pass_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.Table.from_pylist([{key: row[key] for key in ("order_id", "country", "outcome")} for row in ROWS])
    for name, column in COLUMNS.items():
        table = table.append_column(name, column)
    (folder := tmp_path / "orders").mkdir()
    # An integer column with missing values is one of doubles where pandas writes it, and one of nulls where it has nothing else.
    halves = [(table.slice(0, HALF), pa.array(range(HALF), pa.int32())), (table.slice(HALF), pa.array([1.5] * (NUM_ROWS - HALF)))]
    for number, (part, weight) in enumerate(halves):
        pq.write_table(part.append_column("weight", weight), folder / f"{number}.parquet")
    empty = pa.schema([(name, pa.null()) for name in [*table.column_names, "weight"]]).empty_table()
    empty = empty.append_column("__index_level_0__", pa.array([], pa.int64()))
    pq.write_table(empty.replace_schema_metadata({"pandas": "{}"}), folder / "2.parquet")
    result = found(folder, capsys, "--time", "ordered_at", to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert [line for line in DECLARED if f"      {line}\n" not in yaml] == []
    assert set(result["not_read"]) == {"__index_level_0__", "large", "address"}
    assert "struct<zip: string, geo: struct<lat: double>>" in result["not_read"]["address"]
    assert "SELECT address.zip AS address_zip" in result["not_read"]["address"]
    assert "'18446744073709551615', uint64, cannot be read as int64" in result["not_read"]["large"]
    assert checked_with_data(result, folder, tmp_path / "to", monkeypatch) == 0
    assert f"rows: uint8 read as int64: items ({NUM_ROWS} rows in 2 files)" in caplog.text


def test_int96_that_microseconds_do_not_hold_is_left_out_with_its_rows(tmp_path: Path) -> None:
    times = pa.table({"at": pa.array([0, 10**14], pa.timestamp("s")), "seen_at": pa.array([0, 1], pa.timestamp("s"))})
    pq.write_table(times, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    plain = plain_parquet([tmp_path / "a.parquet"], tmp_path, zone="UTC")
    assert (list(plain.columns), list(plain.left_out)) == (["seen_at"], ["at"])
    assert plain.left_out["at"].endswith("more than 292,000 years from 1970 (1 row of 2, the first is row 2)")


def test_fields_of_nested_json_are_listed() -> None:
    with hardened() as connection:
        rows = [json.dumps(row) for row in ({"zip": "1011"}, {"lat": 52.4}, None)]
        connection.execute(f"CREATE VIEW raw AS SELECT CAST(unnest({rows}) AS JSON) AS address")
        assert json_column(connection, "address") == 'its values are nested: {"zip":"VARCHAR","lat":"DOUBLE"}'
