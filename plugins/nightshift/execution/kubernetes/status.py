"""What the cluster says of a launch: read from the API's own JSON, by pure functions, the same for operator, trigger and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal, Self

from nightshift.execution.kubernetes.manifests import CONTAINER, INDEX_LABEL, QUEUE_LABEL, STOPPED
from training.contracts import JsonObject
from training.spec.scalar_types import parse_size, size_text

Json = Mapping[str, Any]
Phase = Literal["absent", "waiting", "running", "ended"]

PREEMPTIONS: Final = frozenset({"Evicted", "Preempting", "Terminated", "NodeShutdown", "NodeLost", "Shutdown", "UnexpectedAdmissionError"})
"""Reasons in a pod's status that say: the node, not the stage."""
OVER_ITS_LIMIT: Final = "exceed"
"""In the kubelet's words for a pod that wrote more than `scratch` or `shared_memory`; those for a full node do not have it."""
BAD_IMAGE: Final = frozenset({"ImagePullBackOff", "ErrImagePull"})
HOPELESS_IMAGE: Final = frozenset({"InvalidImageName", "ErrImageNeverPull"})
BAD_CONTAINER: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
BAD_START: Final = frozenset({"StartError", "ContainerCannotRun"})
OOM_KILLED: Final = "OOMKilled"
KILLED: Final = 137
MAX_WORDS_CHARS: Final = 2000
MAX_TAIL_LINES: Final = 200
"""Of a member that failed: torchrun's report has 50, and the stacks of a rank that hung are before it."""
MAX_TAILS: Final = 32
"""Members whose last lines are read after a failure."""
ADMITTED_GENERATION: Final = 2
"""Of a Job that its queue has admitted once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchStatus:
    """One look at a launch."""

    phase: Phase
    code: str = ""
    """Stable and dotted: `pod.oom`, `pod.preempted`, `pod.image`, `pod.unschedulable`, `pod.config`, `gang.queued` …; else empty."""
    words: str = ""
    """For people: why it waits, or how it ended."""
    exit_code: int | None = None
    """Of the container that ended first with something other than 0, where one did."""
    member: str = ""
    """Pod whose end it was."""
    failed: tuple[str, ...] = ()
    """Pods that ended badly."""
    started_at: str = ""
    ended_at: str = ""
    node: str = ""
    waiting_since: str = ""
    """When it or the newest member that waits was created, or its queue last suspended or resumed it; empty while that is going on."""
    was_preempted: bool = False
    """Its queue admitted it and suspended it since: the wait of launches before this one is over."""
    is_partly_placed: bool = False
    """Some members of a gang have a node, and others have none."""
    partly_placed_since: str = ""
    """Empty where members are missing: the API does not say since when."""

    @property
    def succeeded(self) -> bool:
        return self.phase == "ended" and self.exit_code == 0

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Json) -> Self:
        return cls(**{**values, "failed": tuple(values.get("failed", ()))})


ABSENT: Final = LaunchStatus(phase="absent", code="pod.gone", words="it is not in the cluster")


def look_at_pod(pod: Json | None) -> LaunchStatus:
    """Return what a Pod's JSON says, None standing for 404."""
    if pod is None:
        return ABSENT
    status = pod.get("status") or {}
    name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "")
    facts: dict[str, Any] = {"member": name, "node": node, "started_at": status.get("startTime", "")}
    terminated = _terminated(status)
    if terminated is not None or status.get("phase") in ("Succeeded", "Failed"):
        return _ended(pod, status, terminated, facts)
    state = _container(status).get("state") or {}
    if "running" in state:
        return LaunchStatus(phase="running", **facts)
    code, words = _why_waiting(pod, status, state.get("waiting") or {})
    since = str(pod["metadata"].get("creationTimestamp", ""))
    return LaunchStatus(phase="waiting", code=code, words=words, waiting_since=since, **facts)


