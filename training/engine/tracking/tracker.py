"""Metrics of a training, never in the step: an append to a list. One thread writes them into the journal, another sends MLflow what it has.

What MLflow does not take, a later attempt, a later stage or housekeeping sends from the journal (`mlflow_delivery`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

from training.contracts import Scalar, instant_text
from training.engine.tracking.machine_metrics import MachineMetrics
from training.engine.tracking.mlflow_delivery import MAX_PARAM_CHARS, deliver, deliver_if_reachable, open_run, quick_requests, send
from training.engine.tracking.mlflow_journal import Backlog, End, RunDescription, RunJournal, backlog_name
from training.engine.tracking.nvml import Nvml
from training.errors import StoreError, first_line
from training.installation import GPUS
from training.process import liveness
from training.runtime.context import StageContext
from training.runtime.provenance import environment, git_state
from training.stage_table import REFIT
from training.store import Bucket
from training.store.metric_journal import JournalWriter, MetricJournal, RawPoint, journal_name

logger = logging.getLogger(__name__)

WRITE_SECONDS: Final = 0.5
SEND_SECONDS: Final = 1.0
OPEN_SECONDS: Final = 10.0
"""The run is made with the first metrics, or this long after the start: the client's import must not slow down a restored start."""
RETRY_SECONDS: Final = 5.0
NOTE_SECONDS: Final = 300.0
"""By the wall clock, after which what MLflow may lack is recorded again. When a machine has slept, housekeeping takes a training that has
not written since for killed, sends what there is, and deletes the record."""
WRITE_LIMIT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 10.0
MAX_PENDING: Final = 1_000_000
MAX_WRITTEN: Final = 10_000
"""Points of one batch in the journal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The MLflow run that others are nested in: a study's."""

    key: str
    """Prefix of the study, in the bucket."""
    name: str
    child_name: str
    tags: Mapping[str, str]


def finish_parent(bucket: Bucket, key: str, parameters: Mapping[str, str], metrics: Mapping[str, float]) -> None:
    """Log what came of the runs that are nested in the parent's, and close it; what MLflow cannot take now is delivered later.

    Args:
        key: as `Parent.key`.
    """
    journal = RunJournal(bucket, key)
    with suppress(StoreError):  # A damaged record is named by the delivery below, which fails no stage.
        if journal.run_id() is None and journal.description() is None:
            return
    journal.note("finished", Backlog(end=End(status="FINISHED", ended_at_ms=_now_ms(), parameters=parameters, metrics=metrics)))
    deliver_if_reachable(journal)


