"""Reads an Airflow database of an earlier version with Airflow's own models: python read_airflow_state.py OUT.json

Run with the environment of the services. Each part of the output is what one function found, or {"error": …}. Airflow's models are
imported as the services import them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import structlog
from airflow._shared.module_loading import import_string
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.models.dag_version import DagVersion  # noqa: TID251
from airflow.models.dagrun import DagRun  # noqa: TID251
from airflow.models.deadline import Deadline  # noqa: TID251
from airflow.models.deadline_alert import DeadlineAlert  # noqa: TID251
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251
from airflow.models.taskinstance import TaskInstance  # noqa: TID251
from airflow.models.trigger import Trigger  # noqa: TID251
from airflow.models.xcom import XComModel  # noqa: TID251
from airflow.sdk.execution_time.callback_supervisor import execute_callback
from airflow.serialization.decoders import decode_deadline_reference, smart_decode_trigger_kwargs
from airflow.timetables.base import TimeRestriction
from airflow.triggers.base import BaseTrigger
from airflow.utils.session import create_session
from pendulum import datetime as pendulum_datetime
from sqlalchemy import select
from sqlalchemy.orm import Session

NAME: Final = "cancelled_orders"
ANN: Final = {"id": "ann", "name": "ann"}


def serialised_dags(session: Session) -> list[dict[str, Any]]:
    """Deserialise all versions of all DAGs, as the scheduler and the api-server do."""
    rows = session.scalars(select(SerializedDagModel).join(DagVersion, SerializedDagModel.dag_version_id == DagVersion.id)).all()
    found = []
    for row in rows:
        dag, start = row.dag, pendulum_datetime(2026, 12, 1)
        restriction = TimeRestriction(earliest=start, latest=None, catchup=True)
        info = dag.timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
        found.append(
            {
                "dag_id": dag.dag_id,
                "version": row.dag_version.version_number,
                "tasks": {name: task.pool for name, task in dag.task_dict.items()},
                "stored_timetable": row.data["dag"]["timetable"]["__type"],
                "timetable": type(dag.timetable).__name__,
                "next_run": info.run_after.isoformat() if info else None,
                "links": {name: sorted(task.operator_extra_link_dict) for name, task in dag.task_dict.items()},
            }
        )
    return sorted(found, key=lambda dag: (dag["dag_id"], dag["version"]))


def deadlines(session: Session) -> dict[str, Any]:
    """Evaluate the stored reference for the stored run, as at the creation of a run."""
    (deadline,) = session.scalars(select(Deadline)).all()
    alert = session.get(DeadlineAlert, deadline.deadline_alert_id)
    assert alert is not None
    reference = decode_deadline_reference(alert.reference)
    run = session.get(DagRun, deadline.dagrun_id)
    assert run is not None
    evaluated = reference.evaluate_with(session=session, interval=timedelta(), dag_id=run.dag_id, run_id=run.run_id)
    return {
        "class_path": alert.reference["__class_path"],
        "run": run.run_id,
        "stored": deadline.deadline_time.isoformat(),
        "evaluated": evaluated.isoformat() if evaluated else None,
    }


def missed_deadline(session: Session) -> dict[str, Any]:
    """Miss the stored deadline and execute its callback, as scheduler and executor do."""
    (deadline,) = session.scalars(select(Deadline)).all()
    deadline.handle_miss(session)
    data = deadline.callback.data
    kwargs = json.loads(json.dumps(data["kwargs"], default=str))
    succeeded, message = execute_callback(data["path"], kwargs, "", None, structlog.get_logger())
    return {"path": data["path"], "succeeded": succeeded, "message": message}


def trigger(session: Session) -> dict[str, Any]:
    """Make the stored trigger and run it until it fires, as the triggerer does: once by an answer, once by the end of its time."""
    (row,) = session.scalars(select(Trigger)).all()
    made, event = fired(row, answered=True)
    _, ended = fired(row, answered=False, until=datetime.now(UTC).isoformat())
    return {"class_path": row.classpath, "class": type(made).__name__, "event": event, "after_its_time": ended}


def fired(row: Trigger, *, answered: bool, **changed: str) -> tuple[BaseTrigger, dict[str, Any]]:
    # In the triggerer, Airflow's API answers; here there is no server.
    from nightshift.operators import approval

    response = SimpleNamespace(
        response_received=answered,
        responded_by_user=SimpleNamespace(**ANN),
        chosen_options=["Approve"],
        params_input={},
        responded_at=datetime.now(UTC),
    )
    vars(approval)["get_hitl_detail_content_detail"] = lambda ti_id: response
    kwargs = {**smart_decode_trigger_kwargs(row.kwargs), **changed}
    made: BaseTrigger = import_string(row.classpath)(**kwargs)

    async def first_event() -> Any:
        async for event in made.run():
            return event.payload
        return None

    return made, asyncio.run(asyncio.wait_for(first_event(), 60))


def resumed_task(session: Session) -> dict[str, Any]:
    """Resume the deferred task by its stored method, in the DAG that this version makes of the earlier DAG file."""
    (ti,) = session.scalars(select(TaskInstance).where(TaskInstance.state == "deferred")).all()
    (row,) = session.scalars(select(Trigger)).all()
    _, event = fired(row, answered=True)
    bag = DagBag(bundle_path=Path(conf.get("core", "dags_folder")), bundle_name="dags-folder")
    task: Any = bag.dags[ti.dag_id].get_task(ti.task_id)
    run = ti.dag_run
    events: dict[str, list[Any]] = {}
    for consumed in run.consumed_asset_events:
        events.setdefault(consumed.asset.name, []).append(consumed)
    context = {"ti": ti, "dag_run": run, "triggering_asset_events": events}
    result = task.resume_execution(ti.next_method, {**(ti.next_kwargs or {}), "event": event}, context)
    return {"import_errors": bag.import_errors, "method": ti.next_method, "result": result}


def next_stage(session: Session) -> dict[str, Any]:
    """Return which work the next task of the run under way asks for, by the stored results of the tasks before."""
    from nightshift.operators.stage import StageOperator
    from nightshift.resolved_run import ResolvedRun, check_settled
    from nightshift.settings import Settings

    (run,) = session.scalars(select(DagRun).where(DagRun.dag_id == NAME, DagRun.state == "running")).all()
    rows = session.scalars(select(XComModel).where(XComModel.run_id == run.run_id, XComModel.key == "return_value")).all()
    values = {row.task_id: XComModel.deserialize_value(row) for row in rows}
    ti = SimpleNamespace(dag_id=NAME, run_id=run.run_id, task_id="prepare", xcom_pull=lambda task_ids: values.get(task_ids))
    context: Any = {"ti": ti, "dag_run": run}
    settings = Settings.from_environment()
    check_settled(context, settings)
    frozen = ResolvedRun.of(context)
    bag = DagBag(bundle_path=Path(conf.get("core", "dags_folder")), bundle_name="dags-folder")
    operator = bag.dags[NAME].get_task("prepare")
    assert isinstance(operator, StageOperator)
    work = operator.work(context, frozen, settings, nonce="")
    return {"run": run.run_id, "as_of": frozen.as_of.isoformat(), "done": sorted(values), "inputs": sorted(work.inputs)}


PARTS: Final[tuple[Callable[[Session], Any], ...]] = (serialised_dags, deadlines, missed_deadline, trigger, next_stage, resumed_task)


def main(out: Path) -> None:
    found: dict[str, Any] = {}
    for part in PARTS:
        try:
            with create_session() as session:
                found[part.__name__] = part(session)
                # Each part finds the database as it was recorded; the ledger keeps what is answered last.
                session.rollback()
        except Exception:
            found[part.__name__] = {"error": traceback.format_exc()}
    out.write_text(json.dumps(found, default=str, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