def look_at_gang(job: Json | None, pods: Sequence[Json]) -> LaunchStatus:
    """Return what a Job's JSON and its pods' say together.

    The whole is over when the Job is, or as soon as one member has failed by itself: what the others still do counts for nothing. Members
    that end because the Job was suspended, or a person deleted them, are started again by the Job controller; so nothing is over then.
    """
    if job is None:
        return ABSENT
    seen = [(pod, look_at_pod(pod)) for pod in sorted(pods, key=member_index)]
    resumed_at = _resumed_at(job)
    members = [status for pod, status in seen if not _is_replaced(pod, status, resumed_at)]
    is_suspended = bool((job.get("spec") or {}).get("suspend"))
    conditions = {item["type"]: item for item in (job.get("status") or {}).get("conditions") or [] if item.get("status") == "True"}
    bad = [status for status in members if status.phase == "ended" and not status.succeeded]
    if "Failed" in conditions or "FailureTarget" in conditions or (bad and not is_suspended):
        condition = conditions.get("Failed") or conditions.get("FailureTarget") or {}
        return _gang_failed(bad, condition, job)
    if "Complete" in conditions or "SuccessCriteriaMet" in conditions:
        return LaunchStatus(phase="ended", exit_code=0, words="all members ended with success")
    since, was_preempted = _waiting_since(job), _was_preempted(job)
    if is_suspended:
        queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL, "")
        words = f"waiting for admission by queue {queue or 'of the cluster'}{_whose_workload(job)}"
        if pods:
            words = f"suspended: its members save what they have and end; then {words}"
        return LaunchStatus(phase="waiting", code="gang.queued", words=words, waiting_since=since, was_preempted=was_preempted)
    wanted = (job.get("spec") or {}).get("completions") or 1
    running = [status for status in members if status.phase == "running"]
    if len(running) + sum(status.succeeded for status in members) >= wanted:
        return LaunchStatus(phase="running", words=f"{wanted} members run", started_at=max(status.started_at for status in members))
    waiting = [status for status in members if status.phase == "waiting"]
    if since:
        # A member that was deleted after days is made again: the wait for its place begins with that.
        since = max([since, *(status.waiting_since for status in waiting)])
    partly, partly_since = _partly_placed([pod for pod, status in seen if status.phase != "ended"], wanted)
    facts: dict[str, Any] = {"waiting_since": since, "was_preempted": was_preempted}
    facts |= {"is_partly_placed": partly, "partly_placed_since": partly_since}
    if not waiting:
        why = f"`kubectl describe job {job['metadata']['name']} -n {job['metadata']['namespace']}` says why others do not"
        return LaunchStatus(phase="waiting", code="gang.forming", words=f"{len(members)} of {wanted} members exist; {why}", **facts)
    # The member that cannot be placed says more than those that are only starting.
    first = next((status for status in waiting if status.code == "pod.unschedulable"), None) or max(
        waiting, key=lambda status: bool(status.words)
    )
    count = f"{len(running)} of {wanted} members run"
    placed = next((status.started_at for status in waiting if status.started_at), "")
    words = f"{count}; {first.member}: {first.words or 'starting'}"
    return LaunchStatus(phase="waiting", code=first.code, words=words, started_at=placed, **facts)


def _whose_workload(queued: Json) -> str:
    """Say where Kueue writes what a Pod or Job waits for, such as a LocalQueue that does not exist: this account may not read it."""
    metadata = queued["metadata"]
    return f"; what it lacks: `kubectl describe workloads -n {metadata['namespace']} -l kueue.x-k8s.io/job-uid={metadata['uid']}`"


def _is_replaced(pod: Json, status: LaunchStatus, resumed_at: str) -> bool:
    """Return whether the Job controller makes another member for one that was stopped (`podFailurePolicy`).

    It was deleted; or it stopped with the others while the Job was suspended, before the controller came to delete it, and stays.
    """
    if status.phase != "ended" or status.exit_code not in STOPPED or status.code == "pod.preempted":
        return False
    return "deletionTimestamp" in pod["metadata"] or "" < status.ended_at <= resumed_at


