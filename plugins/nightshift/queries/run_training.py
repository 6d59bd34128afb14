"""The training of a run, as far as readers of its metrics have to know: which run trained, and whether it still does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow.models import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import select

from nightshift.queries.runs import RETURN_VALUE, airflow_session, dag_run
from training.contracts import ContractError, require_result
from training.store.metric_journal import journal_name

TRAIN: Final = "train"
ENDED_RUN: Final = frozenset({"success", "failed"})
ENDED_TASK: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
NO_RUN: Final = frozenset({"", ".", ".."})


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training, of a run or of a trial."""

    journals: tuple[str, ...]
    """Names of journals of metrics in the pipeline, of which the first one with points counts. None: it is not known yet."""
    has_ended: bool
    """No attempt is under way or to come."""


def training(pipeline: str, run_id: str, stage: str = TRAIN) -> Training:
    """Return the training of a run, or its refit.

    Raises:
        DeniedError: `run.unknown`.
        UnavailableError: `airflow.database`.
    """
    with airflow_session() as session:
        found = dag_run(session, pipeline, run_id)
        of_task = {"dag_id": pipeline, "run_id": run_id, "task_id": stage, "map_index": -1}
        state = session.scalar(select(TaskInstance.state).filter_by(**of_task))
        value = session.scalar(select(XComModel.value).filter_by(**of_task, key=RETURN_VALUE))
        has_ended = found.state in ENDED_RUN or state in ENDED_TASK
    # Its own; where it has none, that of the earlier run whose training was found.
    makers = dict.fromkeys([run_id, _maker(value, stage) or run_id])
    journals = tuple(filter(None, (journal_name(stage, maker, {}) for maker in makers)))
    return Training(journals=journals, has_ended=has_ended)


def _maker(value: Any, stage: str) -> str | None:
    # Users of Airflow's API may write XCom: a text that names no run of the pipeline is of no account.
    try:
        found = json.loads(value) if isinstance(value, str) else value
        run_id = require_result(found, stage=stage).run.run_id if isinstance(found, Mapping) else ""
    except (ContractError, ValueError):
        return None
    return None if run_id in NO_RUN or "/" in run_id else run_id
