"""JSON lines read strictly: one object per line, the same keys on every line, and values of their columns' declared types.

A value is never converted from one JSON type to another: "1" is no number and 1 is no text. A column with words for missing values alone
may have numbers as texts too. Dates and times are texts in the form that CSV files have. Rows are read in batches of limited size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NoReturn

import pyarrow as pa

from training.contracts import JsonObject
from training.errors import DataError, shown
from training.sources.arrow_schema import type_hint, type_name
from training.sources.content import not_utf8

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of text: a batch ends with the line that reaches it."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
LINES_HINT: Final = 'write one JSON object per line, {"id": 1, "name": "a"}, and nothing between the lines'
ARRAY_HINT: Final = "the file is an array: make a line of each of its objects (jq -c '.[]' FILE > rows.jsonl)"
TEXTS: Final = frozenset({"string", "date", "timestamp"})
ACCEPTED: Final[Mapping[str, frozenset[type]]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), frozenset({int})),
    **dict.fromkeys(("float", "double"), frozenset({int, float})),
    **dict.fromkeys(TEXTS, frozenset({str})),
    "boolean": frozenset({bool}),
}
"""Python's type of a JSON value, by the type of its column; null is of every type, for validation to judge."""

INFINITIES: Final = (math.inf, -math.inf)
"""Of `1e999`, which is JSON."""

Line = tuple[int, bytes]
"""Number, from 1, and content with its line end."""


def first_keys(path: Path, *, source: str) -> list[str] | None:
    """Return the keys of a file's first object, in its order; None, no line has an object.

    Args:
        source: what to call the file in messages.

    Raises:
        DataError: `format.jsonl`.
    """
    for number, line in _lines(path, source=source):
        return list(_parsed(number, line, source=source))
    return None


def read_jsonl(
    path: Path, keys: Sequence[str], types: Mapping[str, pa.DataType], *, source: str, as_texts: Mapping[str, str] = MappingProxyType({})
) -> pa.RecordBatchReader:
    """Return a stream of the named columns, in the order of `types`; lines without anything but white space are skipped.

    Args:
        keys: those of the first object; every object must have exactly these, in any order.
        types: column name to type; every one of them is in `keys`.
        source: what to call the file in messages.
        as_texts: columns of texts to a type whose values are read as the texts that JSON has for them: `1.5` beside `"n/a"`.

    Raises:
        DataError: while the stream is read: `format.jsonl` (not one JSON object per line, not UTF-8, a key that is missing, not expected
            or there twice, a line of more than 16 MiB), `schema.type` (a value that is not of its column's type).
    """
    schema = pa.schema(list(types.items()))
    return pa.RecordBatchReader.from_batches(schema, _batches(path, frozenset(keys), schema, as_texts, source=source))


def _batches(path: Path, keys: frozenset[str], schema: pa.Schema, as_texts: Mapping[str, str], *, source: str) -> Iterator[pa.RecordBatch]:
    rows: list[JsonObject] = []
    numbers: list[int] = []
    size_bytes = 0
    for number, line in _lines(path, source=source):
        row = _parsed(number, line, source=source)
        if row.keys() != keys:
            raise _other_keys(number, keys, row, source=source)
        rows.append(row)
        numbers.append(number)
        size_bytes += len(line)
        if size_bytes >= BATCH_BYTES:
            yield _batch(rows, numbers, schema, as_texts, source=source)
            rows, numbers, size_bytes = [], [], 0
    if rows:
        yield _batch(rows, numbers, schema, as_texts, source=source)


def _lines(path: Path, *, source: str) -> Iterator[Line]:
    with path.open("rb") as stream:
        _skip_byte_order_mark(stream)
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise _malformed(source, number, f"longer than {MAX_LINE_BYTES:,} bytes", "write one object per line, ended by a line feed")
            if not line.isspace():
                yield number, line


def _skip_byte_order_mark(stream: BinaryIO) -> None:
    if stream.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
        stream.seek(0)