class Repeated:
    """Work that a thread repeats beside a training, and does once more at the end. What fails is tried again, and ends no training."""

    def __init__(self, work: Callable[[], None], name: str, every_seconds: float, words: str) -> None:
        """Prepare the thread.

        Args:
            words: the warning where the work begins to fail, with the reason in place of `%s`.
        """
        self._work = work
        self._every_seconds = every_seconds
        self._words = words
        self._away_until = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure = ""
        """Why the work failed the last time; empty: it did not."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def close(self, limit_seconds: float) -> None:
        """Have the work done a last time, and wait for its end."""
        self._closing.set()
        self._thread.join(limit_seconds)

    def _run(self) -> None:
        # It goes on while the training hangs: no progress of the training's.
        liveness.in_background()
        while not self._closing.wait(self._every_seconds):
            if time.monotonic() >= self._away_until:
                self._try()
        self._try()

    def _try(self) -> None:
        try:
            self._work()
            self.failure = ""
        except Exception as err:
            if not self.failure:
                logger.warning(self._words, first_line(err))
            self.failure, self._away_until = first_line(err), time.monotonic() + RETRY_SECONDS


class Tracker:
    """One training's MLflow run. Rank 0 tracks; elsewhere every call is a no-op."""

    def __init__(
        self, context: StageContext, *, tags: Mapping[str, str], parameters: Mapping[str, object], parent: Parent | None = None
    ) -> None:
        """Begin to track; the MLflow run is made, or found again, by a thread. It is nested in its `parent`, if it has one."""
        request, bucket = context.request, context.store.bucket
        self._context = context
        self._metrics = journal_name(request.stage, request.run.run_id, request.parameters)
        self._enabled = context.rank == 0 and self._metrics is not None
        self._tags = dict(tags)
        self._parameters = {name: str(value)[:MAX_PARAM_CHARS] for name, value in parameters.items()}
        self._parent = parent
        self._started_at_ms = _now_ms()
        self._step = 0
        """Of the newest metrics: samples of the machine are logged with it."""
        self._pending: list[RawPoint] = []
        self._lost = 0
        self._backlog = ""
        """Name of what MLflow may lack of this attempt; empty until that is in the store."""
        self._noted_at = 0.0
        """Instant of that by the wall clock."""
        self._sent = 0
        """Number of the newest event of the journal of which MLflow has the point."""
        self._is_complete = not self._enabled
        self._client: Any = None
        self.run_id: str | None = None
        """Of MLflow, once it is known."""
        self._opens_by = time.monotonic() + OPEN_SECONDS
        self._journal = RunJournal(bucket, bucket.key(context.work_folder.uri))
        self._writer = JournalWriter(MetricJournal(bucket, request.pipeline, str(self._metrics)), request.attempt_id)
        self._writing = Repeated(self._write, "metrics", WRITE_SECONDS, "metrics wait for the store: %s")
        self._sending = Repeated(self._send, "tracking", SEND_SECONDS, "metrics wait for MLflow: %s")
        self._quick = ExitStack()
        if self._enabled:
            # Here, and not around each request: the environment is the process's, and the requests are a thread's.
            self._quick.enter_context(quick_requests())
            self._machine = MachineMetrics(Nvml(GPUS.value()) if request.parameters.get("device") else None)
            self._writing.start()
            self._sending.start()

    def log(self, step: int, **metrics: float) -> None:
        """Queue metrics of a step; takes about a microsecond. Where the store was away for a million points, they are dropped."""
        if not self._enabled:
            return
        self._step, now = step, _now_ms()
        if len(self._pending) > MAX_PENDING:
            self._lost += len(metrics)
            return
        self._pending.extend([(name, value, step, now) for name, value in metrics.items()])

    def close(self) -> bool:
        """Write what is left, then send it, each for up to 10 s. Return whether MLflow has everything; else it is sent later."""
        if not self._enabled:
            return True
        self._writing.close(WRITE_LIMIT_SECONDS)
        if missing := self._lost + len(self._pending):
            logger.warning("%d points of metrics were dropped: %s", missing, self._writing.failure or "the store answers slowly")
        self._opens_by = 0.0
        self._sending.close(CLOSE_SECONDS)
        self._quick.close()
        self._is_complete = not missing and self.run_id is not None and self._sent == self._writer.last
        if not self._is_complete:
            logger.warning("tracking delayed: metrics wait in the store for MLflow (%s)", self._sending.failure or "it answers slowly")
        return self._is_complete

    def finish(self, status: str) -> None:
        """Set the run's status (`FINISHED`, `FAILED`); where MLflow is away, it is delivered with the metrics."""
        # An attempt that was taken for dead says nothing about the run of the one that followed.
        if not self._backlog or self._writer.is_superseded:
            return
        try:
            self._journal.note(self._backlog, Backlog(after=self._sent, end=End(status=status, ended_at_ms=_now_ms())))
            if self._is_complete:
                with quick_requests():
                    deliver(self._client, self._journal, [self._backlog])
        except Exception as err:
            logger.warning("the status of the MLflow run %s is not set now: %s", self.run_id, first_line(err))

    def scalars(self) -> dict[str, Scalar]:
        """Return what the stage's result says of the run, once this is closed."""
        return {"mlflow_run_id": self.run_id, "tracking": "complete" if self._is_complete else "delayed"}

    def _write(self) -> None:
        if not self._backlog:
            self._begin()
        elif not self._writing.is_closing and time.time() - self._noted_at >= NOTE_SECONDS:
            # Not beside `finish`, whose note has the status.
            self._note(self._backlog)
        if found := self._machine.sample_if_due():
            self.log(self._step, **found)
        while self._pending:
            num_added = self._writer.append(self._pending[:MAX_WRITTEN])
            # An attempt that was taken for dead adds none.
            del self._pending[: None if self._writer.is_superseded else num_added]
        if self._writing.is_closing:
            self._writer.close()

    def _begin(self) -> None:
        """Record in the store how the run is made, before it is made, and that points follow: a process that is killed loses none."""
        self._describe()
        self._writer.begin()
        self._sent, name = self._writer.last, backlog_name(self._writer.attempt, str(self._metrics))
        self._note(name)
        self._backlog = name

    def _note(self, name: str) -> None:
        self._journal.note(name, Backlog(after=self._sent))
        self._noted_at = time.time()

    def _send(self) -> None:
        is_due = self._writer.last > self._sent
        if not self._backlog or not (is_due or time.monotonic() >= self._opens_by):
            return
        if self.run_id is None:
            self._open()
        for batch in self._journal.batches(self._backlog, self._sent) if is_due else ():
            send(self._client, str(self.run_id), batch)
            self._sent = batch[-1].number

    def _open(self) -> None:
        # Takes a second: in the thread, during the first steps.
        import mlflow

        self._client = mlflow.MlflowClient()
        run_id = open_run(self._client, self._journal)
        # Of attempts that ended before this one began.
        earlier = [name for name in self._journal.backlogs() if name != self._backlog]
        deliver(self._client, self._journal, earlier, is_running=True)
        self.run_id = run_id

    def _describe(self) -> None:
        pipeline, name, parent = self._context.request.pipeline, self._name(), None
        if self._parent is not None:
            name, parent = self._parent.child_name, self._parent.key
            study = RunDescription(experiment=pipeline, name=self._parent.name, tags=self._parent.tags, started_at_ms=self._started_at_ms)
            RunJournal(self._journal.bucket, parent).describe(study)
        self._journal.describe(
            RunDescription(
                experiment=pipeline,
                name=name,
                tags=self._all_tags(),
                parameters=self._parameters,
                started_at_ms=self._started_at_ms,
                parent=parent,
            )
        )

    def _name(self) -> str:
        """Return the instant of the run in the pipeline's time zone; its id is the tag `nightshift.run_id`."""
        spec, request = self._context.spec, self._context.request
        return f"{request.as_of.astimezone(ZoneInfo(spec.timezone)):%Y-%m-%d %H:%M %Z}{' refit' if request.stage == REFIT else ''}"

    def _all_tags(self) -> dict[str, str]:
        request = self._context.request
        state = git_state()
        return {
            "nightshift.pipeline": request.pipeline,
            "nightshift.run_id": request.run.run_id,
            "nightshift.fingerprint": request.work_id,
            "nightshift.as_of": instant_text(request.as_of),
            "nightshift.git_commit": str(state["commit"]),
            "nightshift.git_dirty": str(state["dirty"]).lower(),
            "nightshift.environment": ", ".join(f"{name} {version}" for name, version in environment().items()),
            # The columns User and Source of MLflow's table of runs.
            "mlflow.user": self._context.spec.owner,
            "mlflow.source.name": f"Nightshift: {request.run.owner}",
            "mlflow.source.type": "JOB",
            **self._tags,
        }


def _now_ms() -> int:
    return int(time.time() * 1000)
