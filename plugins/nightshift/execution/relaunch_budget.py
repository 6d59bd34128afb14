"""The one rule of relaunches for all backends: what is started again, how often, and after which pause.

`retries.infrastructure` is the number of relaunches of one piece of work that a task may cause. What ran out of memory is relaunched
once beside that number: the first time may be caused by another process, the second time is taken for the pipeline's own need. A gang that
gave back the part of its nodes that it had ran nothing: it asks again out of no budget, as long as it may wait for a place at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from nightshift.execution.attempt_end import Action, AttemptEnd, StageEndedError
from training.contracts import sha256_hex
from training.spec import PipelineSpec
from training.spec.scalar_types import size_text
from training.stage_table import TRAININGS
from training.store import WorkFolder
from training.store.checkpoint_records import standing

PAUSE_STEP_SECONDS: Final = 1.0
MAX_PAUSE_STEPS: Final = 10
FIRST_BACK_OFF_SECONDS: Final = 60.0
MAX_BACK_OFF_SECONDS: Final = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaunches:
    """How often a task has relaunched its work, by cause. Where it is kept is the backend's to choose."""

    infrastructure: int = 0
    memory: int = 0
    releases: int = 0
    """In a row, since it last ran or was lost."""

    def with_one(self, relaunch: Relaunch) -> Relaunches:
        """Return the numbers after one more."""
        return Relaunches(
            infrastructure=self.infrastructure + (relaunch.cause == "infrastructure"),
            memory=self.memory + (relaunch.cause == "memory"),
            releases=self.releases + 1 if relaunch.cause == "placement" else 0,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaunch:
    """Start the work again from its last commit."""

    cause: Literal["infrastructure", "memory", "placement"]
    pause_seconds: float
    """Wait before the start."""
    words: str
    """For the task's log."""


def next_relaunch(end: AttemptEnd, done: Relaunches, spec: PipelineSpec, stage: str, *, name: str = "") -> Relaunch:
    """Return what follows an attempt without a result.

    Args:
        end: of the attempt. `WAIT` is a relaunch for a backend that cannot wait for another task's attempt.
        done: relaunches before this one.
        name: of the launch that ended, where a cluster has launches.

    Raises:
        StageEndedError: it does not: the end is final, or the budget is spent.
    """
    if end.action is Action.RELAUNCH_ONCE:
        if done.memory:
            raise StageEndedError(_failed(end, _memory_advice(spec, stage)))
        return Relaunch(cause="memory", pause_seconds=0.0, words=f"relaunch after out of memory, which is done once: {end.reason}")
    if end.action is Action.RELEASE:
        pause_seconds = back_off_seconds(name, done.releases)
        words = f"asks for all of its nodes again in {pause_seconds:.0f} s, which uses no relaunch: {end.reason}"
        return Relaunch(cause="placement", pause_seconds=pause_seconds, words=words)
    if end.action not in (Action.RELAUNCH, Action.WAIT):
        raise StageEndedError(end)
    budget, used = spec.retries.infrastructure, done.infrastructure
    if used >= budget:
        raise StageEndedError(_failed(end, f"relaunched {used} times already (retries.infrastructure)"))
    # The first time at once; what is lost again and again is given time.
    pause_seconds = PAUSE_STEP_SECONDS * min(used, MAX_PAUSE_STEPS)
    return Relaunch(cause="infrastructure", pause_seconds=pause_seconds, words=f"relaunch {used + 1} of {budget}: {end.reason}")


def back_off_seconds(name: str, releases: int) -> float:
    """Return how long a gang holds nothing after it gave back what it had: up to twice as long each time, a quarter of an hour at most.

    Two gangs that stand in each other's way have different names, and so ask again at different times.

    Args:
        name: of the launch that ended, which its number is part of.
        releases: in a row, before this one.
    """
    longest_seconds = min(FIRST_BACK_OFF_SECONDS * 2.0 ** min(releases, 10), MAX_BACK_OFF_SECONDS)
    share = int(sha256_hex(name.encode())[:8], 16) / 2**32
    return longest_seconds * (1.0 + share) / 2.0


def resumption(work_folder: WorkFolder) -> str:
    """Describe where the next attempt at a work resumes, by the work's chain."""
    checkpoints = [entry.value["payload"] for entry in standing(work_folder.chain().history(), attrgetter("value"))]
    if not checkpoints:
        return "starting from the beginning"
    return f"resuming from step {checkpoints[-1].get('step')}"


def _failed(end: AttemptEnd, words: str) -> AttemptEnd:
    return AttemptEnd(action=Action.FAIL, reason=f"{end.reason}; {words}", code=end.code, report_uri=end.report_uri)


def _memory_advice(spec: PipelineSpec, stage: str) -> str:
    """Describe the work of a stage that ran out of memory twice."""
    if stage not in TRAININGS:
        return "twice, so it is not retried (use a shorter data.source.window, or a machine with more memory)"
    placement = spec.train.placement
    memory = "none" if placement.memory is None else size_text(placement.memory)
    sizes = f"batch_size {spec.train.batch_size}, {placement.world_size} processes, placement.memory {memory}"
    return f"twice, so it is not retried ({sizes}: use a smaller batch or more memory)"
