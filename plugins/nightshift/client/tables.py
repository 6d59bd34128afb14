"""Tables for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from training.escapes import for_terminal


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, the first one being the heads; on a terminal, lines are cut at its width."""
    cells = [[for_terminal(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        line = "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip()
        sys.stdout.write((line[: shutil.get_terminal_size().columns] if sys.stdout.isatty() else line) + "\n")
