"""Results of attempts, for what is done with them in a store."""

from __future__ import annotations

from training.contracts import RunIdentity, StageResult


def result_of(attempt_id: str) -> StageResult:
    """Return what an attempt of a training commits."""
    return StageResult(
        pipeline="p",
        stage="train",
        work_id="f" * 64,
        artifact_uri="u",
        digest="d",
        run=RunIdentity(dag_id="p", run_id="r", task_id="train"),
        attempt_id=attempt_id,
        attempts=1,
        committed_at="2026-01-01T00:00:00+00:00",
    )
