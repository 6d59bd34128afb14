"""A model's decisions as a table: columns side by side, and below each row why, wrapped to the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

from training.escapes import for_terminal
from training.registry.ledger import Entry
from training.registry.verdicts import verdict

COLUMNS: Final = ("decided (UTC)", "version", "outcome", "what moved", "by")
INDENT: Final = "    "
LEAST_WIDTH: Final = 60
"""Narrower terminals wrap the lines themselves."""


def history_lines(history: Sequence[Entry], width: int | None = None, *, retraining: Sequence[str] = ()) -> list[str]:
    """Return the table's lines, and below them those of `retraining`.

    Args:
        width: in characters; None: the terminal's. Output that goes elsewhere is not wrapped: a line of reasons is one line there.
    """
    if width is None and sys.stdout.isatty():
        width = max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    rows = [COLUMNS, *(_cells(entry) for entry in history)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [_row(rows[0], widths, width)]
    for entry, row in zip(history, rows[1:], strict=True):
        lines += [_row(row, widths, width), *_reasons(entry, width)]
    return [*lines, "", *(f"  {line}" for line in retraining)] if retraining else lines


def _cells(entry: Entry) -> tuple[str, ...]:
    version = f"{entry.version} ({entry.semantic_version})" if entry.semantic_version else entry.version
    version += ", deleted" if entry.deleted_at is not None else ""
    return f"{entry.decided_at:%Y-%m-%d %H:%M}", version, entry.outcome, entry.action.replace("_", " "), for_terminal(entry.decided_by)


def _row(row: Sequence[str], widths: Sequence[int], width: int | None) -> str:
    line = "  " + "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip()
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _reasons(entry: Entry, width: int | None) -> list[str]:
    lines: list[str] = []
    for reason in entry.reasons:
        text = f"{verdict(reason)} {for_terminal(str(reason['gate']))}: {for_terminal(str(reason['words']))}"
        wrapped = textwrap.wrap(text, width - len(INDENT), subsequent_indent="  ") if width else [text]
        lines += [INDENT + line for line in wrapped]
    return lines
