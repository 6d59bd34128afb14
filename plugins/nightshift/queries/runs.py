"""Pipelines and their runs, from Airflow's database: in the api-server only, read-only but for `start_run`.

Airflow's own routes read it by the same classes. What a stage made is its result in XCom.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagRunAlreadyExists, ParamValidationError
from airflow.models import DagModel, DagRun, TaskInstance
from airflow.models.dag import DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import Select, func, select
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, defer, joinedload, selectinload

from nightshift.queries.run_records import run_fields, run_record, stage_record, stage_result
from nightshift.queries.schemas import Pipeline, Run, RunSummary
from nightshift.queries.study_progress import TRIALS, study_progress
from nightshift.settings import Settings
from training.contracts import JsonObject, StageResult
from training.database.pipeline_runs import record_queued
from training.errors import DeniedError, NightshiftError, Problem, SpecError, UnavailableError, first_line, shown
from training.spec.rules.names import HELPER_TAG, PIPELINE_TAG
from training.spec.trigger_form import unknown_keys
from training.stage_table import TABLE

logger = logging.getLogger(__name__)

RESOLVE: Final = "resolve"
FIRST_TASKS: Final = (RESOLVE, "wait")
STUDY_TASKS: Final = ("tune_plan", TRIALS)
"""Before `tune`: see `operators.study`."""
RETURN_VALUE: Final = "return_value"


def pipelines(names: set[str], *, first: str | None = None, limit: int | None = None) -> list[Pipeline]:
    """Return the pipelines among DAGs, by name.

    Args:
        first: name to begin with; None: the first one.
        limit: how many at most; None: all.
    """
    asked = tagged_dags(PIPELINE_TAG).where(DagModel.dag_id.in_(names)).order_by(DagModel.dag_id).limit(limit)
    if first is not None:
        asked = asked.where(DagModel.dag_id >= first)
    with airflow_session() as session:
        return [pipeline_of(each) for each in session.scalars(asked)]


def last_runs(names: set[str]) -> dict[str, RunSummary]:
    """Return the newest run of each of these pipelines that has one."""
    newest = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(names)).group_by(DagRun.dag_id)
    with airflow_session() as session:
        return {each.dag_id: _summary(each) for each in session.scalars(summaries().where(DagRun.id.in_(newest)))}


def tagged_names(names: set[str], *, tag: str = PIPELINE_TAG) -> set[str]:
    """Return those DAGs that have a tag: by default, those that are pipelines."""
    with airflow_session() as session:
        return set(session.scalars(select(DagTag.dag_id).where(DagTag.name == tag, DagTag.dag_id.in_(names))))


def pipeline(name: str) -> Pipeline:
    """Return one pipeline.

    Raises:
        DeniedError: `pipeline.unknown`.
    """
    with airflow_session() as session:
        found = session.scalar(tagged_dags(PIPELINE_TAG).where(DagModel.dag_id == name))
        if found is None:
            raise unknown_pipeline(name)
        return pipeline_of(found)


def has_pipeline(name: str) -> bool:
    """Return whether there is a pipeline of this name."""
    with airflow_session() as session:
        return session.scalar(tagged_dags(PIPELINE_TAG).where(DagModel.dag_id == name)) is not None


def runs(names: set[str], *, state: str | None, before: int | None, limit: int) -> tuple[list[RunSummary], int | None]:
    """Return the newest runs of pipelines, and the number to pass as `before` for older runs; None if there are no older runs.

    Args:
        names: of DAGs; DAGs that are not pipelines are left out.
        state: only runs in this state.
        before: only runs that were made before the one with this number.
        limit: how many at most.
    """
    tagged = select(DagTag.dag_id).where(DagTag.name == PIPELINE_TAG)
    # Of several pipelines, no index: SQLite would read all of their runs by it, to sort them.
    dag_id = DagRun.dag_id if len(names) == 1 else DagRun.dag_id + ""
    asked = summaries().where(dag_id.in_(names), dag_id.in_(tagged)).order_by(DagRun.id.desc()).limit(limit + 1)
    if state is not None:
        asked = asked.where(DagRun.state == state)
    if before is not None:
        asked = asked.where(DagRun.id < before)
    with airflow_session() as session:
        found = list(session.scalars(asked))
        more = found[limit - 1].id if len(found) > limit else None
        return [_summary(each) for each in found[:limit]], more


def run(name: str, run_id: str) -> Run:
    """Return one run with its stages, of a pipeline or of a helper DAG.

    Raises:
        DeniedError: `run.unknown`.
    """
    with airflow_session() as session:
        found = dag_run(session, name, run_id, (PIPELINE_TAG, HELPER_TAG))
        tasks = list(session.scalars(select(TaskInstance).where(TaskInstance.dag_id == name, TaskInstance.run_id == run_id)))
        values = _returned(session, name, run_id)
        order = {task_id: place for place, task_id in enumerate(_chain())}
        stages = [stage_record(session, task, values.get(task.task_id)) for task in tasks]
        stages.sort(key=lambda stage: (order.get(stage.name, 99), stage.name))
        shown_run = run_record(found, values.get(RESOLVE), stages)
    # After the session: a store that does not answer must not keep a connection of Airflow's database.
    progress = study_progress(name, run_id, [stage.state for stage in stages if stage.name == TRIALS])
    counted = [stage.model_copy(update={"progress": progress}) if stage.name == TRIALS else stage for stage in stages]
    return shown_run.model_copy(update={"stages": counted})


def dag_run(session: Session, name: str, run_id: str, tags: tuple[str, ...] = (PIPELINE_TAG,)) -> DagRun:
    """Return Airflow's own record of a run of a DAG with one of these tags; raises as `run`."""
    tagged = select(DagTag.dag_id).where(DagTag.name.in_(tags))
    found: DagRun | None = session.scalar(select(DagRun).where(DagRun.dag_id == name, DagRun.run_id == run_id, DagRun.dag_id.in_(tagged)))
    if found is None:
        raise unknown_run(name, run_id)
    return found


