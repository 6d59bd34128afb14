"""Metrics to MLflow, never in the step: an append to a list; a thread sends one batch each 500 ms.

What cannot be sent goes to the run's journal in the store, from where this thread, a later stage or housekeeping delivers it
(`training.engine.tracking_journal`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from training.engine.live_metrics import LiveMetrics
from training.engine.machine_metrics import MachineMetrics
from training.engine.nvml import Nvml
from training.engine.tracking_journal import (
    MAX_BATCH,
    MAX_PARAM_CHARS,
    QUICK,
    End,
    Point,
    RunDescription,
    RunJournal,
    deliver,
    deliver_if_reachable,
    first_line,
    open_run,
    send,
)
from training.errors import NightshiftError, StoreError
from training.installation import GPUS
from training.process import liveness
from training.runtime.context import StageContext
from training.runtime.lazy_imports import MLFLOW_DEFERRED, MLFLOW_OPTIONAL, lean_imports
from training.runtime.provenance import environment, git_state
from training.store import Bucket
from training.store.metric_journal import MetricJournal, journal_name

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.5
OPEN_SECONDS: Final = 10.0
"""The run is made with the first metrics, or this long after the start: the client's import must not slow down a restored start."""
RETRY_SECONDS: Final = 5.0
MAX_RETRY_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 10.0
MAX_PENDING: Final = 1_000_000
RECORD_NAME: Final = "/tracking.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The MLflow run that others are nested in: a study's."""

    key: str
    """Of the record of its run's id, in the bucket: `…/tracking.json`."""
    name: str
    child_name: str
    tags: Mapping[str, str]


def finish_parent(bucket: Bucket, key: str, parameters: Mapping[str, str], metrics: Mapping[str, float]) -> None:
    """Log what came of the runs that are nested in the parent's, and close it; what MLflow cannot take now is delivered later.

    Args:
        key: as `Parent.key`.
    """
    journal = RunJournal(bucket, key.removesuffix(RECORD_NAME))
    with suppress(StoreError):  # A damaged record is named by the delivery below, which fails no stage.
        if journal.run_id() is None and journal.description() is None:
            return
    now = _now_ms()
    journal.append("finished", 0, [(name, value, 0, now) for name, value in metrics.items()])
    journal.end("finished", End(status="FINISHED", ended_at_ms=now, parameters=parameters))
    deliver_if_reachable(journal)


