"""Files that hold another format than their name says: refused by `init` and `ingest` alike, with what they hold."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.sources.test_compression import CONTENT, read
from tests.unit.training.starter.orders_bench import init
from training.errors import DataError, SpecError

CSV = CONTENT["csv"]


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, CSV)
    return stream.getvalue()


def parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "s": ["a", "b"]}), stream)
    return stream.getvalue()


OTHERS = {
    "gzip": (gzip.compress(CSV), "decompress it"),
    "Zstandard": (pa.compress(CSV, codec="zstd", asbytes=True), "decompress it"),
    "bzip2": (bz2.compress(CSV), "decompress it"),
    "xz": (lzma.compress(CSV), "decompress it"),
    "a zip archive": (zipped("orders.csv"), "decompress it"),
    "a workbook": (zipped("[Content_Types].xml", "xl/workbook.xml"), "save its sheet as CSV UTF-8"),
    "a workbook of Excel": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "save its sheet as CSV UTF-8"),
    "Parquet": (parquet(), r"name it after what it holds"),
    "JSON": (CONTENT["jsonl"], r"name it after what it holds"),
    "UTF-16": (CSV.decode().encode("utf-16"), "save it as UTF-8"),
    "text": (CSV, r"name it after what it holds"),
}
CASES = [(kind, what) for kind in ("csv", "parquet") for what in OTHERS if what not in ({"csv": "text", "parquet": "Parquet"}[kind])]


@pytest.mark.parametrize(("kind", "what"), CASES)
def test_content_of_another_format_is_named_by_ingest_and_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, what: str
) -> None:
    data, remedy = OTHERS[what]
    with pytest.raises(DataError, match=f"a.{kind} holds {what}, not .*{remedy}") as caught:
        read(tmp_path, kind, f"a.{kind}", data)
    assert caught.value.code == "format.content"
    assert init(tmp_path / "t" / f"a.{kind}", to=tmp_path) != 0
    assert f"holds {what}, not " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "remedy"), [("a.xlsx", "save its sheet as CSV"), ("a.csv.zip", "decompress it"), ("a.txt", "after its format")]
)
def test_init_says_what_to_do_with_a_file_of_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, remedy: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    assert init(tmp_path / name, to=tmp_path) != 0
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize("header", [b"PAR1,s\n", b"[id],s\n", b"{id},s\n", b"BZh9,s\n", b"PK,s\n"])
def test_texts_that_begin_like_another_format_are_texts(tmp_path: Path, header: bytes) -> None:
    with pytest.raises((DataError, SpecError)) as caught:
        read(tmp_path, "csv", "a.csv", header + b"1,a\n")
    assert caught.value.code != "format.content"


def test_bytes_of_windows_are_named_with_their_letter_and_the_remedy_by_ingest_and_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = r"line 3: byte 0xd6 is not UTF-8 \(Ö in cp1252, .*iconv -f CP1252 -t UTF-8"
    with pytest.raises(DataError, match=words):
        read(tmp_path, "csv", "a.csv", "id,s\n1,a\n2,Österreich\n".encode("cp1252"))
    assert init(tmp_path / "t" / "a.csv", to=tmp_path) != 0
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"sep=,\nid,s\n1,a\n", r"line 1: 'sep=,' is no header.*delete this line"),
        (b'"sep=;"\nid;s\n1;a\n', r"line 1: '\"sep=;\"' is no header"),
        (b"Orders,,\nid,s,x\n", r"line 1: 'Orders' and 2 empty cells \(delete lines above the header line"),
        (b"id,s,,\n1,a,,\n", r"the last columns have no name: the header line ends in commas \(delete the empty columns"),
        (b"id,s\n1,a\n2,b,,\n", r"line 3: 4 cells in a row of 2 columns \(delete the empty columns"),
        (b"id,s\n1,a\n2,b,c\n", r"line 3: 3 cells in a row of 2 columns \(quote cells"),
    ],
)
def test_what_spreadsheets_leave_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(tmp_path, "csv", "a.csv", data)