def _returned(session: Session, name: str, run_id: str) -> dict[str, Any]:
    """Return what the tasks of a run left in XCom, by task."""
    asked = select(XComModel.task_id, XComModel.value).where(
        XComModel.dag_id == name, XComModel.run_id == run_id, XComModel.key == RETURN_VALUE, XComModel.map_index == -1
    )
    return {task_id: _plain(value) for task_id, value in session.execute(asked)}


def _chain() -> Iterator[str]:
    """Yield the tasks of a pipeline's run in their order."""
    yield from FIRST_TASKS
    for name in TABLE:
        yield from STUDY_TASKS if name == "tune" else ()
        yield name


def conf_of(name: str, run_id: str) -> dict[str, Any]:
    """Return the conf that a run was started with; empty for a scheduled run, and for one that Airflow does not have any more."""
    with airflow_session() as session:
        return dict(session.scalar(select(DagRun.conf).where(DagRun.dag_id == name, DagRun.run_id == run_id)) or {})


def results(name: str, run_id: str) -> dict[str, StageResult]:
    """Return what the stages of a run left in XCom, by stage; empty for a run that Airflow does not have any more."""
    with airflow_session() as session:
        found = {task_id: stage_result(task_id, value) for task_id, value in _returned(session, name, run_id).items()}
    return {stage: result for stage, result in found.items() if result is not None}


def start_run(name: str, run_id: str, conf: JsonObject, *, by: str) -> Run:
    """Queue a run, or return the one that has this id.

    Args:
        conf: of the trigger, as Airflow's own form gives it.
        by: the user who starts it.

    Raises:
        DeniedError: `pipeline.unknown`, it has no DAG, or one that does not load.
        SpecError: as `trigger`.
    """
    pipeline(name)
    if trigger(name, run_id, conf, by=by):
        _note_queued(name, run_id, conf)
    return run(name, run_id)


def _note_queued(name: str, run_id: str, conf: JsonObject) -> None:
    try:
        record_queued(Settings.from_environment().database(), name, run_id, conf)
    except (NightshiftError, SQLAlchemyError) as err:
        # The run is queued, whatever is wrong with this database; SQL clients see it once its first task has begun.
        logger.warning("%s of %s is not noted as queued: %s", run_id, name, err)


def trigger(dag_id: str, run_id: str, conf: JsonObject, *, by: str) -> bool:
    """Queue a run of a DAG that there is, unless it has one of this id; return whether this call did.

    Raises:
        DeniedError: `idempotency.mismatch`, the run that it has is of another request.
        SpecError: `conf.unknown_key`, with the nearest key; `conf.invalid`, a parameter is otherwise not as the DAG's schema says.
    """
    try:
        trigger_dag(dag_id, triggered_by=DagRunTriggeredByType.REST_API, triggering_user_name=by, run_id=run_id, conf=dict(conf))
    except (DagRunAlreadyExists, IntegrityError):
        # The same order came before, or at the same moment, between Airflow's look and its row: its run is the answer.
        if not is_ordered(dag_id, run_id, conf):
            raise
        return False
    except (ParamValidationError, ValueError) as err:
        if unknown := list(unknown_keys(_params_schema(dag_id), conf)):
            raise SpecError("request", unknown) from err
        raise SpecError("request", [_invalid(err)]) from err
    return True


