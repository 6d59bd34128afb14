"""Tables for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, the first one being the heads; on a terminal, lines are cut at its width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = one_line("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip())
        sys.stdout.write((line[: shutil.get_terminal_size().columns] if sys.stdout.isatty() else line) + "\n")


def one_line(text: str) -> str:
    """Return the text without what would break the table or control the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
