"""The operator of all stages: finds finished work, waits for others at it, or starts an attempt and judges its end."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from nightshift.airflow_ext.links import AttemptLogLink, ReportLink, ReusedFromLink, report_url, task_url
from nightshift.execution.backend import KUBERNETES, Ended, Stoppable, launcher_of
from nightshift.execution.outcomes import Action, StageEndedError, Verdict, judge
from nightshift.execution.retries import InfrastructureError
from nightshift.operators.stage_work import needs_of, work_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.contracts import TRAININGS, ContractError, ExitCode, RunIdentity, StageRequest, StageResult, require_result
from training.errors import NightshiftError
from training.spec import PipelineSpec
from training.spec.types import size_text
from training.store import StageAddress, Store, point_at
from training.store.addresses import new_attempt_id
from training.store.leases import HolderWatch
from training.waiting import waiting_for_database

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

POLL_SECONDS: Final = 1.0
SAY_EVERY_SECONDS: Final = 15.0
RELAUNCH_PAUSE_SECONDS: Final = 1.0
MAX_PAUSES: Final = 10
MEBIBYTE: Final = 2**20


class StageFailedError(AirflowException):
    """An attempt failed in a way that may pass: Airflow tries again while the user's budget lasts."""


@dataclass(kw_only=True, slots=True)
class Relaunches:
    """What one try has left of the infrastructure budget."""

    budget: int
    used: int = 0
    out_of_memory: int = 0

    def take(self, verdict: Verdict, spec: PipelineSpec, stage: str) -> None:
        """Take one.

        Raises:
            AirflowFailException: there is none left.
        """
        if verdict.action is Action.RELAUNCH_ONCE:
            self.out_of_memory += 1
        if self.out_of_memory > 1:
            raise AirflowFailException(oom_text(verdict, spec, stage))
        if self.used >= self.budget:
            raise AirflowFailException(f"{verdict.reason}; relaunched {self.used} times already (retries.infrastructure)")
        self.used += 1


