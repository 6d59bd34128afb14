"""A note on each run of a pipeline with its outcome in one line: the decision with its reasons, or the task that failed and why.

And a note on each of its tasks that left a report or a page of MLflow's: links, which Airflow shows in the header of the task's page. The
links of operators are on another tab there.

A task cannot write the note of its own run, so a listener does, in the process that ends the run: the scheduler. It writes in the
scheduler's own transaction: a second one would wait for the row of the run, which the scheduler has locked.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.listeners import hookimpl
from sqlalchemy import select

from training.contracts import JsonObject
from training.sanitizing import for_markdown, masked
from training.spec.rules.names import APPROVAL_SUFFIX, HELPER_SUFFIXES, HOUSEKEEPING, PIPELINE_TAG, ROLLBACK

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

logger = logging.getLogger("nightshift.airflow_ext.run_notes")

RETURN_VALUE: Final = "return_value"
FAILURE: Final = "failure"
"""Key in XCom of what a failed try said: `operators.failure_message` writes it."""
ASKED_BY: Final = "asked_by"
"""Key in XCom of the run that an approval was asked for: `operators.approval` writes it."""
MAX_CHARS: Final = 1000
"""Airflow's limit of a note."""
DECIDES: Final = ("promote", ROLLBACK, "tune")
"""Tasks whose result is the outcome of a run; the first that is there counts."""
RESOLVE: Final = "resolve"
LINKS: Final[Mapping[str, str]] = {"_link_ReportLink": "Report", "_link_MlflowLink": "MLflow", "_link_ReusedFromLink": "Reused from"}
"""Keys in XCom of the links of `airflow_ext.links` that the note of a task has, in this order, to their names."""
_LINK_URL: Final = re.compile(r"(https?:/)?/[^\s()<>\[\]]*")
HOUSEKEEPING_TASKS: Final = ("repair", "collect", "clean")


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """Note what a run decided."""
    del msg
    _note(dag_run, is_failed=False)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Note which task failed, and why."""
    del msg
    _note(dag_run, is_failed=True)


def housekeeping_line(returned: JsonObject) -> str:
    """Return what a run of housekeeping did in one line.

    Args:
        returned: task to the value that it returned; a task that had nothing to do is not there.
    """
    repaired, collected, cleaned = (returned.get(task) for task in HOUSEKEEPING_TASKS)
    scalars = repaired.get("scalars") if isinstance(repaired, Mapping) else None
    parts = []
    if isinstance(scalars, Mapping):
        parts.append(f"models compared with MLflow: {scalars.get('models')}")
    if isinstance(collected, Mapping) and collected.get("deleted"):
        parts.append(f"{_megabytes(collected.get('deleted'))} deleted from the store")
    if isinstance(cleaned, int) and cleaned:
        parts.append(f"{_megabytes(cleaned)} of old logs and pages deleted")
    return "; ".join(parts) or "nothing to do"


def failure_line(failures: Mapping[str, str | None]) -> str:
    """Return the failed tasks in one line.

    Args:
        failures: task to the text of its error; None where it left none.
    """
    parts = [f"{task}: {words}" if words else task for task, words in failures.items()]
    return f"failed in {'; '.join(parts)}" if parts else "failed"


def _note(dag_run: DagRun, *, is_failed: bool) -> None:
    from sqlalchemy.orm import object_session

    try:
        session = object_session(dag_run)
        if session is None or not is_ours(session, dag_run.dag_id):
            return
        _note_links(session, dag_run)
        known = dag_run.dag_run_note
        if known is not None and known.user_id is not None:
            # A person's words stay.
            return
        line = failure_line(_failures(session, dag_run)) if is_failed else _decision(session, dag_run)
        if line:
            # Without NUL, which PostgreSQL refuses, and half a surrogate pair: the scheduler's whole transaction would fail.
            dag_run.note = for_markdown(masked(line))[:MAX_CHARS]
            _note_answer(session, dag_run)
    except Exception:
        # The note is for people: nothing that the scheduler does may depend on it.
        logger.exception("no note for run %s of %s", dag_run.run_id, dag_run.dag_id)


def _note_answer(session: Session, dag_run: DagRun) -> None:
    """Replace the note of the run that asked for an approval: it says that one is needed. The new one repeats the request's reasons."""
    from airflow.models.dagrun import DagRun

    asked_by = _returned(session, dag_run, "promote", ASKED_BY)
    if not dag_run.dag_id.endswith(APPROVAL_SUFFIX) or not isinstance(asked_by, str):
        return
    owner = dag_run.dag_id.removesuffix(APPROVAL_SUFFIX)
    run = session.scalar(select(DagRun).where(DagRun.dag_id == owner, DagRun.run_id == asked_by))
    known = None if run is None else run.dag_run_note
    if run is None or known is None or known.user_id is not None:
        return
    run.note = dag_run.note


