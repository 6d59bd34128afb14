"""The tasks of a study: `tune_plan`, the workers of `trials`, and `tune`. `nightshift.wiring.study` makes the DAG of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.execution.backend import work_at
from nightshift.operators.stage import StageOperator, task_errors
from nightshift.operators.stage_work import rivals_of
from nightshift.operators.study_work import StudyWork, tune_of
from nightshift.resolved_run import ResolvedRun
from nightshift.run_refs import study_ref
from nightshift.settings import Settings
from training.contracts import JsonValue, RunIdentity, require_result
from training.process.waiting import waiting_for_database
from training.stage_table import TRIAL
from training.tuning.records import num_workers
from training.tuning.settings import num_trials

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

PLAN: Final = "tune_plan"
TRIALS: Final = "trials"
TUNE: Final = "tune"


class PlanOperator(BaseOperator):
    """Returns the numbers of the study's workers, and settles which champion it begins with."""

    ui_color = "#e8eef7"

    @waiting_for_database()
    def execute(self, context: Context) -> list[int]:
        """Return `[0, 1, …]`.

        Raises:
            AirflowFailException: the run left nothing to search on.
        """
        with task_errors():
            settings = Settings.from_environment()
            resolved = ResolvedRun.of(context)
            if resolved.artifact is not None:
                self.log.info("the run judges a model from outside: there is no study")
                return [0]
            study, tune = _study_of(context, resolved, settings), tune_of(resolved.spec)
            champion = rivals_of(resolved.spec, settings)["champion"]
            settled = study.store(resolved).plan(None if champion is None else str(champion["model_uri"]))
            workers = num_workers(tune, resolved.spec.train.placement)
            self._record(context, resolved, study.name)
        self.log.info("study %s: %d trials, %d in parallel, first those of %s", study.name, tune.trials, workers, settled or "the spec")
        return list(range(workers))

    def _record(self, context: Context, resolved: ResolvedRun, study: str) -> None:
        """Record which study the run works on, for those who look at the run while it does."""
        ti: Any = context["ti"]
        ref = study_ref(resolved.store, ti.dag_id, ti.run_id)
        head = ref.read()
        if head is None or head.value != {"study": study}:
            # Where another process of this task was faster, it recorded the same.
            ref.move({"study": study}, expected=head.number if head else 0)


class TrialsOperator(StageOperator):
    """One worker: one trial after the other, until the study is full."""

    def __init__(self, *, worker: int, **kwargs: Any) -> None:
        super().__init__(stage=TRIAL, **kwargs)
        self.worker = worker

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Return `{study, worker, trials}`: the trials that this worker did.

        Raises:
            AirflowFailException, StageFailedError, InfrastructureError, TaskDeferred: as a stage's.
        """
        with task_errors():
            settings, resolved = Settings.from_environment(), ResolvedRun.of(context)
            if resolved.artifact is not None:
                return {"study": "", "worker": self.worker, "trials": []}
            return self._trials(context, resolved, settings)

    @waiting_for_database()
    def trigger_reentry(self, context: Context, event: dict[str, JsonValue], work_id: str = "") -> dict[str, JsonValue]:
        """Continue with the trigger's event after a trial was deferred; as `execute`."""
        with task_errors():
            settings = Settings.from_environment()
            resolved = self.resolved(context)
            work = work_at(resolved.store.work_folder(resolved.spec.name, self.stage, work_id))
            self.run_stage(context, self._identity(context, self.worker), resolved, work, settings, event=event)
            return self._trials(context, resolved, settings)

    def _trials(self, context: Context, resolved: ResolvedRun, settings: Settings) -> dict[str, JsonValue]:
        run, tune = self._identity(context, self.worker), tune_of(resolved.spec)
        workers = {self._identity(context, number).owner for number in range(num_workers(tune, resolved.spec.train.placement))}
        study = _study_of(context, resolved, settings)
        known = study.store(resolved)
        champion = known.plan(None)
        done: list[int] = []
        while (slot := known.take(run.owner, workers, tune)) is not None:
            found = self.run_stage(context, run, resolved, study.trial(resolved, slot, champion), settings)
            if known.find(slot) is None:
                raise AirflowFailException(f"trial {slot} of study {study.name} has a result and no record; trigger the run with force")
            words = ", ".join(f"{name} {value}" for name, value in found.scalars.items() if name != "slot")
            self.log.info("trial %d: %s; %d of %d trials are done", slot, words, len(known.slots()), num_trials(tune))
            done.append(slot)
        return {"study": study.name, "worker": self.worker, "trials": done}

    def _identity(self, context: Context, worker: int) -> RunIdentity:
        """Return the name of a worker: to Airflow all workers are one task, and none may take another's lease for its own."""
        ti: Any = context["ti"]
        return RunIdentity(dag_id=ti.dag_id, run_id=ti.run_id, task_id=f"{ti.task_id}-{worker}", try_number=ti.try_number)


class TuneOperator(StageOperator):
    """Sums up the study that the workers have done."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(stage=TUNE, **kwargs)


def _study_of(context: Context, resolved: ResolvedRun, settings: Settings) -> StudyWork:
    """Return the study of a run.

    Raises:
        ContractError: `prepare` left no result, or the spec has no study.
    """
    return StudyWork.of(resolved, require_result(context["ti"].xcom_pull(task_ids="prepare"), stage="prepare"), settings)
