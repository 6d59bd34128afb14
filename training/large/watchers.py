"""Which comparisons of its processes a training needs."""

from __future__ import annotations

from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.parallel.strategy import Strategy
from training.engine.tracking.tracker import Tracker
from training.engine.watcher import Watcher
from training.large.replicas import ReplicaCheck
from training.large.stragglers import NoteStraggler, StragglerCheck


def watchers_for(
    strategy: Strategy,
    *,
    checkpoints: Checkpoints,
    tracker: Tracker,
    note_straggler: NoteStraggler,
    replica_check_steps: int,
    straggler_ratio: float | None,
) -> list[Watcher]:
    """Return the comparisons that a section `train` asks for, of those for which the strategy has processes that are alike.

    Args:
        note_straggler: see `StragglerCheck`.
        replica_check_steps: how many steps lie between two comparisons of replicas; 0: they are not compared.
        straggler_ratio: from which on a process is slow; None: they are not compared.
    """
    ranks = range(strategy.gang.world_size)
    found: list[Watcher] = []
    if replica_check_steps and len({strategy.part(rank) for rank in ranks}) < len(ranks):
        found.append(ReplicaCheck(strategy, checkpoints, every_steps=replica_check_steps))
    if straggler_ratio is not None and len({strategy.stage_number(rank) for rank in ranks}) < len(ranks):
        found.append(StragglerCheck(strategy, ratio=straggler_ratio, checkpoints=checkpoints, tracker=tracker, note=note_straggler))
    return found