def links_line(urls: Mapping[str, object]) -> str:
    """Return links in Markdown, in one line.

    Args:
        urls: keys of `LINKS` to what XCom has; what is no URL is left out.
    """
    found = [(name, urls.get(key)) for key, name in LINKS.items()]
    return " · ".join(f"[{name}]({url})" for name, url in found if isinstance(url, str) and _LINK_URL.fullmatch(url))


def _note_links(session: Session, dag_run: DagRun) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel

    asked = select(XComModel.task_id, XComModel.key, XComModel.value).where(
        XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.key.in_(LINKS), XComModel.map_index == -1
    )
    by_task: dict[str, dict[str, object]] = {}
    for task_id, key, value in session.execute(asked):
        by_task.setdefault(task_id, {})[key] = _loaded(value)
    tasks = select(TaskInstance).where(
        TaskInstance.dag_id == dag_run.dag_id,
        TaskInstance.run_id == dag_run.run_id,
        TaskInstance.task_id.in_(by_task),
        TaskInstance.map_index == -1,
    )
    for task in session.scalars(tasks):
        line = links_line(by_task[task.task_id])
        known = task.task_instance_note
        if line and len(line) <= MAX_CHARS and (known is None or known.user_id is None):
            task.note = line


def is_ours(session: Session, dag_id: str) -> bool:
    """Return whether a DAG is of a pipeline, a helper DAG of one, or serves all models."""
    from airflow.models.dag import DagTag

    owner = next((dag_id.removesuffix(suffix) for suffix in HELPER_SUFFIXES if dag_id.endswith(suffix)), dag_id)
    tagged = select(DagTag.dag_id).where(DagTag.dag_id == owner, DagTag.name == PIPELINE_TAG)
    return dag_id in (ROLLBACK, HOUSEKEEPING) or session.scalar(tagged) is not None


def _megabytes(size: Any) -> str:
    return f"{size / 1e6:.1f} MB" if isinstance(size, int) else "nothing"


def _decision(session: Session, dag_run: DagRun) -> str:
    if dag_run.dag_id == HOUSEKEEPING:
        found = ((task, _returned(session, dag_run, task, RETURN_VALUE)) for task in HOUSEKEEPING_TASKS)
        return housekeeping_line({task: value for task, value in found if value is not None})
    decided = next((value for task_id in DECIDES if isinstance(value := _returned(session, dag_run, task_id, RETURN_VALUE), Mapping)), {})
    scalars = decided.get("scalars")
    if isinstance(scalars, Mapping):
        return str(scalars["headline"])
    # A canary's run that found no canary ends well, without a decision.
    why = _returned(session, dag_run, RESOLVE, FAILURE)
    if isinstance(why, str):
        return f"nothing to do: {why}"
    # Nor one that may not promote.
    why = _returned(session, dag_run, DECIDES[0], FAILURE)
    return f"not decided: {why}" if isinstance(why, str) else ""


def _failures(session: Session, dag_run: DagRun) -> dict[str, str | None]:
    from airflow.models.taskinstance import TaskInstance

    asked = select(TaskInstance.task_id).where(
        TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id, TaskInstance.state == "failed"
    )
    found: dict[str, str | None] = {}
    for task_id in session.scalars(asked.order_by(TaskInstance.end_date)):
        words = _returned(session, dag_run, task_id, FAILURE)
        found[task_id] = words if isinstance(words, str) else None
    return found


def _returned(session: Session, dag_run: DagRun, task_id: str, key: str) -> Any:
    from airflow.models.xcom import XComModel

    asked = select(XComModel.value).where(
        XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.task_id == task_id, XComModel.key == key
    )
    return _loaded(session.scalar(asked.limit(1)))


def _loaded(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