class Tracker:
    """One training's MLflow run. Rank 0 tracks; elsewhere every call is a no-op."""

    def __init__(
        self, context: StageContext, *, tags: Mapping[str, str], parameters: Mapping[str, object], parent: Parent | None = None
    ) -> None:
        """Begin to track; the MLflow run is made, or found again, by the thread. It is nested in its `parent`, if it has one."""
        self._context = context
        self._enabled = context.rank == 0
        self._tags = dict(tags)
        self._parameters = {name: str(value)[:MAX_PARAM_CHARS] for name, value in parameters.items()}
        self._parent = parent
        self._started_at_ms = _now_ms()
        self._pending: list[Point] = []
        self._lost = 0
        self._step = 0
        """Of the newest metrics: samples of the machine are logged with it."""
        self._num_kept = 0
        """Parts of the journal that this attempt wrote."""
        self._is_described = False
        self._has_kept = True
        """The journal may hold points: those of the attempt before, until they were sent."""
        self._client: Any = None
        self._away_until = 0.0
        self._away_reason = ""
        self._pause_seconds = RETRY_SECONDS
        self._closing = threading.Event()
        self._keeping = threading.Lock()
        self.run_id: str | None = None
        """Of MLflow, once it is known."""
        request = context.request
        key = context.store.bucket.key(context.store.address(request.pipeline, request.stage, request.fingerprint).uri)
        self._journal = RunJournal(context.store.bucket, key)
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._live: LiveMetrics | None = None
        if self._enabled and (name := journal_name(request.stage, request.run.run_id, request.parameters)) is not None:
            self._live = LiveMetrics(MetricJournal(context.store.bucket, request.pipeline, name), request.attempt_id)
        if self._enabled:
            for name, value in QUICK.items():
                os.environ.setdefault(name, value)
            self._thread.start()

    def log(self, step: int, **metrics: float) -> None:
        """Queue metrics of a step; takes about a microsecond."""
        if not self._enabled:
            return
        self._step, now = step, _now_ms()
        points = [(name, value, step, now) for name, value in metrics.items()]
        if self._live is not None:
            self._live.extend(points)
        if len(self._pending) > MAX_PENDING:
            self._lost += len(metrics)
            return
        self._pending.extend(points)

    def close(self) -> bool:
        """Send what is left, for up to 10 s; put the rest into the store. Return whether MLflow has everything."""
        if not self._enabled:
            return True
        self._closing.set()
        if self._live is not None:
            self._live.close()
        self._thread.join(CLOSE_SECONDS)
        if self._pending:
            self._keep()
        is_complete = self.run_id is not None and not self._has_kept and not self._pending
        if not is_complete:
            logger.warning("tracking delayed: metrics wait in the store for MLflow (%s)", self._away_reason or "it answers slowly")
        if self._lost:
            logger.warning("tracking: %d points were dropped, MLflow and the store were away too long", self._lost)
        return is_complete

    def _run(self) -> None:
        # It sends while the work hangs: no progress of the work's.
        liveness.in_background()
        opens_by = time.monotonic() + OPEN_SECONDS
        machine = MachineMetrics(Nvml(GPUS.value()) if self._context.request.parameters.get("device") else None)
        while not self._closing.wait(FLUSH_SECONDS):
            if found := machine.sample_if_due():
                self.log(self._step, **found)
            if self._pending or time.monotonic() >= opens_by:
                self._flush()
        self._away_until = 0.0
        self._flush()

    def _flush(self) -> None:
        if time.monotonic() < self._away_until:
            return
        try:
            if self.run_id is None:
                self._open()
            if self._has_kept:
                deliver(self._client, self._journal, is_running=True)
                self._has_kept = False
            while self._pending:
                batch = self._pending[:MAX_BATCH]
                send(self._client, str(self.run_id), batch)
                del self._pending[: len(batch)]
            self._away_reason, self._pause_seconds = "", RETRY_SECONDS
        except Exception as err:
            # A failure of the tracking server or its client never ends a training.
            if not self._away_reason:
                logger.warning("MLflow is away, metrics are kept: %s", first_line(err))
            self._away_reason = first_line(err)
            self._away_until = time.monotonic() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, MAX_RETRY_SECONDS)
            self._keep()

    def _open(self) -> None:
        self._describe()
        # Takes a second: in the thread, during the first steps.
        with lean_imports(deferred=MLFLOW_DEFERRED, absent=MLFLOW_OPTIONAL):
            import mlflow

        self._client = mlflow.MlflowClient()
        self.run_id = open_run(self._client, self._journal)

    def _describe(self) -> None:
        """Record in the store how the run is made, before it is made: the first process that reaches MLflow makes it so."""
        if self._is_described:
            return
        pipeline, name, parent = self._context.request.pipeline, self._name(), None
        if self._parent is not None:
            name, parent = self._parent.child_name, self._parent.key.removesuffix(RECORD_NAME)
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
        self._is_described = True

    def _keep(self) -> None:
        """Move the points that wait from memory to the store."""
        with self._keeping:
            points = self._pending[:]
            try:
                self._describe()
                if points:
                    self._has_kept = True
                    self._journal.append(self._context.request.attempt_id, self._num_kept, points)
                    self._num_kept += 1
                    del self._pending[: len(points)]
            except NightshiftError as err:
                logger.warning("metrics could not be kept in the store: %s", err)

    def finish(self, status: str) -> None:
        """Set the run's status (`FINISHED`, `FAILED`); where MLflow is away, it is delivered with the metrics."""
        if not self._enabled:
            return
        ended_at_ms = _now_ms()
        try:
            if self.run_id is not None and not self._has_kept:
                self._client.set_terminated(self.run_id, status, ended_at_ms)
                return
        except Exception as err:
            logger.warning("MLflow run %s could not be closed: %s", self.run_id, first_line(err))
        try:
            self._journal.end(self._context.request.attempt_id, End(status=status, ended_at_ms=ended_at_ms))
        except NightshiftError as err:
            logger.warning("the status of the MLflow run could not be kept in the store: %s", err)

    def _name(self) -> str:
        """Return the instant of the run in the pipeline's time zone; its id is the tag `nightshift.run_id`."""
        spec = self._context.spec
        return f"{datetime.fromisoformat(self._context.request.as_of).astimezone(ZoneInfo(spec.timezone)):%Y-%m-%d %H:%M %Z}"

    def _all_tags(self) -> dict[str, str]:
        request = self._context.request
        state = git_state()
        return {
            "nightshift.pipeline": request.pipeline,
            "nightshift.run_id": request.run.run_id,
            "nightshift.fingerprint": request.fingerprint,
            "nightshift.as_of": request.as_of,
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
