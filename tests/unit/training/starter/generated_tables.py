"""Tables with the oddities of files in the wild, each made from a seed: the same files on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

START = datetime(2026, 1, 1, tzinfo=UTC)
LABEL = "outcome"
NUM_ROWS = (40, 90)
FORMATS = ("csv", "jsonl", "parquet")

Cell = Callable[[random.Random, int], Any]
"""Of a row's number to its value: in text files as it is written there."""

TEXTS: dict[str, Cell] = {
    "integer": lambda chance, _row: chance.randrange(-50, 50),
    "large": lambda chance, _row: chance.choice([2**63 - 1, -(2**63), 2**53 + 1, 0]),
    "too_large": lambda chance, _row: chance.choice([2**63, 2**64 - 1, 10**25, 1]),
    "zeros": lambda chance, _row: f"{chance.randrange(500):05d}",
    "signed": lambda chance, _row: chance.choice(["+1", "-1", "1", "-0"]),
    "number": lambda chance, _row: round(chance.gauss(0, 3), 3),
    "odd_number": lambda chance, _row: chance.choice(["1.", ".5", "1e5", "1E-3", "-0.0", "1e400", "+1.5", "1_000"]),
    "infinite": lambda chance, _row: chance.choice(["inf", "-Infinity", "NaN", "nan", "1.5"]),
    "grouped": lambda chance, _row: chance.choice(["1,234.5", "1.234,5", "12 %", "€ 3.50", "$1"]),
    "boolean": lambda chance, _row: chance.choice(["true", "false"]),
    "odd_boolean": lambda chance, _row: chance.choice(["True", "FALSE", "tRuE", "false"]),
    "yes": lambda chance, _row: chance.choice(["yes", "No", "Y", "n ", "yes."]),
    "marked": lambda chance, _row: chance.choice([1.5, 2, 3, "NA"]),
    "two_markers": lambda chance, _row: chance.choice([1.5, 2, "N/A", "-"]),
    "day": lambda chance, _row: (START + timedelta(days=chance.randrange(900))).strftime("%Y-%m-%d"),
    "odd_day": lambda chance, _row: chance.choice(["2026-02-30", "0000-01-01", "9999-12-31", "2026-1-5", "0001-01-01"]),
    "early_day": lambda chance, _row: chance.choice(["1500-01-01", "0001-01-01", "9999-12-31"]),
    "slash_day": lambda chance, _row: chance.choice(["31/01/2026", "15/03/2026"]),
    "instant": lambda chance, _row: (START + timedelta(seconds=chance.randrange(10**7))).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "odd_instant": lambda chance, _row: chance.choice(
        ["2026-01-01T00:00:00Z", "2026-01-01 05:30:00+05:30", "2026-01-01T00:00:00.123456+01", "2026-01-01 10:00-0500", "2026-01-01T10:00Z"]
    ),
    "fine_instant": lambda chance, _row: chance.choice(["2026-01-01T00:00:00.1234567Z", "2026-01-01T00:00:00.123456789Z"]),
    "small_letters": lambda _chance, _row: "2026-01-01t00:00:00z",
    "leap_second": lambda chance, _row: chance.choice(["2026-06-30T23:59:60Z", "2026-06-30T24:00:00Z", "2026-06-30T10:00:00Z"]),
    "early_instant": lambda chance, _row: chance.choice(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1677-01-01T00:00:00Z"]),
    "local": lambda chance, _row: (START + timedelta(seconds=chance.randrange(10**7))).strftime("%Y-%m-%d %H:%M:%S"),
    "epoch": lambda chance, _row: 1_767_225_600 + chance.randrange(10**6),
    "text": lambda chance, _row: chance.choice(["a", "B", "ä", "日本", "x y", "", " lead", "trail ", "null", "None"]),
    "quoted": lambda chance, _row: chance.choice(['a,"b"', "it's", '"', "a;b", "a\tb"]),
    "long": lambda chance, _row: "x" * chance.randrange(1, 3000),
    "empty": lambda _chance, _row: None,
    "constant": lambda _chance, _row: "same",
    "id": lambda _chance, row: 1000 + row,
    "uuid": lambda chance, _row: f"{chance.getrandbits(128):032x}",
    "mixed": lambda chance, _row: chance.choice([1, "a", 2.5, "true"]),
}
OF_JSON: dict[str, Cell] = {
    "json_number": lambda chance, _row: chance.choice([1, 2.5, -0.0, 1e30, 10**20, 2**63]),
    "json_boolean": lambda chance, _row: chance.random() < 0.5,
    "json_mixed": lambda chance, _row: chance.choice([1, "1", True, None]),
    "json_nested": lambda _chance, _row: {"a": [1]},
    "json_text_number": lambda chance, _row: str(chance.randrange(9)),
}
NAMES = ("{}", "{} ", "The {}", "{}.1", "{}/x", "{}~y", "é{}", "select", "{}-%", "{}'s", '{}"q"', "label", "_{}", "1{}")
DAMAGES = {
    "csv": (
        "two_lines",
        "ragged",
        "nul",
        "latin",
        "header_only",
        "closing_comma",
        "blank_lines",
        "crlf",
        "bom",
        "other_header",
        "lone_return",
    ),
    "jsonl": ("absent", "later", "nan", "twice", "array", "blank_lines", "crlf", "bom", "empty_part", "huge", "latin", "infinite"),
    "parquet": ("empty_part", "other_types"),
}
CODES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("blank_lines", "crlf", "bom", "other_types"), ("",)),
    **dict.fromkeys(("header_only", "empty_part"), ("", "data.empty")),
    "closing_comma": ("", "init.columns"),
    "other_header": ("init.time", "init.columns"),
    "huge": ("", "schema.type"),
}
"""By which `init` may refuse a table of a damage, with nothing among them where it may accept it; of all others, `format.` and the form."""