def _resumed_at(job: Json) -> str:
    """Return when a Job's queue resumed it last; empty where it did not."""
    changed = _find(job.get("status") or {}, "Suspended") or {}
    return str(changed.get("lastTransitionTime", "")) if changed.get("status") == "False" else ""


def _waiting_since(job: Json) -> str:
    """Return since when a Job waits for its queue or its nodes; empty while its controller follows a change of `suspend`."""
    status = job.get("status") or {}
    is_suspended = bool((job.get("spec") or {}).get("suspend"))
    changed = _find(status, "Suspended")
    if changed is not None:
        return str(changed.get("lastTransitionTime", "")) if (changed.get("status") == "True") == is_suspended else ""
    return "" if is_suspended and status.get("startTime") else str(job["metadata"].get("creationTimestamp", ""))


def _was_preempted(job: Json) -> bool:
    """Return whether a queue has admitted a Job and suspended it since.

    The condition has the last change alone. Each one is a generation of the Job: made suspended is the first, admitted the second.
    """
    return bool((job["metadata"].get("labels") or {}).get(QUEUE_LABEL)) and int(job["metadata"].get("generation", 1)) > ADMITTED_GENERATION


def _partly_placed(pods: Sequence[Json], wanted: int) -> tuple[bool, str]:
    """Return whether some members of a gang have a node and others have none, and since when, where all members exist."""
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    placed = [pod for pod in staying if pod.get("spec", {}).get("nodeName")]
    if not 0 < len(placed) < wanted:
        return False, ""
    if len(staying) < wanted:
        return True, ""
    held_since = min(_placed_at(pod) for pod in placed)
    # A member that the Job controller made later has been missing since then.
    return True, max([held_since, *(str(pod["metadata"].get("creationTimestamp", "")) for pod in staying if pod not in placed)])


def _placed_at(pod: Json) -> str:
    status = pod.get("status") or {}
    return str((_find(status, "PodScheduled") or {}).get("lastTransitionTime") or status.get("startTime") or "")


def member_index(pod: Json) -> int:
    """Return a member's index in its gang, 0 for a pod alone."""
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX_LABEL) or (metadata.get("annotations") or {}).get(INDEX_LABEL) or "0"
    return int(text)


def memory_limit_bytes(pod: Json) -> int:
    """Return the memory that a pod's stage may have; 0: not known."""
    for container in pod.get("spec", {}).get("containers") or []:
        limit = (container.get("resources") or {}).get("limits", {}).get("memory")
        if container["name"] == CONTAINER and limit:
            return parse_size(limit) if not str(limit).isdigit() else int(limit)
    return 0


def _gang_failed(bad: list[LaunchStatus], condition: Json, job: Json) -> LaunchStatus:
    """The first cause is not the first in the list: a member that lost its peer fails too, and says only that."""
    cause = min(bad, key=_rank_of_cause, default=None)
    failed = tuple(status.member for status in bad)
    # A pod that was evicted or deleted leaves nothing to read but the Job's word for the rule of ours that it fell under.
    said = str(condition.get("message", ""))
    # One that its queue suspended failed because a member did not end in its time of grace.
    was_taken = "DisruptionTarget" in said or bool((job.get("spec") or {}).get("suspend"))
    if cause is None or (was_taken and cause.code not in ("pod.oom", "pod.storage", "pod.preempted")):
        words = f"Job {job['metadata']['name']} failed: {condition.get('reason', '')} {said}".strip()
        code = "pod.preempted" if was_taken else "pod.gone"
        return LaunchStatus(phase="ended", code=code, words=words[:MAX_WORDS_CHARS], failed=failed)
    words = f"{cause.member}: {cause.words}"
    return LaunchStatus(phase="ended", code=cause.code, words=words, exit_code=cause.exit_code, member=cause.member, failed=failed)


def _rank_of_cause(status: LaunchStatus) -> tuple[int, str]:
    order = ("pod.oom", "pod.storage", "pod.preempted", "pod.config", "pod.image")
    if status.code in order:
        return order.index(status.code), status.ended_at
    return len(order) + (status.exit_code != KILLED) + (status.exit_code in STOPPED), status.ended_at


