"""Metrics to MLflow, never in the step: an append to a list; a thread sends one batch each 500 ms.

What cannot be sent stays in the list, and goes to the store beside the attempt, from where the next attempt sends it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from training.contracts import canonical_json
from training.errors import NightshiftError
from training.provenance import environment, git_state
from training.stages.context import StageContext
from training.store import Bucket

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 10.0
MAX_BATCH: Final = 1000
MAX_PENDING: Final = 1_000_000
MAX_PARAM_CHARS: Final = 500

Point = tuple[str, float, int, int]
"""Name, value, step, milliseconds since the epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The MLflow run that others are nested in: a study's."""

    key: str
    """Of the bucket, where the first to make it says which it is."""
    name: str
    child_name: str
    tags: Mapping[str, str]


def parent_run(client: Any, bucket: Bucket, experiment_id: str, parent: Parent) -> str:
    """Return the id of the parent's run; of two that make it at once one is told, and takes its own back."""
    known = bucket.find(parent.key)
    if known is not None:
        return str(json.loads(known)["run_id"])
    made = client.create_run(experiment_id, run_name=parent.name, tags=dict(parent.tags)).info.run_id
    if bucket.create(parent.key, canonical_json({"run_id": made})):
        return str(made)
    client.delete_run(made)
    return str(json.loads(bucket.get(parent.key))["run_id"])


def finish_parent(bucket: Bucket, key: str, parameters: Mapping[str, str], metrics: Mapping[str, float]) -> None:
    """Log what came of the runs that are nested in the parent's, and close it; whatever MLflow does, the work stands."""
    known = bucket.find(key)
    if known is None:
        return
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    try:
        import mlflow

        client, run_id = mlflow.MlflowClient(), str(json.loads(known)["run_id"])
        for name, value in metrics.items():
            client.log_metric(run_id, name, value)
        client.log_batch(run_id, params=[mlflow.entities.Param(name, value[:MAX_PARAM_CHARS]) for name, value in parameters.items()])
        client.set_terminated(run_id, "FINISHED")
    except Exception as err:
        logger.warning("MLflow run of %s could not be closed: %s", key, str(err).splitlines()[0][:200])


class Tracker:
    """One training's MLflow run. Rank 0 tracks; elsewhere every call is a no-op."""

    def __init__(
        self, context: StageContext, *, tags: Mapping[str, str], parameters: Mapping[str, Any], parent: Parent | None = None
    ) -> None:
        """Begin to track; the MLflow run is made, or found again, by the thread. It is nested in its `parent`, if it has one."""
        self._context = context
        self._enabled = context.rank == 0
        self._tags = dict(tags)
        self._parameters = {name: str(value)[:MAX_PARAM_CHARS] for name, value in parameters.items()}
        self._parent = parent
        self._pending: list[Point] = []
        self._lost = 0
        self._client: Any = None
        self._away_until = 0.0
        self._away_reason = ""
        self._closing = threading.Event()
        self.run_id: str | None = None
        """Of MLflow, once it is known."""
        request = context.request
        self._prefix = context.store.bucket.key(context.store.address(request.pipeline, request.stage, request.fingerprint).uri)
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        if self._enabled:
            # In the thread an unreachable server may take its time, but not the default's four minutes.
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
            self._thread.start()

    def log(self, step: int, **metrics: float) -> None:
        """Queue metrics of a step; takes about a microsecond."""
        if not self._enabled:
            return
        now = int(time.time() * 1000)
        if len(self._pending) > MAX_PENDING:
            self._lost += len(metrics)
            return
        self._pending.extend((name, value, step, now) for name, value in metrics.items())

    def close(self) -> bool:
        """Send what is left, for up to 10 s; put the rest into the store. Return whether MLflow has everything."""
        if not self._enabled:
            return True
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        if self._pending:
            self._spool()
            logger.warning("tracking delayed: %d points wait in the store for MLflow (%s)", len(self._pending), self._away_reason)
        if self._lost:
            logger.warning("tracking: %d points were dropped, MLflow was away too long", self._lost)
        return not self._pending

    def _run(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            self._flush()
        self._away_until = 0.0
        self._flush()

    def _flush(self) -> None:
        if time.monotonic() < self._away_until:
            return
        try:
            if self.run_id is None:
                self._open()
            while self._pending:
                self._send(self._pending[:MAX_BATCH])
                del self._pending[:MAX_BATCH]
        except Exception as err:
            # Whatever a tracking server or its client does, training goes on.
            if not self._away_reason:
                logger.warning("MLflow is away, metrics are kept: %s", str(err).splitlines()[0][:200])
            self._away_reason = str(err).splitlines()[0][:200]
            self._away_until = time.monotonic() + RETRY_SECONDS
            self._spool()

    def _open(self) -> None:
        import mlflow  # two seconds: in the thread, beside the first steps

        self._client = mlflow.MlflowClient()
        known = self._context.store.bucket.find(f"{self._prefix}/tracking.json")
        if known is not None:
            self.run_id = json.loads(known)["run_id"]
        else:
            experiment = mlflow.set_experiment(self._context.request.pipeline)
            tags = self._all_tags()
            name = f"{self._context.request.run.run_id}"
            if self._parent is not None:
                tags["mlflow.parentRunId"] = parent_run(self._client, self._context.store.bucket, experiment.experiment_id, self._parent)
                name = self._parent.child_name
            run = self._client.create_run(experiment.experiment_id, run_name=name, tags=tags)
            self._context.store.bucket.create(f"{self._prefix}/tracking.json", canonical_json({"run_id": run.info.run_id}))
            self.run_id = run.info.run_id
            params = [mlflow.entities.Param(name, value) for name, value in self._parameters.items()]
            self._client.log_batch(self.run_id, params=params)
        self._away_reason = ""
        self._pending[:0] = self._unspool()

    def _send(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        self._client.log_batch(self.run_id, metrics=[Metric(name, value, at, step) for name, value, step, at in points])

    def finish(self, status: str, tags: Mapping[str, str]) -> None:
        """Set final tags and the run's status (`FINISHED`, `FAILED`), if MLflow is there."""
        if not self._enabled or self.run_id is None or self._client is None:
            return
        try:
            for name, value in tags.items():
                self._client.set_tag(self.run_id, name, value)
            self._client.set_terminated(self.run_id, status)
        except Exception as err:
            logger.warning("MLflow run %s could not be closed: %s", self.run_id, str(err).splitlines()[0][:200])

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
            **{f"nightshift.env.{name}": version for name, version in environment().items()},
            **self._tags,
        }

    def _spool(self) -> None:
        data = "\n".join(json.dumps(point) for point in self._pending)
        try:
            self._context.store.bucket.put(f"{self._prefix}/tracking-pending.jsonl", data.encode())
        except NightshiftError as err:
            logger.warning("metrics could not be kept in the store: %s", err)

    def _unspool(self) -> list[Point]:
        data = self._context.store.bucket.find(f"{self._prefix}/tracking-pending.jsonl")
        if not data:
            return []
        self._context.store.bucket.delete(f"{self._prefix}/tracking-pending.jsonl")
        mine = set(self._pending)
        return [point for line in data.decode().splitlines() if (point := tuple(json.loads(line))) not in mine]
