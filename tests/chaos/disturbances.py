"""What is done to a night: which process, which signal, at which moment; drawn from a seed alone, without a look at the clock.

A deck holds every pair of a role and an action once. Nights deal from it in a shuffled order, so that 30 nights hold all pairs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a process is to the installation."""

    COMMAND = "make run"
    SUPERVISOR = "supervisor"
    SCHEDULER = "scheduler"
    DAG_PROCESSOR = "dag-processor"
    API_SERVER = "api-server"
    TRIGGERER = "triggerer"
    TRIGGERER_CHILD = "triggerer's child"
    MLFLOW = "mlflow"
    MLFLOW_CHILD = "mlflow's child"
    WORKER = "worker"
    IDLE_WORKER = "idle worker"
    TASK = "task"
    TEMPLATE = "template of the stages"
    STAGE = "stage"
    LAUNCHER = "torchrun launcher"
    RANK = "rank"
    ALL = "all but make run"
    ALL_AND_COMMAND = "all and make run"


class Action(StrEnum):
    KILL = "KILL"
    TERM = "TERM"
    STOP = "STOP and CONT"


STARTING: Final = "services starting"
TRAINING: Final = "training under way"
MOMENTS: Final = (STARTING, "resolve", "wait", "ingest", "validate", "prepare", "train", TRAINING, "evaluate", "promote")
"""In the order in which a night reaches them: the services start; a task runs; a training has done its first steps."""
MOMENTS_OF: Final[Mapping[Role, Sequence[str]]] = {
    Role.WORKER: MOMENTS[1:],
    Role.IDLE_WORKER: MOMENTS[1:],
    Role.TASK: MOMENTS[1:],
    # Later stages may have one too, unless it was killed before.
    Role.TEMPLATE: ("ingest", "validate", "prepare", "train", TRAINING, "evaluate", "promote"),
    Role.STAGE: ("ingest", "validate", "prepare", "evaluate", "promote"),
    Role.LAUNCHER: ("train", TRAINING),
    Role.RANK: ("train", TRAINING),
}
"""Where a role has no process at every moment; every other role may be disturbed at all of them."""
COMPONENTS: Final = (Role.SCHEDULER, Role.DAG_PROCESSOR, Role.API_SERVER, Role.TRIGGERER, Role.MLFLOW)
STOP_SECONDS: Final = (5.0, 15.0, 40.0, 100.0)
"""Shorter and longer than the limits by which anything here judges silence: 12 s, 15 s, 30 s and 90 s."""
FIRST_STEPS: Final = (1, 30, 90, 150)
"""After how many steps a training counts as under way."""
REQUEST: Final = "/_REQUEST.json"
TEMPLATE: Final = "training.runtime.template"
PAIRS_OF_TEN_NIGHTS: Final = 8
"""Of ten nights so many are disturbed twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """One signal and its moment."""

    role: Role
    action: Action
    moment: str
    stop_seconds: float = 0.0
    """Between STOP and CONT."""
    first_steps: int = 0

    def __str__(self) -> str:
        seconds = f" for {self.stop_seconds:.0f} s" if self.action is Action.STOP else ""
        return f"{self.action}{seconds} of {self.role} at {self.moment}"


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process of an installation, as the process table shows it."""

    pid: int
    parent_pid: int
    command: str
    is_rank: bool = False
    """Its name says so."""


def disturbed_nights(seed: int) -> Iterator[tuple[Disturbance, ...]]:
    """Yield the disturbances of one night after the other, those of a night in the order of their moments; without end."""
    rng = random.Random(seed)  # noqa: S311 - the choice of a test, no secret
    deck: list[tuple[Role, Action]] = []
    number = 0
    while True:
        dealt = []
        for _ in range(2 if number * 3 % 10 < PAIRS_OF_TEN_NIGHTS else 1):
            if not deck:
                deck = [(role, action) for role in Role for action in Action]
                rng.shuffle(deck)
            dealt.append(_drawn(rng, *deck.pop()))
        number += 1
        yield tuple(sorted(dealt, key=lambda one: MOMENTS.index(one.moment)))


def _drawn(rng: random.Random, role: Role, action: Action) -> Disturbance:
    moment = rng.choice(MOMENTS_OF.get(role, MOMENTS))
    stop_seconds = rng.choice(STOP_SECONDS) if action is Action.STOP else 0.0
    return Disturbance(
        role=role, action=action, moment=moment, stop_seconds=stop_seconds, first_steps=rng.choice(FIRST_STEPS) if moment == TRAINING else 0
    )


def roles_of(
    rows: Sequence[ProcessRow], components: Mapping[str, int], *, supervisor_pid: int | None, command_pid: int | None
) -> dict[Role, list[int]]:
    """Return the pids by role; a role without a process is absent.

    Args:
        rows: every process that carries the installation's mark; `make run` does not.
        components: pid by component's name, of those that run.
    """
    found: dict[Role, list[int]] = {}
    pids = {row.pid for row in rows}
    main = {components[role.value]: role for role in COMPONENTS if components.get(role.value) in pids}
    workers = {row.pid for row in rows if main.get(row.parent_pid) is Role.SCHEDULER}
    for row in rows:
        role = main.get(row.pid) or (Role.SUPERVISOR if row.pid == supervisor_pid else _role_below(row, main, workers))
        if role is not None:
            found.setdefault(role, []).append(row.pid)
    every = [row.pid for row in rows]
    if every:
        found[Role.ALL] = every
    if command_pid is not None:
        found[Role.COMMAND] = [command_pid]
        if every:
            found[Role.ALL_AND_COMMAND] = [*every, command_pid]
    return found


def _role_below(row: ProcessRow, main: Mapping[int, Role], workers: set[int]) -> Role | None:
    if REQUEST in row.command:
        # A rank is forked by its launcher, whose command line it keeps.
        if row.is_rank:
            return Role.RANK
        return Role.LAUNCHER if "training.runtime.torchrun" in row.command else Role.STAGE
    if TEMPLATE in row.command:
        return Role.TEMPLATE
    if row.pid in workers:
        return Role.IDLE_WORKER if "<idle>" in row.command else Role.WORKER
    if row.parent_pid in workers:
        return Role.TASK
    return {Role.TRIGGERER: Role.TRIGGERER_CHILD, Role.MLFLOW: Role.MLFLOW_CHILD}.get(main.get(row.parent_pid, Role.ALL))