def _invalid(err: Exception) -> Problem:
    """Return the problem of a value; Airflow's text lacks its key, and ends with the whole schema and the whole value."""
    hint = "docs/reference/spec.md has the keys and their values"
    message = str(err).partition("\n\nFailed validating")[0]
    # Of jsonschema, with the value's place.
    found: Any = err.__context__
    if not hasattr(found, "absolute_path"):
        return Problem(code="conf.invalid", message=message, hint=hint)
    parameter = message.partition(":")[0].rpartition(" ")[2]
    own = found.schema.get("default") or next(iter(found.schema.get("examples", [])), "this key")
    # A pattern says nothing to people, a value that fits it does.
    words = f"{shown(found.instance)} is not in the form of {own}" if found.validator == "pattern" else found.message
    return Problem(code="conf.invalid", message=words, hint=hint, field=".".join(map(str, (parameter, *found.absolute_path))))


def _params_schema(dag_id: str) -> dict[str, JsonObject]:
    """Return the JSON Schema of each parameter of a DAG; none for a DAG that there is not."""
    with airflow_session() as session:
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        return {} if dag is None else {name: dag.params.get_param(name).schema for name in dag.params}


def is_ordered(dag_id: str, run_id: str, given: JsonObject) -> bool:
    """Return whether a DAG has the run that an order with an `Idempotency-Key` starts.

    Args:
        given: keys of the conf that the caller gave; the run's other keys are not compared.

    Raises:
        DeniedError: `idempotency.mismatch`, the key was used for another request.
    """
    with airflow_session() as session:
        found = session.execute(select(DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).one_or_none()
    if found is None:
        return False
    if not _holds(found.conf or {}, given):
        message = f"the Idempotency-Key was used for another request, which started {shown(run_id)} of {dag_id}"
        raise DeniedError("idempotency.mismatch", message, hint="use a new key for a new request")
    return True


def _holds(value: object, given: object) -> bool:
    if isinstance(value, Mapping) and isinstance(given, Mapping):
        return all(name in value and _holds(value[name], wanted) for name, wanted in given.items())
    return value == given


def unknown_pipeline(name: str) -> DeniedError:
    """Return the error for a pipeline that is not there, or may not be read."""
    return DeniedError("pipeline.unknown", f"there is no pipeline {shown(name)}", hint="list the pipelines")


def unknown_run(name: str, run_id: str) -> DeniedError:
    """Return the error for a run that is not there, or may not be read."""
    return DeniedError("run.unknown", f"there is no run {shown(run_id)} of {shown(name)}", hint="list the runs")


@contextmanager
def airflow_session() -> Iterator[Session]:
    """Open a session of Airflow's database.

    Raises:
        UnavailableError: `airflow.database`, it does not answer.
    """
    try:
        with create_session() as session:
            yield session
    except OperationalError as err:
        raise UnavailableError("airflow.database", f"Airflow's database does not answer: {first_line(err.orig)}") from err


def tagged_dags(tag: str) -> Select[DagModel]:
    """Return the query of the DAGs that there are with a tag."""
    tagged = select(DagTag.dag_id).where(DagTag.name == tag)
    # Their tags in one query for all: Airflow reads them for one at a time.
    return select(DagModel).where(DagModel.dag_id.in_(tagged), DagModel.is_stale.is_(False)).options(selectinload(DagModel.tags))


def summaries() -> Select[DagRun]:
    """Return the query of all runs, as far as a summary needs them; their notes and DAGs likewise."""
    dag = joinedload(DagRun.dag_model).load_only(DagModel.is_paused)
    return select(DagRun).options(joinedload(DagRun.dag_run_note), dag, defer(DagRun.conf), defer(DagRun.context_carrier))


def pipeline_of(found: DagModel) -> Pipeline:
    """Return the record of a DAG, a pipeline's or a helper's."""
    return Pipeline(
        name=found.dag_id,
        description=found.description,
        is_paused=found.is_paused,
        # Airflow's text of a DAG that has no schedule.
        schedule=None if found.timetable_summary == "None" else found.timetable_summary,
        next_run_after=found.next_dagrun_create_after,
        tags=sorted(tag.name for tag in found.tags),
        owners=sorted(owner.strip() for owner in (found.owners or "").split(",") if owner.strip()),
    )


def _summary(found: DagRun) -> RunSummary:
    return RunSummary.model_validate(run_fields(found))


def _plain(value: Any) -> Any:
    # Not by Airflow's decoder: it makes objects of classes that the text names.
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
