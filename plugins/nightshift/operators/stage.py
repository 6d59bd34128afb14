"""The operator of all stages: determines the work of its task, and runs it on the installation's backend."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from nightshift.airflow_ext.links import (
    AttemptLogLink,
    MlflowLink,
    ReportLink,
    ReusedFromLink,
    SnapshotLink,
    mlflow_url,
    report_url,
    task_url,
)
from nightshift.execution.attempt_end import Action, AttemptEnd, StageEndedError
from nightshift.execution.backend import Backend, StageTask, backend_of, work_at
from nightshift.execution.metric_copies import copied_live, copy_metrics
from nightshift.execution.retries import InfrastructureError
from nightshift.operators.failure_message import noted_failure
from nightshift.operators.stage_work import needs_of, work_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.contracts import ContractError, ExitCode, JsonObject, JsonValue, RunIdentity, StageResult, require_result
from training.errors import NightshiftError
from training.process.waiting import waiting_for_database
from training.stage_table import STAGES, TRAININGS
from training.store import point_at, records
from training.store.metric_journal import journal_name

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context
    from airflow.triggers.base import BaseTrigger

TRACKING_RECORD: Final = "tracking.json"
"""The id of a training's MLflow run, beside its result (`training.engine.tracking.mlflow_journal`)."""


class StageFailedError(AirflowException):
    """An attempt failed in a way that may pass: Airflow tries again while the user's budget lasts."""


