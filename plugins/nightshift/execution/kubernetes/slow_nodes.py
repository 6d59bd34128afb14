"""Which nodes the next launch of a training leaves out: those on which a rank was named as a straggler (`training.large.stragglers`).

A gang must never wait for ever because of it. So nodes are excluded only where the launch may continue with fewer nodes and relaunches are
left for that, and only twice: with all nodes, and, where that finds no place within `elastic_wait`, with fewer. After that all nodes are
taken again. For a gang of a fixed size, other nodes are preferred, which excludes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nightshift.execution.attempt_end import UNPLACED
from nightshift.execution.kubernetes.status import LaunchStatus
from training.store.launches import Cause, LaunchRecord

MAX_TRIES: Final = 2
"""Launches in a row that exclude nodes and find no place."""
MAX_NODES: Final = 50
"""Of those that are left out, the newest ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Avoidance:
    """What a launch leaves out."""

    nodes: tuple[str, ...] = ()
    tries: int = 0
    """0: other nodes are preferred; otherwise the nodes are excluded, for so many launches in a row."""


NOTHING: Final = Avoidance()


def avoidance(
    last: LaunchRecord | None, ended: LaunchStatus | None, named: Sequence[str], *, cause: Cause, may_shrink: bool, relaunches_left: int
) -> Avoidance:
    """Return what the next launch leaves out.

    Args:
        last: launch before it.
        ended: how that ended.
        named: nodes of its stragglers.
        may_shrink: whether the next launch, where it finds no place, is followed by one with fewer nodes.
        relaunches_left: in the budget, after the next launch.
    """
    if last is None or cause == "again":
        return NOTHING
    found_no_place = last.avoidance_tries > 0 and ended is not None and ended.code == UNPLACED
    nodes = tuple(dict.fromkeys([*last.avoided_nodes, *filter(None, named)]))[-MAX_NODES:]
    if not nodes or (found_no_place and last.avoidance_tries >= MAX_TRIES):
        return NOTHING
    tries = last.avoidance_tries + 1 if found_no_place else 1
    is_safe = may_shrink and relaunches_left > MAX_TRIES - tries
    return Avoidance(nodes=nodes, tries=tries if is_safe else 0)
