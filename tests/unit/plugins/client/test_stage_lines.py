"""The line of a run's stage."""

from __future__ import annotations

from typing import Any

import pytest

from nightshift.client.runs_command import stage_line
from nightshift.queries.schemas import Run, StageRun


@pytest.mark.parametrize(
    ("warnings", "reused_from", "end"),
    [
        (0, None, "rows 9, checks 7, warnings 0"),
        (2, None, "rows 9, checks 7, warnings 2 (in words: nightshift logs shop:scheduled__2026-02-01T02:00:00+00:00 validate)"),
        (2, "n1", "reused from n1, rows 9, checks 7, warnings 2"),
    ],
)
def test_warnings_name_the_command_that_prints_their_words(warnings: int, reused_from: str | None, end: str) -> None:
    known: dict[str, Any] = {"name": "validate", "state": "success", "seconds": 2.0, "progress": None, "waits_for": None}
    scalars = {"rows": 9, "checks": 7, "warnings": warnings}
    stage = StageRun.model_construct(**known, reused_from=reused_from, scalars=scalars)
    run: dict[str, Any] = {"pipeline": "shop", "run_id": "scheduled__2026-02-01T02:00:00+00:00"}
    assert stage_line(stage, Run.model_construct(**run)).endswith(f"  {end}")
