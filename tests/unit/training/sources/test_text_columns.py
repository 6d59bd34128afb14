"""Numbers and missing values that a file has as texts: read in the form that the YAML says, and in no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.errors import DataError
from training.sources.interface import PartContent, SourcePart
from training.sources.registry import source_of
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column, NumberFormat

GERMAN = NumberFormat(decimal=",", thousands=".")
LIMIT = 2**20


def values(column: Column, texts: list[str | None]) -> list[Any]:
    contract = TableContract(name="t", kind="parquet", uri="file:///t", columns={"x": column})
    rows = PartContent(pa.table({"x": pa.array(texts, pa.string())}))
    table = read_rows(contract, rows, source="t.parquet", limit_bytes=LIMIT)
    found: list[Any] = table["x"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("column", "texts", "expected"),
    [
        (Column(type="double", number_format=GERMAN), ["1.234,50", " 12 ", "+0,5", "-1.234.567", "1e3", None, ",5"], None),
        (Column(type="int64", number_format=NumberFormat(thousands=",")), ["1,234", "12", "-7", "+3"], [1234, 12, -7, 3]),
        (Column(type="double", number_format=NumberFormat(unit="$")), ["$1.50", "-$3", "$-3"], [1.5, -3, -3]),
        (
            Column(type="double", number_format=NumberFormat(decimal=",", thousands=" ", unit="€")),
            ["1\u202f234,5 €", "12\u00a0€", "\u22123€"],
            [1234.5, 12, -3],
        ),
        (Column(type="int64", missing=("\\N", "?")), ["9007199254740993", "\\N", "?"], [9007199254740993, None, None]),
        (Column(type="date", missing=("-",)), ["-"], [None]),
        (Column(type="string", missing=("n/a",)), ["n/a", "a "], [None, "a "]),
    ],
)
def test_texts_are_read_in_the_form_that_the_yaml_says(column: Column, texts: list[str | None], expected: list[Any] | None) -> None:
    assert values(column, texts) == (expected or [1234.5, 12, 0.5, -1234567, 1000, None, 0.5])


@pytest.mark.parametrize(
    ("column", "texts", "row", "wrong"),
    [
        (Column(type="double", number_format=GERMAN), ["1", "2", "1.5"], 3, "1.5"),
        (Column(type="double", number_format=NumberFormat(thousands=",")), ["1,5"], 1, "1,5"),
        (Column(type="int64", number_format=NumberFormat(thousands=",")), ["1,234", "12.5"], 2, "12.5"),
        (Column(type="double", number_format=NumberFormat(unit="%")), ["1%", "1"], 2, "1"),
        (Column(type="double", missing=("?",)), ["?", "1.5", None, "x", "y"], 4, "x"),
        (Column(type="int8", missing=("?",)), ["1", "300"], 2, "300"),
        (Column(type="timestamp", missing=("?",)), ["2026-01-31T06:00:00Z", "2026-01-31T06:00:00"], 2, "2026-01-31T06:00:00"),
    ],
)
def test_text_of_another_form_is_refused_with_its_row(column: Column, texts: list[str | None], row: int, wrong: str) -> None:
    with pytest.raises(DataError) as refused:
        values(column, texts)
    assert refused.value.code == "schema.type"
    assert refused.value.message.startswith(f"t.parquet, row {row}, column 'x': '{wrong}' is not of type {column.type}")


def test_another_text_is_added_to_those_that_are_missing_values() -> None:
    with pytest.raises(DataError) as refused:
        values(Column(type="double", missing=("?",)), ["?", "n/a"])
    assert refused.value.hint.endswith('write missing: ["?", "n/a"] in the column, which needs nullable: true')


def test_all_kinds_of_files_give_the_same_numbers_and_none_is_kept_as_it_is(tmp_path: Path) -> None:
    rows = [{"x": "1.234,5"}, {"x": "?"}, {"x": None}]
    (tmp_path / "t.csv").write_text('x\n"1.234,5"\n?\n', encoding="utf-8")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for kind in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"t.{kind}"
        columns = {"x": Column(type="double", number_format=GERMAN, missing=("?",), nullable=True)}
        contract = TableContract(name="t", kind=kind, uri=path.as_uri(), columns=columns, partitioned=True)
        folder = tmp_path / f"copy_{kind}"
        folder.mkdir()
        source = source_of(contract)
        (part,) = source.list(window=None)  # type: ignore[arg-type] # a single file has no partitions
        content = source.read(SourcePart(part.uri, part.size_bytes, part.version), folder, limit_bytes=LIMIT)
        found = read_rows(contract, content, source=kind, limit_bytes=LIMIT)["x"].to_pylist()
        assert found[:2] == [1234.5, None]
        assert not contract.is_kept_as_is


def test_daily_parquet_of_texts_with_a_zone_is_read_as_instants_and_not_kept_byte_for_byte() -> None:
    contract = TableContract(name="t", kind="parquet", columns={"x": Column(type="timestamp")}, partitioned=True)
    assert contract.is_kept_as_is
    assert not replace(contract, columns={"x": Column(type="timestamp", zone="Europe/Berlin")}).is_kept_as_is
