"""CSV read strictly: what does not fit its declared type, or its row, is an error with file, line and value; nothing is shifted or guessed.

Arrow parses. It takes a quote that is not closed for one long value, a NUL for a letter and a carriage return (CR) that no line
feed (LF) follows for the end of a row, or inside quotes for a letter, so all of them are looked for first.
A value may not span lines: of a value that seems to, one cannot tell whether its quote was meant. Lines end in LF or CRLF.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from training.errors import DataError, shown
from training.sources.arrow_schema import check_names, type_hint, type_name
from training.sources.content import not_utf8, refuse_content

CHUNK_BYTES: Final = 8 * 1024 * 1024
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Of the header line: 2,000 columns with names of 500 bytes."""
DELIMITERS: Final = {";": "semicolon", "\t": "tab", "|": "bar"}
CONVERSION: Final = re.compile(
    r"In CSV column #(?P<column>\d+): Row #(?P<row>\d+): (?:CSV conversion error to .*?: )?(?P<reason>.*)", re.DOTALL
)
RAGGED: Final = re.compile(r"Row #(?P<row>\d+): Expected (?P<expected>\d+) columns, got (?P<found>\d+)")
LONE_RETURN: Final = re.compile(rb"\r(?!\n|\Z)")
"""A carriage return before anything but a line feed; one at the end of a chunk is judged with the chunk that follows."""
TOO_LONG: Final = "straddling object"
"""Arrow's words for a line that is longer than its blocks of 1 MiB, or than two of them, as it lies."""
BLOCK_BYTES: Final = 1024 * 1024
SAVE_AS_UTF8: Final = "save the file as UTF-8: in Excel as CSV UTF-8, or by iconv -f CP1252 -t UTF-8"
DELETE_COLUMNS: Final = "delete the empty columns behind the last one, and save the file again"
EXCEL_LINE: Final = re.compile(r'"?sep=.?"?,*', re.IGNORECASE)
"""Names the delimiter for Excel alone."""
INVALID_VALUE: Final = re.compile(r"invalid value '(?P<value>.*)'", re.DOTALL)


def read_header(path: Path, *, source: str) -> list[str]:
    """Return the column names of a CSV file's first line.

    Args:
        source: what to call the file in messages.

    Raises:
        DataError: `data.empty`, `format.content`, `format.csv`, `schema.names`.
    """
    with path.open("rb") as stream:
        line = stream.readline(MAX_HEADER_BYTES + 1)
    refuse_content(path, source=source, wanted="CSV")
    if not line.strip():
        raise DataError(
            "data.empty", f"{source} is empty: it has no header line", hint="write the header line; in a partition, rows may be missing"
        )
    if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
        raise _lone_return(source, 1)
    if len(line) > MAX_HEADER_BYTES:
        raise _malformed(source, 1, f"the header line is longer than {MAX_HEADER_BYTES:,} bytes", "check that this is a CSV file")
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as err:
        raise _malformed(source, 1, not_utf8(line[err.start]), SAVE_AS_UTF8) from err
    if _is_open(text):
        raise _unclosed(source, 1)
    try:
        names = next(csv.reader([text], strict=False))
    except csv.Error as err:
        raise _malformed(source, 1, f"the header line cannot be read: {err}", "name every column in at most 128 characters") from err
    _check_of_a_sheet(text, names, source=source)
    check_names(names, source=source)
    return names


def _check_of_a_sheet(text: str, names: list[str], *, source: str) -> None:
    """Refuse what spreadsheets make of a header line."""
    if EXCEL_LINE.fullmatch(text):
        raise _malformed(source, 1, f"{shown(text)} is no header: it names the delimiter for Excel alone", "delete this line")
    if len(names) == 1:
        for delimiter, word in DELIMITERS.items():
            if delimiter in names[0]:
                raise _malformed(source, 1, f"one column, {shown(names[0])}, with a {word} in its name", "separate the columns by commas")
    if len(names) > 2 and not any(names[1:]):
        raise _malformed(
            source, 1, f"{shown(names[0])} and {len(names) - 1} empty cells", "delete lines above the header line, such as a title"
        )
    if len(names) > 2 and not (names[-1] or names[-2]):
        raise DataError("schema.names", f"{source}: the last columns have no name: the header line ends in commas", hint=DELETE_COLUMNS)


def _is_open(line: str) -> bool:
    """Return whether a quoted cell goes on after the line."""
    try:
        next(csv.reader([line], strict=True))
    except csv.Error as err:
        return "unexpected end of data" in str(err)
    return False


def read_csv(path: Path, types: Mapping[str, pa.DataType], *, source: str, may_be_empty: bool = False) -> pa.Table:
    """Return the named columns of a CSV file, in the order of `types`. An empty cell is null, `""` is an empty text.

    Args:
        types: column name to type; every one of them is in the header.
        source: what to call the file in messages.
        may_be_empty: whether a header line without rows is accepted.

    Raises:
        DataError: `format.csv` (rows of unequal length, quotes that are not closed, NUL, not UTF-8), `schema.type` (a value that is
            not of its column's type), `data.empty`.
    """
    scan(path, source=source)
    header = read_header(path, source=source)
    try:
        table = _parse(path, header, types, use_threads=True)
    except pa.ArrowInvalid:
        # Only a single thread knows the number of the row that is wrong.
        try:
            table = _parse(path, header, types, use_threads=False)
        except pa.ArrowInvalid as err:
            raise _explained(str(err), path, header, types, source=source) from err
    if table.num_rows == 0 and not may_be_empty:
        raise DataError("data.empty", f"{source} has a header line and no rows", hint="see whether the source was written")
    return table


