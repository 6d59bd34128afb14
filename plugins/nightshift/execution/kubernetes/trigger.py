"""Watches a launch from the triggerer, where waiting costs no worker slot: its state, and the log of its first member, live.

Losing the triggerer loses nothing: another one starts this trigger again from its arguments and looks at the cluster again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import ClientError
from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
from airflow.triggers.base import BaseTrigger, TriggerEvent
from kubernetes_asyncio import client
from kubernetes_asyncio.client.exceptions import ApiException

from nightshift.execution.attempt_end import PARTIAL
from nightshift.execution.kubernetes.logs import LogFollower, checked
from nightshift.execution.kubernetes.manifests import LAUNCH_LABEL
from nightshift.execution.kubernetes.status import Json, LaunchStatus, look_at_gang, look_at_pod, member_index, seconds_since
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts, once_run, overdue, waited_seconds
from nightshift.execution.metric_copies import DEFERRED_SECONDS, copied_live
from training.contracts import JsonValue

DENIED: Final = frozenset({401, 403})
MAX_DENIALS: Final = 10
"""Consecutive refusals, which take three minutes: a token that is being renewed, or a Role that is being replaced, ends no training."""
SAY_EVERY_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 15.0
"""How long the members that are left have, once one has failed, to end by themselves and save what they have."""
RECONNECT_SECONDS: Final = 600.0
"""Tokens of some clouds live for a quarter of an hour."""
MAX_FAULT_PAUSE_SECONDS: Final = 30.0


class WatchLaunch(BaseTrigger):
    """Fires once the launch has ended, is missing, has waited too long, or is to be requested. The event: `{number, seen}`."""

    def __init__(
        self,
        *,
        number: int,
        name: str,
        kind: str,
        namespace: str,
        limits: dict[str, float],
        connection: str | None,
        in_cluster: bool | None,
        metrics: str | None = None,
    ) -> None:
        """Watch launch `number`, the `kind` (Pod or Job) of that name; `limits` as of `LaunchTimeouts`.

        Args:
            metrics: `<pipeline>/<journal>` that the launch writes, of which SQL clients get the points meanwhile; None: it writes none.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = number
        self.name = name
        self.kind = kind
        self.namespace = namespace
        self.limits = limits
        self.connection = connection
        self.in_cluster = in_cluster
        self.metrics = metrics
        self._said = ""
        self._said_at = -SAY_EVERY_SECONDS
        self._fired = False
        self._num_faults = 0
        self._num_denials = 0
        self._ran_at: datetime | None = None
        self._is_preempted = False
        self._bad_image_since: datetime | None = None
        self._partial_since: datetime | None = None

    def serialize(self) -> tuple[str, dict[str, JsonValue]]:
        names = ("number", "name", "kind", "namespace", "limits", "connection", "in_cluster", "metrics")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        pipeline, _, journal = (self.metrics or "").partition("/")
        with copied_live(pipeline, journal, DEFERRED_SECONDS) if journal else nullcontext():
            status = await self._until_over()
        self._fired = True
        yield TriggerEvent({"number": self.number, "seen": status.to_json()})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """The task was ended by a user: end the launch, whose processes have the grace period for a last checkpoint."""
        if self._fired:
            return
        self.log.info("the task was ended: deleting %s %s; its processes save a checkpoint and end", self.kind, self.name)
        async with self._hook().get_conn() as api:
            delete = client.CoreV1Api(api).delete_namespaced_pod if self.kind == "Pod" else client.BatchV1Api(api).delete_namespaced_job
            await checked(delete(self.name, self.namespace, propagation_policy="Background", _preload_content=False))

    async def _until_over(self) -> LaunchStatus:
        if begins_at := LaunchTimeouts(**self.limits).begins_at:
            pause_seconds = max(0.0, begins_at - datetime.now(UTC).timestamp())
            self.log.info(
                "%s %s: holds nothing in the cluster, and asks for all of its nodes in %.0f s", self.kind, self.name, pause_seconds
            )
            await asyncio.sleep(pause_seconds)
            return LaunchStatus(phase="waiting", code=PARTIAL, words="it may be requested")
        log: LogFollower | None = None
        while True:
            try:
                async with self._hook().get_conn() as api:
                    log = LogFollower(api, self.namespace, self.log, after=log)
                    status = await self._look_for_a_while(api, log)
                if status is not None:
                    return status
            except ApiException as err:
                self._num_denials += err.status in DENIED
                if self._num_denials > MAX_DENIALS:
                    words = f"Airflow may not watch {self.kind} {self.name}: {err.reason}"
                    return LaunchStatus(phase="ended", code="kubernetes.denied", words=words)
                await self._after_fault(err)
            except (ClientError, OSError, TimeoutError) as err:
                await self._after_fault(err)

    async def _after_fault(self, err: Exception) -> None:
        self._say(f"the cluster does not answer ({err!s:.200}); the launch keeps running; retrying", urgent=False)
        pause_seconds = min(2.0**self._num_faults, MAX_FAULT_PAUSE_SECONDS)
        self._num_faults += 1
        await asyncio.sleep(pause_seconds)

    async def _look_for_a_while(self, api: Any, log: LogFollower) -> LaunchStatus | None:
        """Return the end, or None when it is time to reconnect."""
        began = datetime.now(UTC)
        failed_at: datetime | None = None
        while True:
            now = datetime.now(UTC)
            top, pods = await self._read(api)
            self._num_faults = self._num_denials = 0
            status = look_at_pod(top) if self.kind == "Pod" else look_at_gang(top, pods)
            await log.follow(pods)
            status = self._note(status, now)
            self._say(status.words if status.phase == "waiting" else "", urgent=True)
            if status.phase == "absent":
                return status
            if status.phase == "ended":
                if failed_at is None and not status.succeeded:
                    await log.remember(pods)
                failed_at = failed_at or now
                left = [pod for pod in pods if look_at_pod(pod).phase == "running"]
                if not left or (now - failed_at).total_seconds() > SETTLE_SECONDS:
                    await (log.follow(pods) if status.succeeded else log.finish(pods))
                    return status
            late = self._overdue(status, now)
            if late is not None:
                return late
            if (now - began).total_seconds() > RECONNECT_SECONDS:
                return None
            age_seconds = 0.0 if top is None else seconds_since(top["metadata"].get("creationTimestamp", ""), now)
            await asyncio.sleep(_pause_seconds(age_seconds))

    def _note(self, status: LaunchStatus, now: datetime) -> LaunchStatus:
        """Remember since when things are as they are, and say what a queue does to a launch that ran; return the status by that."""
        self._bad_image_since = (self._bad_image_since or now) if status.code == "pod.image" else None
        self._partial_since = (self._partial_since or now) if status.is_partly_placed else None
        if status.phase == "running":
            self._ran_at = now
            if self._is_preempted:
                self.log.info("%s %s runs again, from its last commit", self.kind, self.name)
            self._is_preempted = False
        elif status.code == "gang.queued" and self._ran_at and not self._is_preempted:
            self._is_preempted = True
            words = "the same Job keeps its place in the queue and goes on from its last commit; no relaunch is used"
            self.log.warning("[pod.preempted] its queue took the nodes of %s %s: %s", self.kind, self.name, words)
        if self._ran_at and status.waiting_since and datetime.fromisoformat(status.waiting_since) < self._ran_at:
            # Its members were deleted, and new ones do not exist yet.
            return replace(status, waiting_since=self._ran_at.isoformat(timespec="seconds"))
        return status

    def _overdue(self, status: LaunchStatus, now: datetime) -> LaunchStatus | None:
        limits = once_run(LaunchTimeouts(**self.limits)) if self._ran_at else LaunchTimeouts(**self.limits)
        since = datetime.fromisoformat(status.partly_placed_since) if status.partly_placed_since else self._partial_since
        return overdue(
            status,
            limits,
            waited_seconds=waited_seconds(status, limits, now),
            bad_image_since=self._bad_image_since,
            now=now,
            partial_since=since,
        )

    async def _read(self, api: Any) -> tuple[Json | None, list[Json]]:
        core = client.CoreV1Api(api)
        if self.kind == "Pod":
            pod = await _json(core.read_namespaced_pod(self.name, self.namespace, _preload_content=False))
            return pod, [] if pod is None else [pod]
        job = await _json(client.BatchV1Api(api).read_namespaced_job(self.name, self.namespace, _preload_content=False))
        selector = f"{LAUNCH_LABEL}={self.name}"
        listed = await _json(core.list_namespaced_pod(self.namespace, label_selector=selector, _preload_content=False))
        return job, sorted((listed or {}).get("items", []), key=member_index)

    def _say(self, words: str, *, urgent: bool) -> None:
        """Say why it waits: when that changes, and once a minute."""
        now = datetime.now(UTC).timestamp()
        if not words or (words == self._said and now - self._said_at < SAY_EVERY_SECONDS) or (not urgent and now - self._said_at < 10):
            return
        self._said, self._said_at = words, now
        self.log.info("%s %s: %s", self.kind, self.name, words)

    def _hook(self) -> AsyncKubernetesHook:
        return AsyncKubernetesHook(conn_id=self.connection, kubernetes_conn_id=self.connection, in_cluster=self.in_cluster)


async def _json(reading: Any) -> Any:
    response = await checked(reading)
    return None if response is None else await response.json()


def _pause_seconds(age_seconds: float) -> float:
    """Look every second at first, and every five at what has run for ten minutes: a stage of seconds is not kept waiting."""
    return 1.0 if age_seconds < 120 else min(5.0, math.sqrt(age_seconds / 120))
