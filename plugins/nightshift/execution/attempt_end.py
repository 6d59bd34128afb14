"""What to do about an attempt that ended without a result: the table of docs/kubernetes.md, as a pure function."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from training.contracts import ExitCode, JsonObject

MAX_TEXT_CHARS: Final = 3000
FINAL: Final = frozenset({ExitCode.BAD_SPEC, ExitCode.BAD_DATA, ExitCode.DIVERGED, ExitCode.NO_USABLE_CHECKPOINT, ExitCode.DENIED})
SIGNALS_START: Final = 128
KILLED: Final = frozenset({SIGNALS_START + signal.SIGKILL, int(ExitCode.UNEXPECTED)})
"""Exit codes after a SIGKILL: the process's own, or torchrun's 1."""
OUT_OF_MEMORY: Final = "pod.oom"
LOST_PEER: Final = "peer.lost"
TEMPLATE_LOST: Final = "process.template"
UNPLACED: Final = "gang.unplaced"
PARTIAL: Final = "gang.partial"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a stage's process ended. Whether it succeeded is the store's to say."""

    exit_code: int
    """As a shell reports it: 128 + n for signal n."""
    seconds: float
    oom_killed: bool = False
    """The kernel killed a process for memory during the attempt."""
    peak_bytes: int = 0
    """Resident memory of the largest of its processes; 0: not known."""
    limit_bytes: int = 0
    """Memory that it could have had; 0: not known."""
    code: str = ""
    """The reason for its end that is not its own (`pod.oom`, `pod.preempted`, `process.template` …); empty where there is none."""
    words: str = ""
    """The same for people."""

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that ended it, or None."""
        number = self.exit_code - 128
        return signal.Signals(number).name if number in set(signal.Signals) else None


class Action(Enum):
    """What follows an attempt without a result."""

    FAIL = "fail"
    """For good: the same would happen again."""
    RETRY = "retry"
    """Fail this try; Airflow tries again, out of the user's budget, after the backoff."""
    RELAUNCH = "relaunch"
    """Start again at once from the last commit, out of the infrastructure budget."""
    RELAUNCH_ONCE = "relaunch once"
    """Out of memory: the first time may be caused by another process."""
    RELEASE = "release"
    """It had a part of the nodes that it needs, and gave them back: ask again after a back-off, out of no budget."""
    AGAIN = "again"
    """Start again at once from the last commit, out of no budget: what it was forked from was killed."""
    WAIT = "wait"
    """Someone else is at the same work: wait for its result."""
    GIVE_UP = "give up"
    """A newer attempt has the work; this try is history."""


ACTION_OF_CLUSTER: Final = {
    "pod.preempted": Action.RELAUNCH,
    "pod.gone": Action.RELAUNCH,
    UNPLACED: Action.RELAUNCH,
    PARTIAL: Action.RELEASE,
    "pod.start_timeout": Action.RELAUNCH,
    "pod.storage": Action.FAIL,
    "pod.image": Action.FAIL,
    "pod.image_refused": Action.FAIL,
    "pod.config": Action.FAIL,
    "pod.unschedulable": Action.FAIL,
    "pod.queued": Action.FAIL,
    "gang.queued": Action.FAIL,
    "gang.forming": Action.FAIL,
    "pod.deadline": Action.FAIL,
    "kubernetes.denied": Action.FAIL,
}
"""What a cluster's word for an end means, where the stage itself left no word that is final."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    action: Action
    reason: str
    """For people, bounded."""
    code: str
    report_uri: str = ""
    """Of the page that shows what failed, where the attempt left one."""


class StageEndedError(Exception):
    """A stage's work ended without a result, and this try does not start it again: `end` says what that means for the task."""

    def __init__(self, end: AttemptEnd) -> None:
        super().__init__(end.reason)
        self.end = end


def judge(ended: Ended, error: JsonObject | None) -> AttemptEnd:
    """Classify the end of an attempt.

    Args:
        ended: how its process ended. torchrun turns every end of a worker into exit code 1, so the error file goes first.
        error: the attempt's `_ERROR.json`, or None.
    """
    end = _judge(ended, error)
    details = (error or {}).get("details")
    report_uri = details.get("report_uri") if isinstance(details, Mapping) else None
    return replace(end, report_uri=str(report_uri)) if report_uri else end


def _judge(ended: Ended, error: JsonObject | None) -> AttemptEnd:
    said = None if error is None else _of_error(error)
    if ended.code == OUT_OF_MEMORY:
        # A peer that lost the killed one reports first, and knows nothing of memory.
        return AttemptEnd(action=Action.RELAUNCH_ONCE, reason=ended.words, code=ended.code)
    if ended.oom_killed and ended.exit_code in KILLED and (said is None or said.code == LOST_PEER):
        # Here too.
        beside = "" if said is None else f"; {said.reason}"
        return AttemptEnd(action=Action.RELAUNCH_ONCE, reason=f"out of memory: killed by the kernel{beside}", code="memory.killed")
    if ended.code == TEMPLATE_LOST and (said is None or said.code == LOST_PEER):
        return AttemptEnd(
            action=Action.AGAIN, reason="the process that stages are forked from was killed, or could not fork", code=ended.code
        )
    if said is not None and (said.action is not Action.RELAUNCH or not ended.code):
        return said
    if ended.code in ACTION_OF_CLUSTER:
        beside = f"; {said.reason}" if said is not None else ""
        return AttemptEnd(action=ACTION_OF_CLUSTER[ended.code], reason=f"[{ended.code}] {ended.words}{beside}", code=ended.code)
    if said is not None:
        return said
    if ended.exit_code >= SIGNALS_START:
        name = ended.signal_name or f"signal {ended.exit_code - SIGNALS_START}"
        return AttemptEnd(action=Action.RELAUNCH, reason=f"killed by {name}", code="process.killed")
    if ended.exit_code == ExitCode.DONE:
        return AttemptEnd(action=Action.RELAUNCH, reason="ended with success and left no result", code="result.missing")
    if ended.exit_code == ExitCode.UNEXPECTED:
        # What a rank cannot report (kill -9) reaches us as torchrun's 1 without an error file.
        return AttemptEnd(
            action=Action.RELAUNCH, reason="a process of the stage was lost (exit code 1, no error file)", code="process.lost"
        )
    return _of_code(ended.exit_code, f"exit code {ended.exit_code}", "process.exit")


def _of_error(error: JsonObject) -> AttemptEnd:
    code = str(error.get("code", "unknown"))
    hint = f" ({error['hint']})" if error.get("hint") else ""
    text = f"[{code}] {error.get('message', '')}{hint}"
    bounded = text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + " …"
    if code == "lease.held":
        return AttemptEnd(action=Action.WAIT, reason=bounded, code=code)
    if code == "lease.lost":
        return AttemptEnd(action=Action.GIVE_UP, reason=bounded, code=code)
    exit_code = error.get("exit_code")
    return _of_code(exit_code if isinstance(exit_code, int) else ExitCode.UNEXPECTED, bounded, code)


def _of_code(exit_code: int, reason: str, code: str) -> AttemptEnd:
    if exit_code in {int(final) for final in FINAL}:
        return AttemptEnd(action=Action.FAIL, reason=reason, code=code)
    if exit_code == ExitCode.OUT_OF_MEMORY:
        return AttemptEnd(action=Action.RELAUNCH_ONCE, reason=reason, code=code)
    if exit_code == ExitCode.PREEMPTED:
        return AttemptEnd(action=Action.RELAUNCH, reason=reason, code=code)
    return AttemptEnd(action=Action.RETRY, reason=reason, code=code)
