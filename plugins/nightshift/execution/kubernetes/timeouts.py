"""How long a launch may wait for what: a pure function, so that tests need no clock."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from nightshift.execution.attempt_end import PARTIAL
from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.status import LaunchStatus, seconds_since
from training.spec.scalar_types import duration_text


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchTimeouts:
    """Seconds that a launch may wait, and instants that they depend on, in seconds since the epoch."""

    schedule_seconds: float
    start_seconds: float
    image_seconds: float
    unplaced_seconds: float = 0.0
    """After which an elastic gang continues with fewer nodes; 0: never."""
    partial_seconds: float = 0.0
    """After which a gang that has only a part of its nodes gives them back, unless it may continue with fewer; 0: never."""
    waiting_since: float = 0.0
    """Of the work, over launches that gave back what they had; 0: this launch is the first one that waits."""
    begins_at: float = 0.0
    """Before which nothing is requested: there is nothing in the cluster to look at; 0: it was requested."""

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def limits_of(cluster: Cluster, *, may_shrink: bool, waiting_since: str = "", begins_at: str = "") -> LaunchTimeouts:
    """Return a cluster's limits.

    Args:
        may_shrink: the launch is of a gang that was lost, and may continue with fewer nodes. That is better than to hold nothing, so
            `elastic_wait` alone limits how long it keeps a part of its nodes.
        waiting_since, begins_at: of the launch, as `LaunchRecord` has them.
    """
    return LaunchTimeouts(
        schedule_seconds=cluster.schedule_timeout.total_seconds(),
        start_seconds=cluster.start_timeout.total_seconds(),
        image_seconds=cluster.image_timeout.total_seconds(),
        unplaced_seconds=cluster.elastic_wait.total_seconds() if may_shrink else 0.0,
        partial_seconds=cluster.partial_wait.total_seconds(),
        waiting_since=_epoch_seconds(waiting_since),
        begins_at=_epoch_seconds(begins_at),
    )


def once_run(limits: LaunchTimeouts) -> LaunchTimeouts:
    """Return the limits of a launch that has run, if its queue takes its nodes: it was not lost, and its wait begins with that."""
    return replace(limits, unplaced_seconds=0.0, waiting_since=0.0)


def waited_seconds(status: LaunchStatus, limits: LaunchTimeouts, now: datetime) -> float:
    """Return how long the work waits for a place."""
    # A trigger that a new triggerer started does not know that the launch has run; its Job does.
    is_counted_on = limits.waiting_since and not status.was_preempted
    earlier_seconds = now.timestamp() - limits.waiting_since if is_counted_on else 0.0
    return max(seconds_since(status.waiting_since, now), earlier_seconds)


def overdue(
    status: LaunchStatus,
    limits: LaunchTimeouts,
    *,
    waited_seconds: float,
    bad_image_since: datetime | None,
    now: datetime,
    partial_since: datetime | None = None,
) -> LaunchStatus | None:
    """Return how a launch ends that has waited too long, None while it may wait.

    Args:
        waited_seconds: for a place, as `waited_seconds` has them.
        bad_image_since: when the first pull of the image was seen to fail.
        partial_since: since when some of a gang's members have a node and others have none.
    """
    if status.phase != "waiting":
        return None
    if status.code in ("pod.image_refused", "pod.config"):
        # Neither mends itself.
        return replace(status, phase="ended")
    if bad_image_since is not None and (now - bad_image_since).total_seconds() > limits.image_seconds:
        return replace(status, phase="ended", words=f"{status.words}; tried for {_text(limits.image_seconds)}")
    may_hold = not limits.partial_seconds or bool(limits.unplaced_seconds)
    held_seconds = 0.0 if partial_since is None or may_hold else (now - partial_since).total_seconds()
    if held_seconds > limits.partial_seconds and waited_seconds <= limits.schedule_seconds:
        words = f"{status.words}; gave back the nodes that it had, after {_text(limits.partial_seconds)} without the others"
        return replace(status, phase="ended", code=PARTIAL, words=words)
    has_place = bool(status.started_at) and status.code not in ("pod.unschedulable", "pod.queued", "gang.queued")
    if has_place:
        if seconds_since(status.started_at, now) > limits.start_seconds:
            words = f"{status.words or 'no container'}: not started within {_text(limits.start_seconds)} of having a node"
            return replace(status, phase="ended", code="pod.start_timeout", words=words)
        return None
    if limits.unplaced_seconds and waited_seconds > limits.unplaced_seconds:
        words = f"no place for all members within {_text(limits.unplaced_seconds)}: going on with fewer; {status.words}"
        return replace(status, phase="ended", code="gang.unplaced", words=words)
    if waited_seconds > limits.schedule_seconds:
        words = f"{status.words or 'no node'}; waited {_text(limits.schedule_seconds)}"
        return replace(status, phase="ended", code=status.code or "pod.unschedulable", words=words)
    return None


def _epoch_seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _text(seconds: float) -> str:
    return duration_text(timedelta(seconds=round(seconds)))
