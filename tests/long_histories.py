"""An installation that has run for long: many models and nights, written row by row without the work that makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from training.contracts import instant_text
from training.database.schema import (
    Base,
    DatasetVersionRow,
    LedgerDecisionRow,
    ModelPipelineRow,
    ModelStandingRow,
    RegisteredVersionRow,
)

FIRST_NIGHT: Final = datetime(2026, 1, 1, 2, tzinfo=UTC)
PROMOTED_EVERY: Final = 7
"""Nights. The night before each of these asks for an approval, which the champion supersedes."""
ROWS: Final = 2000
"""Of a statement."""
EVIDENCE: Final = {
    "metrics": {"auc": 0.7123, "log_loss": 0.4401},
    "slices": [{"slice": f"country {number}", "candidate": 0.7123, "champion": 0.7012, "rows": 1234} for number in range(30)],
}
"""As much JSON as an evaluation leaves, about 3 KB."""
REASONS: Final = [{"gate": "improvement", "passed": True, "words": "auc gain 0.01, required > 0", "severity": "fail", "numbers": {}}] * 6


def pipeline_names(num_models: int) -> list[str]:
    """Return the names of the pipelines; each makes the model of its name."""
    return [f"pipeline_{number:04}" for number in range(num_models)]


def write_histories(engine: Engine, *, num_models: int, num_nights: int) -> None:
    """Add a decision and a version of the data for each night of each model, and the models' standing after the last night.

    `num_nights` is at least `PROMOTED_EVERY`.
    """
    names = pipeline_names(num_models)
    with Session(engine) as session, session.begin():
        _add(session, LedgerDecisionRow, (row for number in range(num_nights) for name in names for row in _decisions(name, number)))
        _add(session, DatasetVersionRow, (_dataset(name, number) for number in range(num_nights) for name in names))
        last = (num_nights - 1) // PROMOTED_EVERY * PROMOTED_EVERY
        _add(session, ModelStandingRow, (_standing(name, last, num_nights) for name in names))
        _add(session, RegisteredVersionRow, (_registration(name, last) for name in names))
        _add(session, ModelPipelineRow, ({"model": name, "pipeline": name} for name in names))


def _add(session: Session, kind: type[Base], rows: Iterator[dict[str, Any]]) -> None:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == ROWS:
            session.execute(insert(kind), chunk)
            chunk = []
    if chunk:
        session.execute(insert(kind), chunk)


def weights_of(number: int) -> str:
    """Return the digest of the weights of a night."""
    return f"{number:064x}"


def _decisions(name: str, number: int) -> Iterator[dict[str, Any]]:
    is_champion = number % PROMOTED_EVERY == 0
    is_request = number % PROMOTED_EVERY == PROMOTED_EVERY - 1
    row = {
        "model": name,
        "decision_key": f"{number:064x}",
        "weights_digest": weights_of(number),
        "version": str(number + 1),
        "semantic_version": f"1.{number}.0",
        "action": "promoted" if is_champion else "recorded",
        "outcome": "accepted" if is_champion else "needs_approval" if is_request else "rejected",
        "reasons": REASONS,
        "evidence": {**EVIDENCE, "pipeline": name, "holder": _holder(number), "weights_digest": weights_of(number)},
        "decided_at": FIRST_NIGHT + timedelta(days=number),
        "decided_by": f"{name}/night/promote/1",
        "request_key": None,
        "revision": number // PROMOTED_EVERY + 1 if is_champion else None,
    }
    yield row
    if is_champion and number:
        ended = f"{number - 1:064x}"
        yield {
            **row,
            "decision_key": f"e{number:063x}",
            "action": "recorded",
            "outcome": "superseded",
            "request_key": ended,
            "revision": None,
        }


def _holder(number: int) -> dict[str, Any]:
    return {
        "version": str(number + 1),
        "semantic_version": f"1.{number}.0",
        "weights_digest": weights_of(number),
        "model_uri": f"file:///store/models/{number}",
        "as_of": instant_text(FIRST_NIGHT + timedelta(days=number)),
        "bounds": {"test": ["2025-12-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"]},
        "since": "",
        "decision_key": f"{number:064x}",
        "artifact_digest": "f" * 64,
    }


def _standing(name: str, last: int, num_nights: int) -> dict[str, Any]:
    num_decisions = num_nights + last // PROMOTED_EVERY
    return {
        "model": name,
        "champion": _holder(last),
        "canary": None,
        "revision": last // PROMOTED_EVERY + 1,
        "mirrored_revision": last // PROMOTED_EVERY + 1,
        "decisions": num_decisions,
        "mirrored_decisions": num_decisions,
        "mirrors": {},
    }


def _registration(name: str, last: int) -> dict[str, Any]:
    return {
        "model": name,
        "weights_digest": weights_of(last),
        "number": str(last + 1),
        "logged_model": f"m-{last}",
        "artifact_digest": "f" * 64,
        "rebuilt_at": None,
    }


def _dataset(name: str, number: int) -> dict[str, Any]:
    return {
        "name": name,
        "version": f"{number:016x}",
        "storage_uri": f"file:///store/{name}/{number}",
        "row_count": 600,
        "size_bytes": 40_000,
        "schema_hash": "a" * 64,
        "split_config": {"by": "time"},
        "split_config_hash": "b" * 64,
        "created_at": FIRST_NIGHT + timedelta(days=number),
        "created_by": f"{name}/night/ingest/1",
    }


def write_runs(names: Sequence[str], *, num_nights: int) -> None:
    """Add pipelines to Airflow's database, each with a run a night that left a note."""
    from airflow.models.dag import DagModel, DagTag  # noqa: TID251 - what the api-server reads
    from airflow.models.dagbundle import DagBundleModel  # noqa: TID251 - as above
    from airflow.models.dagrun import DagRun, DagRunNote  # noqa: TID251 - as above
    from airflow.utils.session import create_session

    from training.spec.rules.names import PIPELINE_TAG

    with create_session() as session:
        if session.get(DagBundleModel, "long") is None:
            session.add(DagBundleModel(name="long"))
            session.flush()
        dag = {"bundle_name": "long", "is_stale": False, "is_paused": False, "timetable_summary": "0 2 * * *", "owners": "airflow"}
        session.add_all(DagModel(dag_id=name, fileloc="x.py", **dag) for name in names)
        session.flush()
        session.execute(insert(DagTag), [{"dag_id": name, "name": PIPELINE_TAG} for name in names])
        for number in range(num_nights):
            night = FIRST_NIGHT + timedelta(days=number)
            run: dict[str, Any] = {"run_id": f"scheduled__{night.isoformat()}", "run_type": "scheduled", "state": "success", "conf": {}}
            run |= {"logical_date": night, "run_after": night, "queued_at": night, "start_date": night, "end_date": night}
            made = session.execute(insert(DagRun.__table__).returning(DagRun.id), [{"dag_id": name, **run} for name in names]).scalars()
            notes = [{"dag_run_id": each, "content": f"rejected: auc +0.1 %, night {number}", "user_id": None} for each in made]
            session.execute(insert(DagRunNote), notes)