def _parse(path: Path, header: list[str], types: Mapping[str, pa.DataType], *, use_threads: bool) -> pa.Table:
    return pa_csv.read_csv(
        path,
        # The header is taken from us, so that a header line with a closing comma cannot rename columns.
        read_options=pa_csv.ReadOptions(use_threads=use_threads, column_names=header, skip_rows=1),
        parse_options=pa_csv.ParseOptions(newlines_in_values=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict(types),
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def scan(path: Path, *, source: str) -> None:
    """Look for NULs, bytes that are not UTF-8, carriage returns without a line feed and quotes that are not closed on their line.

    Raises:
        DataError: `format.csv`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, odd, ends_in_return = 1, False, False
    with path.open("rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK_BYTES), b""):
            if (position := chunk.find(b"\0")) >= 0:
                raise _malformed(source, line + chunk.count(b"\n", 0, position), "a NUL byte", "export the file again as text")
            _decode(decoder, chunk, line, source=source)
            if ends_in_return and not chunk.startswith(b"\n"):
                raise _lone_return(source, line)
            if (found := LONE_RETURN.search(chunk)) is not None:
                raise _lone_return(source, line + chunk.count(b"\n", 0, found.start()))
            ends_in_return = chunk.endswith(b"\r")
            if b'"' in chunk or odd:
                odd = _check_quotes(chunk, line, odd=odd, source=source)
            line += chunk.count(b"\n")
    _decode(decoder, b"", line, source=source)
    if ends_in_return:
        raise _lone_return(source, line)
    if odd:
        raise _unclosed(source, line)


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, line: int, *, source: str) -> None:
    """Raise where the next chunk (an empty one: the file's end) is not UTF-8."""
    try:
        decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as err:
        at = line + err.object.count(b"\n", 0, err.start)
        raise _malformed(source, at, not_utf8(err.object[err.start]), SAVE_AS_UTF8) from err


def _check_quotes(chunk: bytes, line: int, *, odd: bool, source: str) -> bool:
    """Raise where a line ends within quotes; return whether the chunk does."""
    codes = np.frombuffer(chunk, dtype=np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    line_ends = np.flatnonzero(codes == ord("\n"))
    inside = (np.searchsorted(quotes, line_ends) + odd) % 2 == 1
    if inside.any():
        raise _unclosed(source, line + int(np.argmax(inside)))
    return bool((len(quotes) + odd) % 2)


def _explained(message: str, path: Path, header: list[str], types: Mapping[str, pa.DataType], *, source: str) -> DataError:
    if found := RAGGED.search(message):
        number, cells, expected = (int(found[key]) for key in ("row", "found", "expected"))
        line = _line_of(path, number)
        is_empty = _line_at(path, line).rstrip(b"\r\n").endswith(b"," * max(cells - expected, 1))
        return unequal_row(source, line, cells, expected, is_empty=is_empty)
    if found := CONVERSION.search(message):
        name = header[int(found["column"])]
        value, kind = INVALID_VALUE.search(found["reason"]), type_name(types[name])
        what = f"{shown(value['value'])} is not of type {kind}" if value else found["reason"].split(". ")[0]
        return DataError(
            "schema.type",
            f"{source}, line {_line_of(path, int(found['row']))}, column {shown(name)}: {what}",
            hint=f"correct the value, or the column's type in the YAML{type_hint(value['value'] if value else None, kind)}",
        )
    if TOO_LONG in message:
        hint = "shorten its values, or write JSON lines or Parquet"
        return _malformed(source, _long_line(path), f"longer than {BLOCK_BYTES:,} bytes", hint)
    return DataError("format.csv", f"{source}: {message.splitlines()[0]}", hint="write the file again")


def unequal_row(source: str, line: int, cells: int, expected: int, *, is_empty: bool = False) -> DataError:
    """Return the error of a row with another number of cells than columns; `is_empty`: cells behind the last column are empty."""
    hint = DELETE_COLUMNS if is_empty else "quote cells that hold a comma"
    if cells < expected:
        hint = "complete the row; at the end of a file it is cut off: write the file again"
    return _malformed(source, line, f"{cells} cells in a row of {expected} columns", hint)


def _long_line(path: Path) -> int:
    """Return the number of the first line that is longer than a block; of one that has no end, no more than a part is in memory."""
    number, length = 1, 0
    with path.open("rb") as stream:
        while part := stream.readline(BLOCK_BYTES):
            length += len(part)
            if length > BLOCK_BYTES:
                return number
            if part.endswith(b"\n"):
                number, length = number + 1, 0
    return number


def _line_of(path: Path, row: int) -> int:
    """Return the line of Arrow's row number, which counts the header and no blank lines."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            row -= bool(line.strip(b"\r\n"))
            if row == 0:
                return number
    return 0


def _line_at(path: Path, number: int) -> bytes:
    with path.open("rb") as stream:
        return next(itertools.islice(stream, number - 1, None), b"")


def _lone_return(source: str, line: int) -> DataError:
    hint = "end lines in LF or CRLF; a value may not contain a carriage return"
    return _malformed(source, line, "a carriage return (CR) that no line feed (LF) follows", hint)


def _unclosed(source: str, line: int) -> DataError:
    return _malformed(source, line, "a quote is not closed on its line", "close it; a value may not span lines")


def _malformed(source: str, line: int, what: str, hint: str) -> DataError:
    return DataError("format.csv", f"{source}, line {line}: {what}", hint=hint)
