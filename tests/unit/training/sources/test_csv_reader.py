"""CSV read strictly: each kind of damage is an error with its place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from training.errors import DataError
from training.sources.arrow_schema import declared_columns
from training.sources.csv_reader import read_csv, read_header
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES

TYPES = {"n": ARROW_TYPES["int64"], "x": ARROW_TYPES["double"], "t": ARROW_TYPES["timestamp"], "s": ARROW_TYPES["string"]}
GOOD = b"1,1.5,2026-01-31T06:00:00Z,a\n"


def read(tmp_path: Path, data: bytes) -> pa.Table:
    path = tmp_path / "f.csv"
    path.write_bytes(data)
    return read_csv(path, TYPES, source="f.csv")


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"n,x,t,s\n" + GOOD + b"2,1.5,2026-01-31T06:00:00Z\n", "format.csv", "f.csv, line 3: 3 cells in a row of 4 columns"),
        (b"n,x,t,s\n\n\n" + GOOD + b"2,1,2,3,4,5\n", "format.csv", "f.csv, line 5: 6 cells in a row of 4 columns"),
        (b'n,x,t,s\n1,1.5,2026-01-31T06:00:00Z,"a\n' + GOOD, "format.csv", "f.csv, line 2: a quote is not closed on its line"),
        (b"n,x,t,s\n" + GOOD + b'1,1.5,2026-01-31T06:00:00Z,"a', "format.csv", "f.csv, line 3: a quote is not closed on its line"),
        (b"n,x,t,s\n" + GOOD + b"1,1.5,2026-01-31T06:00:00Z,a\0\n", "format.csv", "f.csv, line 3: a NUL byte"),
        (
            b"n,x,t,s\n" + GOOD + b"1,1.5,2026-01-31T06:00:00Z,caf\xe9\n",
            "format.csv",
            "f.csv, line 3: byte 0xe9 is not UTF-8 (é in cp1252, which Windows writes)",
        ),
        (
            b"n,x,t,s\n" + GOOD + b"1,1.5,2026-01-31T06:00:00Z,caf\xc3",
            "format.csv",
            "f.csv, line 3: byte 0xc3 is not UTF-8 (Ã in cp1252, which Windows writes)",
        ),
        (b"n;x;t;s\n1;1.5;;\n", "format.csv", "f.csv, line 1: one column, 'n;x;t;s', with a semicolon in its name"),
        (b"n,x,t,s\nmany,1.5,,a\n", "schema.type", "f.csv, line 2, column 'n': 'many' is not of type int64"),
        (b"n,x,t,s\n1.5,1.5,,a\n", "schema.type", "f.csv, line 2, column 'n': '1.5' is not of type int64"),
        (b'n,x,t,s\n1,"1,5",,a\n', "schema.type", "f.csv, line 2, column 'x': '1,5' is not of type double"),
        (b"n,x,t,s\n1,NA,,a\n", "schema.type", "f.csv, line 2, column 'x': 'NA' is not of type double"),
        (
            b"n,x,t,s\n1,1.5,2026-01-31 06:00:00,a\n",
            "schema.type",
            "f.csv, line 2, column 't': expected a zone offset in '2026-01-31 06:00:00'",
        ),
        (b"n,n,t,s\n1,2,,a\n", "schema.names", "f.csv: column 'n' appears twice"),
        (b"n,x,t,s\r1,1.5,,a\r2,1.5,,b\r", "format.csv", "f.csv, line 1: a carriage return (CR) that no line feed (LF) follows"),
        (
            b"n,x,t,s\n" + GOOD + b"1,1.5,,a\r2,1.5,,b\n",
            "format.csv",
            "f.csv, line 3: a carriage return (CR) that no line feed (LF) follows",
        ),
        (b'n,x,t,s\n1,1.5,,"a\rb"\n', "format.csv", "f.csv, line 2: a carriage return (CR) that no line feed (LF) follows"),
        (b"n,x,t,s\n1,1.5,,a\r", "format.csv", "f.csv, line 2: a carriage return (CR) that no line feed (LF) follows"),
        (b'n,x,t,"s\nu"\n' + GOOD, "format.csv", "f.csv, line 1: a quote is not closed on its line"),
        (b"n" * 2_000_000 + b"\n1\n", "format.csv", "f.csv, line 1: the header line is longer than 1,048,576 bytes"),
        (b"n" * 200_000 + b"\n1\n", "format.csv", "f.csv, line 1: the header line cannot be read: field larger than field limit (131072)"),
        (b"n,x,t,s\n" + GOOD * 3 + b"1,1.5,," + b"a" * 3_000_000 + b"\n", "format.csv", "f.csv, line 5: longer than 1,048,576 bytes"),
        (b"n,x,t,s\n" + GOOD + b"0" * 3_000_000, "format.csv", "f.csv, line 3: longer than 1,048,576 bytes"),
        (b"", "data.empty", "f.csv is empty: it has no header line"),
        (b"n,x,t,s\n", "data.empty", "f.csv has a header line and no rows"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, data: bytes, code: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, data)
    assert (caught.value.code, caught.value.message) == (code, message)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("cells", "text"), [("n/a,1.5,,a", "n/a"), ("1,-,,a", "-"), ('1,"",,a', ""), ("1,1.5,unknown,a", "unknown"), ('1,"1,5",,a', None)]
)
def test_text_without_a_digit_may_be_named_under_missing_and_only_times_need_an_offset(
    tmp_path: Path, cells: str, text: str | None
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, f"n,x,t,s\n{cells}\n".encode())
    hint = caught.value.hint
    remedy = f"if '{text}' says that the value is missing, write missing: [\"{text}\"] in the column, which needs nullable: true"
    assert "missing" not in hint if text is None else hint.endswith(remedy)
    assert ("timestamps need an offset" in hint) == (text == "unknown")


@pytest.mark.parametrize("chunk_bytes", [1, 3, 5, 7])
def test_quotes_that_close_across_chunks_are_counted_on_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    header = "n,x,t,s"
    monkeypatch.setattr("training.sources.csv_reader.read_header", lambda *_args, **_more: header.split(","))
    monkeypatch.setattr("training.sources.csv_reader.CHUNK_BYTES", chunk_bytes)
    assert read(tmp_path, b"n,x,t,s\n" + b'1,1.5,,"a, b"\n' * 5)["s"].to_pylist() == ["a, b"] * 5
    with pytest.raises(DataError, match="line 4: a quote is not closed"):
        read(tmp_path, b"n,x,t,s\n" + b'1,1.5,,"a, b"\n' * 2 + b'1,1.5,,"a\n' + b"1,1.5,,b\n" * 3)


def test_byte_order_mark_crlf_and_any_column_order_make_no_difference(tmp_path: Path) -> None:
    table = read(tmp_path, b"\xef\xbb\xbfs,t,x,n,extra\r\na,2026-01-31T08:00:00+02:00,1.5,1,zzz\r\n")
    assert table.to_pylist() == read(tmp_path, b"n,x,t,s\n" + GOOD).to_pylist()
    assert table.column_names == list(TYPES)


def test_an_empty_cell_is_null_and_an_empty_text_is_not(tmp_path: Path) -> None:
    assert read(tmp_path, b'n,x,t,s\n,,,\n1,,,""\n').to_pylist() == [
        {"n": None, "x": None, "t": None, "s": None},
        {"n": 1, "x": None, "t": None, "s": ""},
    ]


def test_header_names_may_be_anything_that_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('=cmd(),"a,b",été,5" pipe,"6"" pipe"\n1,2,3,4,5\n')
    assert read_header(path, source="f.csv") == ["=cmd()", "a,b", "été", '5" pipe', '6" pipe']


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 7, 100])
def test_windows_line_ends_are_read_and_a_lone_return_is_refused_at_any_chunk_border(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr("training.sources.csv_reader.CHUNK_BYTES", chunk_bytes)
    assert read(tmp_path, b'n,x,t,s\r\n1,1.5,,"a"\r\n2,2.5,,b\r\n')["n"].to_pylist() == [1, 2]
    with pytest.raises(DataError, match="line 3: a carriage return") as caught:
        read(tmp_path, b'n,x,t,s\r\n1,1.5,,"a"\r\n2,2.5,,"b\r"\r\n')
    assert caught.value.code == "format.csv"


def test_header_of_many_distinct_columns_is_read(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(100_000)]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(names) + "\n")
    assert read_header(path, source="wide.csv") == names


@pytest.mark.parametrize(
    ("names", "hint"), [(["n", "more"], "name them under `ignore`"), (["n s"], "a CSV file has a header line, and commas")]
)
def test_hint_of_unexpected_columns_says_whether_the_file_has_any_declared_one(names: list[str], hint: str) -> None:
    contract = TableContract(name="t", kind="csv", columns={"n": Column(type="int64"), "s": Column(type="string")})
    with pytest.raises(DataError) as caught:
        declared_columns(contract, names, source="f.csv")
    assert caught.value.code == "schema.unexpected"
    assert hint in caught.value.hint