def _ended(pod: Json, status: Json, terminated: Json | None, facts: dict[str, Any]) -> LaunchStatus:
    facts["ended_at"] = (terminated or {}).get("finishedAt") or ""
    disruption = _disruption(status)
    exit_code = None if terminated is None else int(terminated.get("exitCode", 1))
    if exit_code == 0:
        return LaunchStatus(phase="ended", exit_code=0, words="ended with success", **facts)
    facts |= {"exit_code": exit_code, "failed": (facts["member"],)}
    reason = status.get("reason") or ""
    if terminated is not None and terminated.get("reason") == OOM_KILLED:
        limit = memory_limit_bytes(pod)
        words = f"out of memory: killed at its limit of {size_text(limit)}" if limit else "out of memory"
        return LaunchStatus(phase="ended", code="pod.oom", words=words, **facts)
    said = str(status.get("message") or "")
    if reason == "Evicted" and OVER_ITS_LIMIT in said:
        words = f"wrote more than it may: {said}"[:MAX_WORDS_CHARS]
        return LaunchStatus(phase="ended", code="pod.storage", words=words, **facts)
    if disruption is not None or reason in PREEMPTIONS:
        notice: Json = disruption or {}
        why = " ".join(filter(None, [reason or notice.get("reason", ""), status.get("message") or notice.get("message", "")]))
        words = f"taken away: {why}"[:MAX_WORDS_CHARS]
        return LaunchStatus(phase="ended", code="pod.preempted", words=words, **facts)
    if reason == "DeadlineExceeded":
        return LaunchStatus(phase="ended", code="pod.deadline", words="it ran longer than it may", **facts)
    text = str((terminated or {}).get("message") or status.get("message") or "")
    # torchrun ends its report with a rule.
    lines = [line.strip() for line in text.splitlines() if any(character.isalpha() for character in line)]
    cause = (terminated or {}).get("reason") or reason or "no reason given"
    words = f"exit code {exit_code} ({cause})" + (f": {lines[-1][:500]}" if lines else "")
    code = "pod.config" if cause in BAD_START else "pod.failed"
    return LaunchStatus(phase="ended", code=code, words=words, **facts)


def _why_waiting(pod: Json, status: Json, waiting: Json) -> tuple[str, str]:
    scheduled = _find(status, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return "pod.queued", f"waiting for admission by its queue{_whose_workload(pod)}"
        return "pod.unschedulable", f"no place yet: {scheduled.get('message') or scheduled.get('reason') or 'no reason given'}"
    reason = waiting.get("reason") or ""
    image = next((item["image"] for item in pod.get("spec", {}).get("containers") or [] if item["name"] == CONTAINER), "?")
    said = f": {waiting['message']}" if waiting.get("message") else ""
    if reason in BAD_IMAGE:
        return "pod.image", f"image {image} cannot be pulled ({reason}){said}"
    if reason in HOPELESS_IMAGE:
        return "pod.image_refused", f"image {image} cannot be used ({reason}){said}"
    if reason in BAD_CONTAINER:
        return "pod.config", f"the container cannot be made ({reason}){said}"
    return "", f"{reason}{said}" if reason else "waiting for a node" if scheduled is None else "starting"


def _container(status: Json) -> Json:
    found = [item for item in status.get("containerStatuses") or [] if item["name"] == CONTAINER]
    return found[0] if found else {}


def _terminated(status: Json) -> Json | None:
    found: Json | None = (_container(status).get("state") or {}).get("terminated")
    return found


def _find(status: Json, kind: str) -> Json | None:
    return next((item for item in status.get("conditions") or [] if item["type"] == kind), None)


def _disruption(status: Json) -> Json | None:
    found = _find(status, "DisruptionTarget")
    return found if found is not None and found.get("status") == "True" else None


def seconds_since(text: str, now: datetime) -> float:
    """Return the age of one of the API's times, 0 for none."""
    return (now - datetime.fromisoformat(text)).total_seconds() if text else 0.0
