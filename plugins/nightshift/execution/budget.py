"""The one rule of relaunches for all backends: what is started again, how often, and after which pause.

`retries.infrastructure` is the number of relaunches of one piece of work that a task may cause. What ran out of memory is relaunched
once beside that number: the first time may be caused by another process, the second time is taken for the pipeline's own need.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from nightshift.execution.outcomes import Action, StageEndedError, Verdict
from training.spec import PipelineSpec
from training.spec.types import size_text
from training.stage_table import TRAININGS
from training.store import StageAddress
from training.store.checkpoint_entries import standing

PAUSE_STEP_SECONDS: Final = 1.0
MAX_PAUSE_STEPS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaunches:
    """How often a task has relaunched its work, by cause. Where it is kept is the backend's to choose."""

    infrastructure: int = 0
    memory: int = 0

    def with_one(self, relaunch: Relaunch) -> Relaunches:
        """Return the numbers after one more."""
        return Relaunches(
            infrastructure=self.infrastructure + (relaunch.cause == "infrastructure"), memory=self.memory + (relaunch.cause == "memory")
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaunch:
    """Start the work again from its last commit."""

    cause: Literal["infrastructure", "memory"]
    pause_seconds: float
    """Wait before the start."""
    words: str
    """For the task's log."""


def next_relaunch(verdict: Verdict, done: Relaunches, spec: PipelineSpec, stage: str) -> Relaunch:
    """Return what follows an attempt without a result.

    Args:
        verdict: of the attempt. `WAIT` is a relaunch for a backend that cannot wait for another task's attempt.
        done: relaunches before this one.

    Raises:
        StageEndedError: it does not: the verdict is final, or the budget is spent.
    """
    if verdict.action is Action.RELAUNCH_ONCE:
        if done.memory:
            raise StageEndedError(_failed(verdict, _memory_advice(spec, stage)))
        return Relaunch(cause="memory", pause_seconds=0.0, words=f"relaunch after out of memory, which is done once: {verdict.reason}")
    if verdict.action not in (Action.RELAUNCH, Action.WAIT):
        raise StageEndedError(verdict)
    budget, used = spec.retries.infrastructure, done.infrastructure
    if used >= budget:
        raise StageEndedError(_failed(verdict, f"relaunched {used} times already (retries.infrastructure)"))
    # The first time at once; what is lost again and again is given time.
    pause_seconds = PAUSE_STEP_SECONDS * min(used, MAX_PAUSE_STEPS)
    return Relaunch(cause="infrastructure", pause_seconds=pause_seconds, words=f"relaunch {used + 1} of {budget}: {verdict.reason}")


def resumption(address: StageAddress) -> str:
    """Describe where the next attempt at an address resumes, by the address's journal."""
    checkpoints = [entry.value["payload"] for entry in standing(address.journal().history(), attrgetter("value"))]
    if not checkpoints:
        return "starting from the beginning"
    return f"resuming from step {checkpoints[-1].get('step')}"


def _failed(verdict: Verdict, words: str) -> Verdict:
    return Verdict(action=Action.FAIL, reason=f"{verdict.reason}; {words}", code=verdict.code, report_uri=verdict.report_uri)


def _memory_advice(spec: PipelineSpec, stage: str) -> str:
    """Describe the work of a stage that ran out of memory twice."""
    if stage not in TRAININGS:
        return "twice, so it is not retried (use a shorter data.source.window, or a machine with more memory)"
    placement = spec.train.placement
    memory = "none" if placement.memory is None else size_text(placement.memory)
    sizes = f"batch_size {spec.train.batch_size}, {placement.world_size} processes, placement.memory {memory}"
    return f"twice, so it is not retried ({sizes}: use a smaller batch or more memory)"
