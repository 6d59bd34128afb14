"""A table of orders, written as a file, and `nightshift init` of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.commands import command

main = command("init")


NUM_ROWS = 600
START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "order_id": 1000 + number,
        "ordered_at": (START + timedelta(hours=2 * number)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "country": ("nl", "de", "fr")[number % 3],
        "items": number % 7 + 1,
        "value": round(1.5 * (number % 11) + 0.25, 2),
        "outcome": ("kept", "cancelled")[int(number % 7 > 4 or number % 13 == 0)],
    }
    for number in range(NUM_ROWS)
]


def with_column(name: str, value: Callable[[int, dict[str, Any]], Any]) -> list[dict[str, Any]]:
    return [{**row, name: value(number, row)} for number, row in enumerate(ROWS)]


def csv_of(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    lines = [",".join(rows[0]), *(",".join("" if value is None else str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def init(file: Path, *options: str, to: Path) -> int:
    return main([str(file), "--time", "ordered_at", "--label", "outcome", "--to", str(to), *options])


def found(file: Path, capsys: pytest.CaptureFixture[str], *options: str, to: Path) -> dict[str, Any]:
    capsys.readouterr()
    assert init(file, "--json", *options, to=to) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def checked_with_data(result: dict[str, Any], file: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run `nightshift check --data` as the output of `init` says."""
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    (variable,) = re.findall(r"\$\{(\w+)\}", yaml)
    monkeypatch.setenv(variable, file.parent.resolve().as_uri())
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(to / "expectations"))
    return command("check")(["--data", "--as-of", result["night"], result["written"]["yaml"]])