class StageOperator(BaseOperator):
    """Runs one stage of a pipeline, or finds it done."""

    operator_extra_links: Collection[BaseOperatorLink] = (ReusedFromLink(), ReportLink(), AttemptLogLink())
    ui_color = "#dff0e3"

    def __init__(self, *, stage: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.pipeline = ""
        self.result: StageResult | None = None
        self.report_uri = ""
        self._launcher: Stoppable | None = None
        self._stopped = False

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, Any]:
        """Return the stage's result for XCom.

        Raises:
            AirflowFailException: the same would happen again, or a budget is spent.
            StageFailedError: it may pass.
            InfrastructureError: it was stopped, the cluster does not answer, or a newer attempt has the work.
            TaskDeferred: the stage runs in the cluster; the triggerer waits for it.
        """
        run = _identity(context)
        self.pipeline = run.dag_id
        with task_errors():
            settings = Settings.from_environment()
            frozen = self.frozen(context)
            work = self.work(context, frozen, settings, nonce=run.run_id if frozen.force else "")
            address = frozen.store.address(frozen.spec.name, self.stage, work.fingerprint)
            if settings.backend == KUBERNETES:
                found = self._advance(context, run, frozen, work, address, settings)
            else:
                found = address.result() or self._make(run, frozen, work, address, settings)
        return self.finish(context, found, run)

    @waiting_for_database()
    def resume(self, context: Context, event: dict[str, Any], fingerprint: str) -> dict[str, Any]:
        """Go on after the triggerer has seen the launch end; as `execute`."""
        from nightshift.execution.kubernetes.launches import work_at
        from nightshift.execution.kubernetes.status import LaunchStatus

        run = _identity(context)
        self.pipeline = run.dag_id
        with task_errors():
            settings = Settings.from_environment()
            frozen = self.frozen(context)
            address = frozen.store.address(frozen.spec.name, self.stage, fingerprint)
            # Not computed anew: sources and champions move on, the launch that was waited for is of the work as it was.
            work = work_at(address)
            seen = LaunchStatus.from_json(event["seen"])
            found = self._advance(context, run, frozen, work, address, settings, watched=int(event["number"]), reported=seen)
        return self.finish(context, found, run)

    def _advance(
        self, context: Context, run: RunIdentity, frozen: ResolvedRun, work: Work, address: StageAddress, settings: Settings, **seen: Any
    ) -> StageResult:
        """Look at the cluster once; return the result, or leave the waiting to the triggerer."""
        from nightshift.execution.kubernetes.backend import remote_work, watching

        remote = remote_work(context, run, frozen, work, address, settings.cluster(), stage=self.stage)
        self._launcher = remote
        found = remote.advance(self._say, **seen)
        if self._stopped:
            remote.stop()
            raise InfrastructureError("stopped before it was done")
        if isinstance(found, StageResult):
            return found
        self.defer(trigger=watching(found), method_name=self.resume.__name__, kwargs={"fingerprint": work.fingerprint})

    def on_kill(self) -> None:
        """End the attempt, and start no other; Airflow leaves five seconds."""
        self._stopped = True
        if self._launcher is not None:
            self._launcher.stop()

    def frozen(self, context: Context) -> ResolvedRun:
        """Return what the run's `resolve` settled."""
        return ResolvedRun.of(context)

    def work(self, context: Context, frozen: ResolvedRun, settings: Settings, *, nonce: str) -> Work:
        """Return the work that this task asks for."""
        results = {
            name: require_result(context["ti"].xcom_pull(task_ids=maker), stage=maker)
            for name, maker in needs_of(self.stage, frozen.spec).items()
        }
        return work_of(self.stage, frozen, results, nonce=nonce, settings=settings)

    def _make(self, run: RunIdentity, frozen: ResolvedRun, work: Work, address: StageAddress, settings: Settings) -> StageResult:
        """Start attempts until there is a result or a budget is spent."""
        relaunches = Relaunches(budget=frozen.spec.retries.infrastructure)
        while True:
            takeover_epoch, found = self._wait_for_others(address, run)
            if found is not None:
                return found
            verdict = self._attempt(run, frozen, work, address, settings, takeover_epoch)
            if verdict is None:
                made = address.result()
                if made is not None:
                    return made
                verdict = Verdict(action=Action.RELAUNCH, reason="the result is gone", code="result.missing")
            if self._stopped:
                raise InfrastructureError(f"stopped while it ran: {verdict.reason}")
            if verdict.action is Action.WAIT:
                continue
            if verdict.action is Action.FAIL:
                raise AirflowFailException(verdict.reason)
            if verdict.action is Action.GIVE_UP:
                raise InfrastructureError(verdict.reason)
            if verdict.action is Action.RETRY:
                raise StageFailedError(verdict.reason)
            relaunches.take(verdict, frozen.spec, self.stage)
            self.log.warning("relaunch %d of %d: %s; %s", relaunches.used, relaunches.budget, verdict.reason, resumption(address))
            time.sleep(RELAUNCH_PAUSE_SECONDS * min(relaunches.used, MAX_PAUSES))

    def _attempt(
        self, run: RunIdentity, frozen: ResolvedRun, work: Work, address: StageAddress, settings: Settings, takeover_epoch: int
    ) -> Verdict | None:
        """Run one attempt; return None when its result is there."""
        request = StageRequest(
            pipeline=frozen.spec.name,
            stage=self.stage,
            fingerprint=work.fingerprint,
            attempt_id=new_attempt_id(),
            store_uri=frozen.store.root_uri,
            spec_uri=frozen.spec_uri,
            as_of=frozen.as_of.isoformat(),
            inputs=work.inputs,
            parameters=work.parameters,
            run=run,
            takeover_epoch=takeover_epoch,
            code_version=work.code_version,
            code_files=work.code_files,
        )
        uri = address.write_request(request)
        self.log.info("again by hand: python -m training.stages.%s %s", self.stage, uri)
        launcher = self._launcher = launcher_of(settings)
        if self._stopped:
            raise InfrastructureError("stopped before it began")
        ended = launcher.launch(uri, request, frozen.spec, self._say)
        self.log.info("attempt %s ended with %d after %.1f s", request.attempt_id, ended.exit_code, ended.seconds)
        if address.result() is not None:
            return None
        error = address.error(request.attempt_id)
        self._note_report(error)
        verdict = judge(ended, error)
        return replace(verdict, reason=f"{verdict.reason}; {memory_text(ended)}") if verdict.action is Action.RELAUNCH_ONCE else verdict

    def _wait_for_others(self, address: StageAddress, run: RunIdentity) -> tuple[int, StageResult | None]:
        """Wait while an attempt of another run is alive; return (the epoch that may be taken over, a result that appeared)."""
        watch = HolderWatch(address, owner=run.owner)
        said_at = -SAY_EVERY_SECONDS
        known = -1
        while True:
            holder, takeover_epoch = watch.poll()
            # A result is committed between two entries of the journal: while none is new, there is none to look for.
            if holder is None or watch.known != known:
                known = watch.known
                found = address.result()
                if found is not None or holder is None:
                    return takeover_epoch, found
            if time.monotonic() - said_at >= SAY_EVERY_SECONDS:
                said_at = time.monotonic()
                self.log.info("%s is at the same work (attempt %s); waiting for its result", holder.owner, holder.attempt_id)
            time.sleep(POLL_SECONDS)

    def finish(self, context: Context, found: StageResult, run: RunIdentity) -> dict[str, Any]:
        """Return the result for XCom, and say where it came from."""
        del context
        is_own = found.run.owner == run.owner and found.run.try_number == run.try_number
        self.result = found if is_own else found.reused_by(run)
        self.report_uri = next(iter(found.reports.values()), "")
        if not is_own:
            # However old the work is: this run needs what it made.
            reused = Store(Settings.from_environment().store_uri).run_ref(found.pipeline, run.run_id, f"reused/{self.stage}")
            point_at(reused, found.artifact_uri)
            self.log.info("already done by %s (attempt %s), nothing started: %s", found.run.owner, found.attempt_id, task_url(found.run))
        if found.attempts > 1:
            self.log.info("it took %d attempts", found.attempts)
        for name, uri in found.reports.items():
            self.log.info("report %s: %s", name, report_url(self.pipeline, uri))
        # Airflow sends each link to its API in a request of its own, the empty ones too.
        unread: Any = None
        self.operator_extra_links = [link for link in type(self).operator_extra_links if link.get_link(self, ti_key=unread)]
        return self.result.to_xcom()

    def _note_report(self, error: dict[str, Any] | None) -> None:
        uri = (error or {}).get("details", {}).get("report_uri")
        if uri:
            self.report_uri = str(uri)

    def _say(self, line: str) -> None:
        self.log.info("%s", line)


