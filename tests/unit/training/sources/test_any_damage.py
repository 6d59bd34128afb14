"""A file with any damage is read, or refused with a code: no error of a library gets through."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from training.errors import DataError
from training.sources.interface import SourceWindow
from training.sources.registry import source_of
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column

TYPES = {"id": "int64", "x": "double", "t": "timestamp", "s": "string", "d": "date", "b": "boolean", "i": "int8", "f": "float"}
LIMIT = 10**7
NASTY = (
    *("9223372036854775808", "1e400", "NaN", "-0.0", "null", '""', "\\ud800", "2026-13-01", "9999999-01-01", "2026-01-31T25:00:00Z"),
    *("{}", "[1", '"\\u0000"', "tru", "1_000", "0x10", "١", "1.", "+1", "0000-01-01", "1e-400", "\ufeff", "128", '{"a":1}', "\0", "\r"),
)


def sound(kind: str) -> bytes:
    """Return a file of three rows."""
    if kind == "csv":
        return (",".join(TYPES) + "\n" + '1,1.5,2026-01-31T06:00:00Z,"a, b",2026-01-31,true,3,2.5\n' * 3).encode()
    row = '{"id": 1, "x": 1.5, "t": "2026-01-31T06:00:00Z", "s": "a", "d": "2026-01-31", "b": true, "i": 3, "f": 2.5}\n'
    return row.encode() * 3


def damaged(content: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice([1, 1, 2])):
        at = chance.randrange(len(content) + 1)
        match chance.choice(["flip", "cut", "insert", "repeat"]):
            case "flip":
                content = content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
            case "cut":
                content = content[:at]
            case "insert":
                content = content[:at] + chance.choice(NASTY).encode() + content[at + chance.choice([0, 1, 4]) :]
            case "repeat":
                content = content[:at] + content[at // 2 :]
    return content


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_four_hundred_damaged_files_are_read_or_refused_with_a_code(tmp_path: Path, kind: str) -> None:
    columns = {name: Column(type=column) for name, column in TYPES.items()}
    path = tmp_path / f"a.{kind}"
    contract = TableContract(name="t", kind=kind, uri=path.as_uri(), columns=columns)
    (tmp_path / "scratch").mkdir()
    chance, refused = random.Random(13), 0  # noqa: S311 - test data
    for _ in range(400):
        path.write_bytes(damaged(sound(kind), chance))
        try:
            source = source_of(contract)
            (part,) = source.list(SourceWindow(None, None, datetime(2026, 2, 1, tzinfo=UTC)))
            rows = read_rows(contract, source.read(part, tmp_path / "scratch", limit_bytes=LIMIT), source=path.name, limit_bytes=LIMIT)
            assert set(rows.column_names) <= TYPES.keys()
        except DataError:
            refused += 1
    assert 100 < refused < 400
