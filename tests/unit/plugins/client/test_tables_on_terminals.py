"""Tables for people: as wide as the terminal, and whole for programs."""

from __future__ import annotations

import sys

import pytest

from nightshift.client.query_command import print_table

ROWS = [("pipeline", "note"), ("flights", "failed in train: " + "x" * 300)]


@pytest.mark.parametrize(("is_terminal", "widths"), [(True, [14, 40]), (False, [14, 327])])
def test_a_long_note_is_cut_at_the_width_of_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], widths: list[int], *, is_terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_table(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert list(map(len, lines)) == widths
    assert lines[1].endswith("…") is is_terminal
