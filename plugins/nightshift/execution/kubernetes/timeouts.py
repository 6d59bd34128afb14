"""How long a launch may wait for what: a pure function, so that tests need no clock."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.status import LaunchStatus, seconds_since
from training.spec.types import duration_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that a launch may wait."""

    schedule_seconds: float
    start_seconds: float
    image_seconds: float
    unplaced_seconds: float = 0.0
    """After which an elastic gang continues with fewer nodes; 0: never."""

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def limits_of(cluster: Cluster, *, may_shrink: bool) -> Limits:
    """Return a cluster's limits; `may_shrink`: the launch is of a gang that was lost, and may continue with fewer nodes."""
    return Limits(
        schedule_seconds=cluster.schedule_timeout.total_seconds(),
        start_seconds=cluster.start_timeout.total_seconds(),
        image_seconds=cluster.image_timeout.total_seconds(),
        unplaced_seconds=cluster.elastic_wait.total_seconds() if may_shrink else 0.0,
    )


def overdue(
    status: LaunchStatus, limits: Limits, *, waited_seconds: float, bad_image_since: datetime | None, now: datetime
) -> LaunchStatus | None:
    """Return how a launch ends that has waited too long, None while it may wait.

    Args:
        waited_seconds: age of what was created.
        bad_image_since: when the first pull of the image was seen to fail.
    """
    if status.phase != "waiting":
        return None
    if status.code in ("pod.image_refused", "pod.config"):
        # Neither mends itself.
        return replace(status, phase="ended")
    if bad_image_since is not None and (now - bad_image_since).total_seconds() > limits.image_seconds:
        return replace(status, phase="ended", words=f"{status.words}; tried for {_text(limits.image_seconds)}")
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
        return replace(status, phase="ended", words=f"{status.words or 'no node'}; waited {_text(limits.schedule_seconds)}")
    return None


def _text(seconds: float) -> str:
    from datetime import timedelta

    return duration_text(timedelta(seconds=round(seconds)))
