"""Tables and the notice of a generated page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

NOTICE: Final = "<!-- Generated from the source by `make reference`. Do not edit. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text as code, also where it contains backticks; a table's bar is escaped by `cell`."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""