def _parsed(number: int, line: bytes, *, source: str) -> JsonObject:
    """Return the object of a line."""
    try:
        found = DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise _malformed(source, number, not_utf8(line[err.start]), "save the file as UTF-8") from err
    except json.JSONDecodeError as err:
        hint = ARRAY_HINT if number == 1 and line.lstrip().startswith(b"[") else LINES_HINT
        raise _malformed(source, number, f"not JSON: {err.msg} at character {err.pos + 1}", hint) from err
    except RecursionError as err:
        raise _malformed(source, number, "values are nested too deeply", "write plain values") from err
    except ValueError as err:
        raise _malformed(source, number, str(err), "correct the line") from err
    if not isinstance(found, dict):
        hint = ARRAY_HINT if number == 1 and isinstance(found, list) else "write one object per line, with a key for each column"
        raise _malformed(source, number, f"{_in_json(found)} is not a JSON object", hint)
    return found


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shown(key)} appears twice")
            seen.add(key)
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON; write null for a number that is missing")


DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)


def _batch(rows: list[JsonObject], numbers: list[int], schema: pa.Schema, as_texts: Mapping[str, str], *, source: str) -> pa.RecordBatch:
    columns = []
    for field in schema:
        values: list[Any] = [row[field.name] for row in rows]
        if (kind := as_texts.get(field.name)) is not None:
            values = [json.dumps(value) if type(value) in ACCEPTED[kind] and value not in INFINITIES else value for value in values]
        try:
            columns.append(_column(values, field.type))
        except (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError) as err:
            raise _wrong_type(values, numbers, field, as_texts, source=source) from err
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array.

    Raises:
        TypeError, OverflowError, UnicodeEncodeError, pa.ArrowException: a value is not of the type.
    """
    name = type_name(kind)
    if not set(map(type, values)) <= ACCEPTED[name] | {type(None)}:
        raise TypeError
    if name in ("float", "double"):
        return _floats(values, kind)
    if name in ("date", "timestamp"):
        # The parser of Arrow's CSV reader: a time needs an offset.
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _floats(values: list[Any], kind: pa.DataType) -> pa.Array:
    numbers = [None if value is None else float(value) for value in values]
    found = pa.array(numbers, pa.float64())
    found = found if kind == pa.float64() else found.cast(kind)
    # 1e999 is JSON, and too large for a number: no text of JSON is an infinity.
    if any(value is not None and not math.isfinite(value) for value in (numbers if kind == pa.float64() else found.to_pylist())):
        raise OverflowError
    return found


def _wrong_type(values: list[Any], numbers: list[int], field: pa.Field, as_texts: Mapping[str, str], *, source: str) -> DataError:
    """Return the error of the first value that is not of the column's type."""
    kind = as_texts.get(field.name, type_name(field.type))
    for value, number in zip(values, numbers, strict=True):
        try:
            _column([value], field.type)
        except (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError):
            what = f"{_in_json(value)} is not of type {kind}"
            hint = f"correct the value, or the column's type in the YAML{type_hint(value if isinstance(value, str) else None, kind)}"
            return DataError("schema.type", f"{source}, line {number}, column {shown(field.name)}: {what}", hint=hint)
    return DataError(
        "schema.type",
        f"{source}, lines {numbers[0]} to {numbers[-1]}, column {shown(field.name)}: not of type {kind}",
        hint="correct the values, or the column's type in the YAML",
    )


def _in_json(value: object) -> str:
    """Return a value as messages show it, nested ones by their kind."""
    if isinstance(value, dict):
        return "a nested object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return shown(json.dumps(value)) if not isinstance(value, str) else shown(value)


def _other_keys(number: int, keys: frozenset[str], row: JsonObject, *, source: str) -> DataError:
    missing, more = sorted(keys - row.keys()), sorted(row.keys() - keys)
    if missing:
        what, hint = f"the key {shown(missing[0])} is missing", "every line has the keys of the first one; write null for a missing value"
    else:
        what, hint = f"the key {shown(more[0])} is not on the first line", "every line has the keys of the first one"
    return _malformed(source, number, what, hint)


def _malformed(source: str, line: int, what: str, hint: str) -> DataError:
    return DataError("format.jsonl", f"{source}, line {line}: {what}", hint=hint)