class StageOperator(BaseOperator):
    """Runs one stage of a pipeline, or finds it done."""

    operator_extra_links: Collection[BaseOperatorLink] = (
        *(ReusedFromLink(), ReportLink(), MlflowLink(), SnapshotLink(), AttemptLogLink()),
    )
    ui_color = "#dff0e3"

    def __init__(self, *, stage: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.pipeline = ""
        self.result: StageResult | None = None
        self.report_uri = ""
        self.mlflow_url = ""
        self.model_name = ""
        self._backend: Backend | None = None
        self._stopped = False
        self._waits_for: tuple[BaseTrigger, str] | None = None

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Return the stage's result for XCom.

        A run that judges a model from outside has no stage that searches or refits: nothing is done, and nothing returned.

        Raises:
            AirflowFailException: the same would happen again, or a budget is spent.
            StageFailedError: it may pass.
            InfrastructureError: it was stopped, the cluster does not answer, or a newer attempt has the work.
            TaskDeferred: the stage runs without the task; the triggerer waits for it.
        """
        return self._done(context)

    @waiting_for_database()
    def trigger_reentry(self, context: Context, event: dict[str, JsonValue], work_id: str = "") -> dict[str, JsonValue]:
        """Continue with the trigger's event after the task was deferred; as `execute`."""
        return self._done(context, event, work_id)

    def _done(self, context: Context, event: JsonObject | None = None, work_id: str = "") -> dict[str, JsonValue]:
        run = _identity(context)
        self.pipeline = run.dag_id
        with noted_failure(context, AirflowFailException, StageFailedError, InfrastructureError), task_errors():
            settings = Settings.from_environment()
            resolved = self.resolved(context)
            if self.stage in STAGES and self.stage not in resolved.spec.stages:
                self.log.info("the run judges a model from outside: there is no %s", self.stage)
                return {}
            self.model_name = resolved.spec.promote.model
            if event is None:
                work = self.work(context, resolved, settings)
            else:
                work = work_at(resolved.store.work_folder(resolved.spec.name, self.stage, work_id))
            found = self.run_stage(context, run, resolved, work, settings, event=event)
        return self.finish(context, found, run)

    def run_stage(
        self,
        context: Context,
        run: RunIdentity,
        resolved: ResolvedRun,
        work: Work,
        settings: Settings,
        *,
        event: JsonObject | None = None,
    ) -> StageResult:
        """Pin the work, have the backend do it, and return its result; or defer, where the work runs without this task.

        Raises:
            StageEndedError: it ended without a result, and this try does not start it again.
        """
        work.pin(resolved.store)
        task = StageTask(
            run=run,
            resolved=resolved,
            work=work,
            operator=self,
            context=context,
            say=self.log.info,
            warn=self.log.warning,
        )
        self._backend = backend_of(settings)
        if self._stopped:
            self._backend.stop()
        journal = journal_name(self.stage, run.run_id, work.parameters)
        live = nullcontext() if journal is None else copied_live(resolved.spec.name, journal)
        try:
            with live:
                found = self._backend.run(task, event)
        except StageEndedError as err:
            self.report_uri = err.end.report_uri or self.report_uri
            raise
        if isinstance(found, StageResult):
            if journal is not None:
                # Of the run that trained: this run may have found its result.
                copy_metrics(found.pipeline, str(journal_name(self.stage, found.run.run_id, work.parameters)))
            return found
        self._waits_for = (found.trigger, work.id)
        self.invoke_defer_method()

    def invoke_defer_method(self, last_log_time: object = None, context: Context | None = None) -> NoReturn:
        """Wait in the triggerer for the work of `run_stage`. Named, with its arguments, as KubernetesPodOperator's."""
        del last_log_time, context
        if self._waits_for is None:
            raise RuntimeError("no work runs without this task")
        trigger, work_id = self._waits_for
        self.defer(trigger=trigger, method_name=self.trigger_reentry.__name__, kwargs={"work_id": work_id})

    def on_kill(self) -> None:
        """End the attempt, and start no other; Airflow leaves five seconds."""
        self._stopped = True
        if self._backend is not None:
            self._backend.stop()

    def resolved(self, context: Context) -> ResolvedRun:
        """Return what the run's `resolve` settled."""
        return ResolvedRun.of(context)

    def work(self, context: Context, resolved: ResolvedRun, settings: Settings) -> Work:
        """Return the work of this task."""
        results = {
            name: require_result(context["ti"].xcom_pull(task_ids=maker), stage=maker)
            for name, maker in needs_of(self.stage, resolved.spec).items()
        }
        return work_of(self.stage, resolved, results, settings=settings)

    def finish(self, context: Context, found: StageResult, run: RunIdentity) -> dict[str, JsonValue]:
        """Return the result for XCom, and say where it came from."""
        del context
        is_own = found.run.owner == run.owner and found.run.try_number == run.try_number
        self.result = found if is_own else found.as_reused()
        self.report_uri = next(iter(found.reports.values()), "")
        if not is_own:
            # However old the work is: this run needs what it made.
            reused = Settings.from_environment().store().run_ref(found.pipeline, run.run_id, f"reused/{self.stage}")
            point_at(reused, found.artifact_uri)
            self.log.info("already done by %s (attempt %s), nothing started: %s", found.run.owner, found.attempt_id, task_url(found.run))
        if found.attempts > 1:
            self.log.info("it took %d attempts", found.attempts)
        self.mlflow_url = self._mlflow_url(found)
        if self.mlflow_url:
            self.log.info("MLflow: %s", self.mlflow_url)
        for name, uri in found.reports.items():
            self.log.info("report %s: %s", name, report_url(self.pipeline, uri))
        # Airflow sends each link to its API in a separate request, empty links too.
        unread: Any = None
        self.operator_extra_links = [link for link in type(self).operator_extra_links if link.get_link(self, ti_key=unread)]
        return self.result.to_xcom()

    def _mlflow_url(self, found: StageResult) -> str:
        """Return the URL of MLflow's page of what a stage made; empty where it made nothing there, or that is not known."""
        settings, scalars = Settings.from_environment(), found.scalars
        if self.stage in ("evaluate", "promote"):
            return mlflow_url(
                settings.mlflow_uri, model=str(scalars.get("model") or self.model_name), version=str(scalars.get("version") or "")
            )
        if self.stage not in TRAININGS:
            return ""
        store = settings.store()
        key = f"{store.bucket.key(store.work_folder(found.pipeline, found.stage, found.work_id).uri)}/{TRACKING_RECORD}"
        try:
            data, uri = store.bucket.find(key), store.bucket.uri(key)
            known = {} if data is None else records.decode(key, data, uri=uri, hint="the MLflow run is found again by its tag")
        except NightshiftError as err:
            self.log.warning("no link to MLflow: %s", err)
            return ""
        return mlflow_url(settings.mlflow_uri, model="", run_id=str(known.get("run_id") or ""))


class TrainOperator(StageOperator):
    """Trains; its work is placed, sized and pooled as the spec's `train.placement` states."""


@contextmanager
def task_errors() -> Iterator[None]:
    """Turn our errors into Airflow's exceptions, which decide whether and from which budget to retry."""
    try:
        yield
    except ContractError as err:
        raise AirflowFailException(str(err)) from err
    except StageEndedError as err:
        raise exception_of(err.end) from err
    except NightshiftError as err:
        if err.exit_code in (ExitCode.UNAVAILABLE, ExitCode.UNEXPECTED):
            raise StageFailedError(str(err)) from err
        raise AirflowFailException(str(err)) from err


def exception_of(end: AttemptEnd) -> AirflowException:
    """Return what ends a task whose work has ended without a result."""
    if end.action is Action.GIVE_UP:
        return InfrastructureError(end.reason)
    if end.action is Action.RETRY:
        return StageFailedError(end.reason)
    return AirflowFailException(end.reason)


def _identity(context: Context) -> RunIdentity:
    ti: Any = context["ti"]
    return RunIdentity(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, try_number=ti.try_number)
