"""Columns whose names in the file are no identifiers: declared by `source_name`, and called by their keys once they are read."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.errors import DataError
from training.sources.interface import SourcePart, SourceWindow
from training.sources.listing import list_source
from training.sources.registry import source_of
from training.sources.schema_changes import schema_changes
from training.sources.size_limits import decoded_bytes
from training.sources.snapshot_files import part_of_rows, read_rows
from training.sources.table_contract import RowSample, TableContract
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES

KINDS = ("csv", "jsonl", "parquet")
NAMES = {
    "row": "",
    "home_goals": "Home Goals",
    "first_class": "1st_class",
    "height_cm": "Größe (cm)",
    "age": "Age",
    "age_2": "age",
    "select": "select",
    "length": "Sepal.Length",
}
"""Identifier to the name in the file."""
VALUES = {"row": [0, 1], "home_goals": [3, 1], "first_class": ["x", "y"], "height_cm": [1.5, 2.5]}
VALUES |= {"age": [30, 40], "age_2": [31, 41], "select": [7, 8], "length": ["a", "bb"]}
TYPES = {name: {int: "int64", float: "double", str: "string"}[type(values[0])] for name, values in VALUES.items()}
CONTRACT = TableContract(
    name="matches",
    kind="csv",
    columns={name: Column(type=kind, source_name=None if name == "select" else NAMES[name]) for name, kind in TYPES.items()},
    ignore=("Sepal",),
    key=("row",),
)
IN_FILE = {NAMES[name]: values for name, values in VALUES.items()} | {"Sepal": ["ignored", "ignored"]}
LIMIT = 2**20


def write(path: Path, kind: str, columns: Mapping[str, Sequence[object]]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "csv":
        lines = [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        # With dictionaries, whose texts are counted before a file is read.
        pq.write_table(pa.table(dict(columns)), path)


def read(folder: Path, kind: str, columns: Mapping[str, Sequence[object]], contract: TableContract = CONTRACT) -> pa.Table:
    path = folder / f"matches.{kind}"
    write(path, kind, columns)
    (found,) = list_source(path.as_uri())
    contract = replace(contract, kind=kind, uri=path.as_uri())
    (folder / "scratch").mkdir()
    part = SourcePart(found.uri, found.size_bytes, found.version)
    content = source_of(contract).read(part, folder / "scratch", limit_bytes=LIMIT)
    return read_rows(contract, content, source=path.name, limit_bytes=LIMIT)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_names_of_the_yaml_and_the_values_of_the_files_columns(tmp_path: Path, kind: str) -> None:
    assert read(tmp_path, kind, IN_FILE).to_pydict() == VALUES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("Home goals", "did you mean 'Home goals'"),
        (unicodedata.normalize("NFD", "Größe (cm)"), "in another Unicode form"),
        ("x", "the file has"),
    ],
)
def test_source_name_that_the_file_lacks_is_refused_with_the_nearest_one(tmp_path: Path, kind: str, named: str, hint: str) -> None:
    """Where the nearest one is ignored; else it is undeclared."""
    lacking = "height_cm" if "cm" in named else "home_goals"
    others = {name: values for name, values in IN_FILE.items() if name != NAMES[lacking]}
    contract = replace(CONTRACT, ignore=(*CONTRACT.ignore, named))
    with pytest.raises(DataError) as caught:
        read(tmp_path, kind, {named: [1, 2], **others}, contract)
    assert caught.value.code == "schema.missing"
    assert repr(NAMES[lacking]) in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("declared", "undeclared", "hint"),
    [
        ({"home_goals": None}, "Home Goals", "if 'Home Goals' is meant, set it as its source_name"),
        ({"home_goals": "Home Goal"}, "Home Goals", "if 'Home Goals' is meant, set it as its source_name"),
        ({"id": None}, "Größe (cm)", '(any_name: {type: …, source_name: "Größe (cm)"})'),
    ],
)
def test_undeclared_column_is_refused_with_the_key_that_declares_it(
    tmp_path: Path, declared: dict[str, str | None], undeclared: str, hint: str
) -> None:
    columns = {"a": Column(type="int64"), **{name: Column(type="int64", source_name=found) for name, found in declared.items()}}
    there = {"a": [1], undeclared: [1]} if "id" not in declared else {"a": [1], "id": [2], undeclared: [1]}
    with pytest.raises(DataError) as caught:
        read(tmp_path, "csv", there, replace(CONTRACT, columns=columns, ignore=(), key=()))
    assert caught.value.code == "schema.unexpected"
    assert hint in caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_column_without_a_name_is_refused_where_it_is_neither_declared_nor_ignored(tmp_path: Path, kind: str) -> None:
    contract = replace(CONTRACT, columns={"a": Column(type="int64")}, ignore=(), key=())
    with pytest.raises(DataError, match="column 1 has no name") as caught:
        read(tmp_path, kind, {"": [1], "a": [2]}, contract)
    assert (caught.value.code, 'source_name: ""' in caught.value.hint) == ("schema.names", True)
    (tmp_path / "scratch").rename(tmp_path / "used")
    assert read(tmp_path, kind, {"": [1], "a": [2]}, replace(contract, ignore=("",))).to_pydict() == {"a": [2]}


def test_column_of_another_column_with_a_dot_in_its_name_is_measured_alone(tmp_path: Path) -> None:
    path = tmp_path / "dots.parquet"
    pq.write_table(pa.table({"a": ["x"] * 9, "a.b": ["y" * 500] * 9}), path)
    with pq.ParquetFile(path) as file:
        small, large = (decoded_bytes(file, [name], path=path, limit_bytes=LIMIT) for name in ("a", "a.b"))
    assert small < 9 * 50 < 9 * 500 <= large


def test_source_sees_its_own_names_and_a_run_those_of_the_yaml() -> None:
    sample = RowSample(share=0.5, seed=1, by=("age_2", "select"))
    contract = replace(CONTRACT, event_time="home_goals", known_at="age", key=("age_2", "select"), sample=sample)
    there = contract.at_source()
    assert list(there.columns) == list(IN_FILE)[:-1]
    assert (there.event_time, there.known_at, there.key) == ("Home Goals", "Age", ("age", "select"))
    assert there.sample == replace(sample, by=("age", "select"))
    plain = replace(contract, columns={"select": Column(type="int64")})
    assert plain.at_source() is plain


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [({}, True), ({"columns": {"a": Column(type="int64", source_name="A")}}, False), ({"ignore": ("", "b c")}, False)],
)
def test_file_is_kept_byte_for_byte_only_where_no_column_is_renamed(change: dict[str, object], is_kept: bool) -> None:
    plain = TableContract(name="t", kind="parquet", columns={"a": Column(type="int64")}, ignore=("b c",), partitioned=True)
    assert replace(plain, **change).is_kept_as_is is is_kept  # type: ignore[arg-type]


def test_part_of_a_snapshot_has_the_names_of_the_yaml(tmp_path: Path) -> None:
    rows = read(tmp_path, "parquet", IN_FILE)
    window = SourceWindow(None, None, datetime(2026, 1, 1, tzinfo=UTC))
    part = part_of_rows(CONTRACT, rows, window, tmp_path / "part.parquet", source="part")
    assert part.schema == TYPES
    assert pq.read_table(part.path).schema.types == [ARROW_TYPES[TYPES[name]] for name in VALUES]


def test_other_name_in_the_file_is_no_change_of_the_schema_and_a_column_whose_name_is_ignored_there_is_compared() -> None:
    contract = replace(CONTRACT, ignore=("age_2",), columns={**CONTRACT.columns, "age_2": Column(type="double", source_name="age")})
    then = {"matches": {"schema": TYPES}}
    assert schema_changes([contract], then) == ["matches.age_2: int64 → double"]  # type: ignore[arg-type]
    renamed = {name: column.model_copy(update={"source_name": f"{name}!"}) for name, column in CONTRACT.columns.items()}
    assert schema_changes([replace(CONTRACT, columns=renamed)], then) == []  # type: ignore[arg-type]
