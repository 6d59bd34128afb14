"""Studies: the runs of the DAGs `<pipeline>.tune`, and the trials that the store has of each."""

from __future__ import annotations

from airflow.models import DagModel, DagRun
from sqlalchemy import select

from nightshift.queries.run_records import run_fields
from nightshift.queries.runs import airflow_session, pipeline, trigger, unknown_run
from nightshift.queries.schemas import Study, Trial
from nightshift.run_refs import planned_study, settled_spec
from training.contracts import JsonObject
from training.errors import DeniedError, shown
from training.spec.rules.names import TUNE_SUFFIX
from training.store import Store
from training.tuning.records import StudyStore, TrialRecord, best_of, is_minimized, objective_value
from training.tuning.settings import num_trials


def tune_dag_id(name: str) -> str:
    """Return the id of the DAG that does a pipeline's studies."""
    return f"{name}{TUNE_SUFFIX}"


def start_study(store: Store, name: str, run_id: str, conf: JsonObject, *, by: str) -> Study:
    """Queue a study, or return the one that has this run id.

    Args:
        conf: of the trigger: `as_of`, `snapshot`, `force`, `train`, `tune`.
        by: the user who starts it.

    Raises:
        DeniedError: `pipeline.unknown`; `study.missing`, the pipeline's YAML has no `tune`.
        SpecError: `conf.invalid`.
    """
    pipeline(name)
    with airflow_session() as session:
        found = session.scalar(select(DagModel.dag_id).where(DagModel.dag_id == tune_dag_id(name), DagModel.is_stale.is_(False)))
    if found is None:
        raise DeniedError("study.missing", f"pipeline {shown(name)} has no study", hint="add tune to its YAML: docs/tuning.md")
    trigger(tune_dag_id(name), run_id, conf, by=by)
    return study(store, name, run_id)


def study(store: Store, name: str, run_id: str) -> Study:
    """Return a study with the trials that are finished.

    Args:
        run_id: of a run of `<pipeline>.tune`, or of the pipeline where its YAML has `tune`.

    Raises:
        DeniedError: `run.unknown`.
        UnavailableError: the store does not answer.
    """
    found = None
    with airflow_session() as session:
        for dag_id in (tune_dag_id(name), name):
            found = found or session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        if found is None:
            raise unknown_run(name, run_id)
        dag_id, fields = found.dag_id, run_fields(found)
    return Study.model_validate({**fields, "id": f"{name}:{run_id}", "pipeline": name, **_searched(store, name, dag_id, run_id)})


def _searched(store: Store, name: str, dag_id: str, run_id: str) -> dict[str, object]:
    # From the store: users of Airflow's API may write XCom.
    spec, planned = settled_spec(store, dag_id, run_id), planned_study(store, dag_id, run_id)
    known: dict[str, object] = {
        "digest": None,
        "objective": None,
        "lower_is_better": None,
        "space": {},
        "num_trials": None,
        "trials": [],
        "best": None,
    }
    if spec is None or spec.tune is None:
        return known
    space = spec.tune.model_dump(mode="json", by_alias=True, exclude_none=True)["space"]
    known |= {
        "objective": spec.tune.objective,
        "lower_is_better": is_minimized(spec.tune.objective),
        "space": space,
        "num_trials": num_trials(spec.tune),
    }
    if planned is None:
        return known
    records = [record for record in StudyStore(store, name, planned).records() if record.slot < spec.tune.trials]
    best = best_of(records)
    trials = [_trial(record, spec.tune.objective) for record in records]
    return {
        **known,
        "digest": planned,
        "trials": trials,
        "best": None if best is None else _trial(best, spec.tune.objective),
    }


def _trial(record: TrialRecord, objective: str) -> Trial:
    return Trial(
        number=record.slot,
        state=record.state,
        value=None if record.value is None else objective_value(objective, record.value),
        settings=dict(record.settings),
        epochs=record.epochs,
        steps=record.steps,
        reason=record.reason,
    )