@contextmanager
def task_errors() -> Iterator[None]:
    """Turn our errors into what tells Airflow whether to try again, and out of whose budget."""
    try:
        yield
    except ContractError as err:
        raise AirflowFailException(str(err)) from err
    except StageEndedError as err:
        raise exception_of(err.verdict) from err
    except NightshiftError as err:
        if err.code == "kubernetes.unavailable":
            raise InfrastructureError(str(err)) from err
        if err.exit_code in (ExitCode.UNAVAILABLE, ExitCode.UNEXPECTED):
            raise StageFailedError(str(err)) from err
        raise AirflowFailException(str(err)) from err


def exception_of(verdict: Verdict) -> AirflowException:
    """Return what ends a task whose work has ended without a result."""
    if verdict.action is Action.GIVE_UP:
        return InfrastructureError(verdict.reason)
    if verdict.action is Action.RETRY:
        return StageFailedError(verdict.reason)
    return AirflowFailException(verdict.reason)


def resumption(address: StageAddress) -> str:
    """Say where the next attempt at an address goes on, as the address's journal knows."""
    checkpoints = [entry.value["payload"] for entry in address.journal().history() if entry.value["kind"] == "checkpoint"]
    if not checkpoints:
        return "starting from the beginning"
    return f"resuming from step {checkpoints[-1].get('step')}"


def memory_text(ended: Ended) -> str:
    """Say how much memory an attempt used and could have had, as far as it is known."""
    peak = f"peak {ended.peak_bytes / MEBIBYTE:,.0f} MiB" if ended.peak_bytes else "peak not known"
    limit = f"limit {ended.limit_bytes / MEBIBYTE:,.0f} MiB" if ended.limit_bytes else "limit not known"
    return f"{peak} in one process, {limit}"


def oom_text(verdict: Verdict, spec: PipelineSpec, stage: str) -> str:
    """Say what a stage that ran out of memory twice was asked to do."""
    if stage not in TRAININGS:
        return f"{verdict.reason}; twice, so it is not retried (use a shorter data.source.window, or a machine with more memory)"
    placement = spec.train.placement
    asked = "none" if placement.memory is None else size_text(placement.memory)
    sizes = f"batch_size {spec.train.batch_size}, {placement.world_size} processes, placement.memory {asked}"
    return f"{verdict.reason}; twice, so it is not tried again ({sizes}: make the batch smaller or give it more memory)"


def _identity(context: Context) -> RunIdentity:
    ti: Any = context["ti"]
    return RunIdentity(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, try_number=ti.try_number)