@dataclass(kw_only=True)
class GeneratedTable:
    """Files of a table below a folder, with what is odd about them."""

    path: Path
    form: str
    kinds: dict[str, str]
    damages: list[str] = field(default_factory=list)

    @property
    def codes(self) -> set[str]:
        """As `CODES`."""
        return {code for damage in self.damages for code in CODES.get(damage, (f"format.{self.form}",))} or {""}

    @property
    def words(self) -> str:
        return f"{self.form}, {self.kinds}, {', '.join(self.damages) or 'sound'}"


def generated(seed: int, folder: Path) -> GeneratedTable:
    """Write the table of a seed below a new folder: a file, or a folder of two."""
    chance = random.Random(seed)  # noqa: S311 - test data
    folder.mkdir(parents=True)
    form = chance.choice(FORMATS)
    cells = TEXTS if form == "csv" else {**TEXTS, **OF_JSON}
    if form == "parquet":
        cells = {
            name: cell
            for name, cell in cells.items()
            if name not in ("mixed", "json_mixed", "json_number", "too_large", "marked", "two_markers")
        }
    kinds: dict[str, str] = {}
    for kind in chance.sample(sorted(cells), chance.randrange(2, 6)):
        name = chance.choice(NAMES).format(kind) if chance.random() < 0.3 else kind
        kinds[name] = kind
    is_late = chance.random() < 0.3
    rows = []
    for number in range(chance.randrange(*NUM_ROWS)):
        row: dict[str, Any] = {"ordered_at": (START + timedelta(hours=6 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")}
        for name, kind in kinds.items():
            # A value that comes late: types are found by all rows.
            missing = chance.random() < 0.1 or (is_late and number < 20 and kind != "id")
            row[name] = None if missing and kind != "id" else cells[kind](chance, number)
        row[LABEL] = chance.choice(["kept", "cancelled", "kept"])
        rows.append(row)
    damages = [chance.choice(DAMAGES[form])] if chance.random() < 0.4 else []
    if chance.random() < 0.3:
        half = len(rows) // 2
        path = folder / "orders"
        path.mkdir()
        for part, some in enumerate((rows[:half], rows[half:])):
            _write(path / f"part-{part}.{form}", some, form, damages if part else [], chance)
    else:
        path = folder / f"orders.{form}"
        _write(path, rows, form, damages, chance)
    return GeneratedTable(path=path, form=form, kinds=kinds, damages=damages)


def _write(path: Path, rows: list[dict[str, Any]], form: str, damages: list[str], chance: random.Random) -> None:
    if form == "parquet":
        table = pa.Table.from_pylist(rows)
        if "empty_part" in damages:
            table = table.slice(0, 0)
        if "other_types" in damages:
            table = table.cast(
                pa.schema(
                    [
                        (name, pa.large_string() if kind == pa.string() else kind)
                        for name, kind in zip(table.column_names, table.schema.types, strict=True)
                    ]
                )
            )
        pq.write_table(table, path)
        return
    lines = _csv_lines(rows) if form == "csv" else [json.dumps(row, ensure_ascii=chance.random() < 0.5) for row in rows]
    path.write_bytes(_damaged(lines, damages, chance))


def _csv_lines(rows: list[dict[str, Any]]) -> list[str]:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        return '"' + text.replace('"', '""') + '"' if value == "" or any(sign in text for sign in ',"\n') else text

    return [",".join(map(cell, rows[0])), *(",".join(map(cell, row.values())) for row in rows)]


Rows = list[str]
OF_LINES: dict[str, Callable[[Rows, int], Rows]] = {
    "two_lines": lambda lines, at: [*lines[:at], '"' + lines[at].replace('"', "").replace(",", '\n",', 1), *lines[at + 1 :]],
    "ragged": lambda lines, at: [*lines[:at], f"{lines[at]},1", *lines[at + 1 :]],
    "nul": lambda lines, at: [*lines[:at], f"\0{lines[at]}", *lines[at + 1 :]],
    "header_only": lambda lines, _at: lines[:1],
    "closing_comma": lambda lines, _at: [f"{line}," for line in lines],
    "blank_lines": lambda lines, at: [*lines[:at], "", "", *lines[at:]],
    "bom": lambda lines, _at: [f"\ufeff{lines[0]}", *lines[1:]],
    "other_header": lambda lines, _at: [lines[0].replace("ordered_at", "ordered_on"), *lines[1:]],
    "lone_return": lambda lines, at: [*lines[:at], lines[at].replace(",", "\r,", 1), *lines[at + 1 :]],
    "twice": lambda lines, at: [*lines[:at], lines[at][:-1] + ', "ordered_at": "2026-01-01T00:00:00Z"}', *lines[at + 1 :]],
    "array": lambda lines, at: [*lines[:at], "[1]", *lines[at + 1 :]],
    "empty_part": lambda _lines, _at: [],
}
OF_A_VALUE: dict[str, str] = {"nan": "NaN", "infinite": "Infinity", "huge": "1e999"}


def _damaged(lines: Rows, damages: Sequence[str], chance: random.Random) -> bytes:
    at = chance.randrange(2, len(lines))
    for damage in damages:
        if damage in OF_LINES:
            lines = OF_LINES[damage](lines, at)
        elif damage in ("absent", "later", *OF_A_VALUE):
            row = json.loads(lines[at])
            name = list(row)[1]
            other = {key: value for key, value in row.items() if key != name}
            lines[at] = json.dumps({**row, "later": 1} if damage == "later" else other)
            if damage in OF_A_VALUE:
                lines[at] = f"{lines[at][:-1]}, {json.dumps(name)}: {OF_A_VALUE[damage]}}}"
    end = "\r\n" if "crlf" in damages else "\n"
    data = "".join(line + end for line in lines).encode()
    return data.replace(b"kept", "k\u00e9pt".encode("latin-1"), 3) if "latin" in damages else data
