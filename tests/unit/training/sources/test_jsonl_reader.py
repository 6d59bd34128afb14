"""JSON lines read strictly: each kind of damage is an error with its place, and good lines are what a naive reader gives."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import DataError
from training.sources import jsonl_reader
from training.sources.jsonl_reader import first_keys, read_jsonl
from training.sql.arrow_types import ARROW_TYPES

TYPES = {name: ARROW_TYPES[kind] for name, kind in {"n": "int8", "x": "double", "t": "timestamp", "s": "string", "b": "boolean"}.items()}
ROW = {"n": 1, "x": 1.5, "t": "2026-01-31T06:00:00Z", "s": "a", "b": True}


def read(path: Path, data: bytes, types: dict[str, pa.DataType] | None = None) -> pa.Table:
    path.write_bytes(data)
    wanted = TYPES if types is None else types
    return read_jsonl(path, first_keys(path, source="f.jsonl") or [], wanted, source="f.jsonl").read_all()


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("double", (1.5, "n/a", None, 1e-05, 2**60, "7"), ["1.5", "n/a", None, "1e-05", str(2**60), "7"]),
        ("int8", (1, "n/a"), ["1", "n/a"]),
        ("boolean", (True, "?", False), ["true", "?", "false"]),
    ],
)
def test_values_beside_words_are_read_as_json_writes_them(kind: str, values: Any, texts: list[str | None], tmp_path: Path) -> None:
    assert marked(tmp_path, kind, *values) == texts


@pytest.mark.parametrize(
    ("kind", "value", "shown"), [("double", True, "true"), ("int8", 1.0, "1.0"), ("boolean", 1, "1"), ("double", math.inf, "Infinity")]
)
def test_a_value_of_another_type_stays_refused_beside_words(kind: str, value: Any, shown: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"line 2, column 'x': '{shown}' is not of type {kind}"):
        marked(tmp_path, kind, "n/a", value)


def marked(folder: Path, kind: str, *values: Any) -> list[Any]:
    """Read values of a column that has texts for missing values."""
    path = folder / "f.jsonl"
    path.write_text("".join(json.dumps({"x": value, "y": 1}) + "\n" for value in values).replace("Infinity", "1e999"))
    found: list[Any] = read_jsonl(path, ["x", "y"], {"x": pa.string()}, source="f.jsonl", as_texts={"x": kind}).read_all()["x"].to_pylist()
    return found


def test_a_text_among_numbers_has_the_key_that_makes_it_a_missing_value(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path / "f.jsonl", line() + line(x="n/a"))
    assert refused.value.hint.endswith('write missing: ["n/a"] in the column, which needs nullable: true')


def line(**changes: Any) -> bytes:
    return json.dumps(ROW | changes).encode() + b"\n"


WITHOUT_S = json.dumps({key: value for key, value in ROW.items() if key != "s"}).encode()


@pytest.mark.parametrize(
    ("second", "code", "message"),
    [
        (line(n="1"), "schema.type", "line 2, column 'n': '1' is not of type int8"),
        (line(n=1.0), "schema.type", "line 2, column 'n': '1.0' is not of type int8"),
        (line(n=True), "schema.type", "line 2, column 'n': 'true' is not of type int8"),
        (line(n=128), "schema.type", "line 2, column 'n': '128' is not of type int8"),
        (line(n=10**40), "schema.type", "line 2, column 'n': a number of more than 30 digits is not of type int8"),
        (line(x="1.5"), "schema.type", "line 2, column 'x': '1.5' is not of type double"),
        (line(x=10**400), "schema.type", "line 2, column 'x': a number of more than 30 digits is not of type double"),
        (line().replace(b"1.5", b"1e999"), "schema.type", "line 2, column 'x': 'Infinity' is not of type double"),
        (line(s=1), "schema.type", "line 2, column 's': '1' is not of type string"),
        (line(b=1), "schema.type", "line 2, column 'b': '1' is not of type boolean"),
        (line(t="2026-01-31T06:00:00"), "schema.type", "line 2, column 't': '2026-01-31T06:00:00' is not of type timestamp"),
        (line(t=1769839200), "schema.type", "line 2, column 't': '1769839200' is not of type timestamp"),
        (line(s=["a"]), "schema.type", "line 2, column 's': a list is not of type string"),
        (line(s={"a": 1}), "schema.type", "line 2, column 's': a nested object is not of type string"),
        (line(s="\ud800"), "schema.type", "line 2, column 's': '\\ud800' is not of type string"),
        (WITHOUT_S, "format.jsonl", "line 2: the key 's' is missing"),
        (line(more=1), "format.jsonl", "line 2: the key 'more' is not on the first line"),
        (line().replace(b'"s"', b'"n"'), "format.jsonl", "line 2: the key 'n' appears twice"),
        (line().replace(b"1.5", b"NaN"), "format.jsonl", "line 2: NaN is not JSON; write null for a number that is missing"),
        (line().replace(b'"a"', b'"caf\xe9"'), "format.jsonl", "line 2: byte 0xe9 is not UTF-8"),
        (line().replace(b"}", b""), "format.jsonl", "line 2: not JSON: Expecting ',' delimiter at character 69"),
        (line().strip() + line(), "format.jsonl", "line 2: not JSON: Extra data at character 69"),
        (b"[1, 2]\n", "format.jsonl", "line 2: a list is not a JSON object"),
        (b"[" * 200_000, "format.jsonl", "line 2: values are nested too deeply"),
        (line(n=0).replace(b"0", b"9" * 5000, 1), "format.jsonl", "line 2: Exceeds the limit (4300 digits)"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, second: bytes, code: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path / "f", line() + second)
    assert caught.value.code == code
    assert caught.value.message.startswith(f"f.jsonl, {message}")


@pytest.mark.parametrize("data", [b'[\n  {"n": 1},\n', b'[{"n": 1}, {"n": 2}]\n'])
def test_an_array_of_objects_is_refused_with_the_command_that_makes_lines_of_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(DataError) as caught:
        first_keys(tmp_path / "f", source="f.jsonl")
    assert (caught.value.code, "jq -c '.[]'" in (caught.value.hint or "")) == ("format.jsonl", True)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_an_object_names_no_keys(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    assert first_keys(tmp_path / "f", source="f.jsonl") is None


def test_a_line_without_an_end_is_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_reader, "MAX_LINE_BYTES", 100)
    with pytest.raises(DataError, match="line 2: longer than 100 bytes") as caught:
        read(tmp_path / "f", line() + b" " * 10**6)
    assert caught.value.code == "format.jsonl"


@pytest.mark.parametrize("batch_bytes", [1, 150, 10**6])
def test_a_wrong_value_is_on_its_line_in_any_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    monkeypatch.setattr(jsonl_reader, "BATCH_BYTES", batch_bytes)
    with pytest.raises(DataError, match="line 6, column 'n': 'x' is not of type int8"):
        read(tmp_path / "f", line() * 3 + b"\n" + line() + line(n="x") + line())


def test_byte_order_mark_crlf_blank_lines_and_the_order_of_keys_make_no_difference(tmp_path: Path) -> None:
    turned = json.dumps(dict(reversed(ROW.items()))).encode()
    found = read(tmp_path / "f", b"\xef\xbb\xbf" + line().rstrip() + b"\r\n\r\n  \n" + turned)
    assert found.to_pylist() == read(tmp_path / "f", line() * 2).to_pylist()
    assert found.column_names == list(TYPES)


def test_keys_that_no_table_reads_may_hold_anything(tmp_path: Path) -> None:
    data = line(junk={"a": [1]}) + line(junk=None)
    assert read(tmp_path / "f", data).num_rows == 2


CELLS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
    "float": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "boolean": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "date": st.dates(date(1900, 1, 1)),
    "timestamp": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC)),
}


@settings(max_examples=150)
@given(data=st.data())
def test_any_good_rows_are_what_a_naive_reader_gives(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=5))
    names = [f"c{number}" for number in range(len(kinds))]
    columns = dict(zip(names, kinds, strict=True))
    rows = data.draw(st.lists(st.fixed_dictionaries({name: st.none() | CELLS[kind] for name, kind in columns.items()}), min_size=1))
    plain = [{key: cell.isoformat() if isinstance(cell, date) else cell for key, cell in row.items()} for row in rows]
    text = "\n".join(json.dumps(row, ensure_ascii=data.draw(st.booleans())) for row in plain)
    found = read(tmp_path_factory.mktemp("any") / "f", text.encode(), {name: ARROW_TYPES[kind] for name, kind in columns.items()})
    assert found.to_pylist() == [
        {k: float(c) if columns[k] in ("double", "float") and c is not None else c for k, c in r.items()} for r in rows
    ]
