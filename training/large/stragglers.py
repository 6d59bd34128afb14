"""Finds a straggler: a process whose own part of a step takes longer than that of the others, so that all of them wait for it.

Every few steps each process tells the others how long it works on a step by itself (`training.large.local_step_time`). The rule: a process
is slow in a window where its own time is at least `train.straggler_ratio` times the median of the others, and that costs a tenth of a step
or more; one that is slow in three windows in a row is named, with rank, node, ratio and step. The training goes on. Stages of a pipeline
have unequal work by design: a process is compared with those of the same stage alone. The first window is not judged: compilers and caches
warm up.

Waiting for a core counts for nodes alone, and over longer windows: how a loaded machine shares its cores among its own ranks changes by the
second.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from training.contracts import JsonObject, Scalar
from training.data.dataset.loader import Batch
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.parallel.strategy import Strategy, SumLoss
from training.engine.tracking.tracker import Tracker
from training.engine.watcher import Watcher
from training.errors import NightshiftError
from training.large.local_step_time import LocalStepTimer, Measured

logger = logging.getLogger(__name__)

WINDOW_STEPS: Final = 10
WINDOW_SECONDS: Final = 0.25
"""A window of shorter steps has more of them."""
MAX_WINDOW_STEPS: Final = 100_000
MAX_MEASURED_STEPS: Final = 20
"""Of a window, roughly: the cost of measuring short steps."""
LONG_WINDOW_SECONDS: Final = 10.0
"""In which waiting for a core is compared."""
WINDOWS_IN_A_ROW: Final = 3
LEAST_COST: Final = 0.1
"""Of a step, that a slow process costs all."""
MAX_LISTED: Final = 5
"""Stragglers in a stage's result, whose size is limited."""


NoteStraggler = Callable[[int, Mapping[str, object]], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A process that was named."""

    rank: int
    node: str
    """Empty where it is not known."""
    place: str
    """Rank and node for people."""
    step: int
    """After which it was named."""
    ratio: float
    """Of its own time to the median of the others."""
    measured: Measured
    others_seconds: float
    """The median of the others' own time of a step."""

    def to_json(self) -> JsonObject:
        return {"rank": self.rank, "node": self.node, "step": self.step, "ratio": round(self.ratio, 3), "words": self.words()}

    def short_words(self) -> str:
        return f"{self.place}: {self.ratio:.1f} times, step {self.step}"

    def words(self) -> str:
        own = self.measured.own
        waits = [
            f", {seconds:.3g} s of it waiting for {what}"
            for what, seconds in (("data", self.measured.waiting), ("a core", self.measured.ready))
            if seconds >= LEAST_COST * own
        ]
        own_part = f"its own part of a step takes {own:.3g} s{''.join(waits)}"
        return f"{self.place} is a straggler: {own_part}, {self.ratio:.1f} times that of the others ({self.others_seconds:.3g} s)"


def as_computed(table: Sequence[Measured]) -> list[Measured]:
    """Return measurements of GPUs, whose `computing` is that of the probe, with the time that they compute in a step.

    The slowest one waits for nobody: it computes for the whole of a step without its wait for data, the others in proportion to their
    probes.
    """
    known = [one for one in table if not math.isnan(one.step)]
    if not known:
        return list(table)
    computing, slowest = min(one.step - one.waiting for one in known), max(one.computing for one in known)
    return [one._replace(computing=computing * one.computing / slowest) for one in table]


def with_waits_of_nodes(table: Sequence[Measured], nodes: Sequence[str]) -> list[Measured]:
    """Return measurements whose wait for a core is the mean of their node, and 0 where there is one node."""
    ready: defaultdict[str, list[float]] = defaultdict(list)
    for one, node in zip(table, nodes, strict=True):
        if not math.isnan(one.ready):
            ready[node].append(one.ready)
    mean = {node: statistics.fmean(seconds) for node, seconds in ready.items()}
    return [one._replace(ready=mean.get(node, 0.0) if len(set(nodes)) > 1 else 0.0) for one, node in zip(table, nodes, strict=True)]


def ratios(own: Sequence[float], stages: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return (ratio to the median of the others of its stage, that median) by rank, without ranks that nothing is known of.

    Args:
        own: by rank, in seconds; not a number: not measured.
        stages: by rank: which stage of a pipeline it has.
    """
    ranks_of: defaultdict[int, list[int]] = defaultdict(list)
    for rank, seconds in enumerate(own):
        if not math.isnan(seconds):
            ranks_of[stages[rank]].append(rank)
    found = {}
    for ranks in ranks_of.values():
        for rank in ranks if len(ranks) > 1 else ():
            others = statistics.median(own[other] for other in ranks if other != rank)
            found[rank] = (own[rank] / max(others, 1e-9), others)
    return found


class StepComparison:
    """Counts the windows in a row in which each process is slow."""

    def __init__(self, stages: Sequence[int], ratio: float) -> None:
        """Prepare it.

        Args:
            stages: by rank: which stage of a pipeline it has.
            ratio: to the median of the others, from which on a process is slow.
        """
        self._stages = stages
        self._ratio = ratio
        self._slow_windows = [0] * len(stages)
        self.highest_ratio = math.nan
        """Of the last window."""

    def add(self, table: Sequence[Measured]) -> list[tuple[int, float, float]]:
        """Judge a window; return (rank, ratio, median of the others) of those that have been slow for as many windows as it takes.

        A process that nothing is known of keeps its number.

        Args:
            table: by rank.
        """
        own = [one.own for one in table]
        found = ratios(own, self._stages)
        self.highest_ratio = max((ratio for ratio, _ in found.values()), default=math.nan)
        named = []
        for rank, (ratio, others) in found.items():
            is_slow = ratio >= self._ratio and own[rank] - others >= LEAST_COST * table[rank].step
            self._slow_windows[rank] = self._slow_windows[rank] + 1 if is_slow else 0
            if self._slow_windows[rank] >= WINDOWS_IN_A_ROW:
                named.append((rank, ratio, others))
        return named


class LongWindow:
    """Adds up windows until they are as long as waiting for a core needs to be compared."""

    def __init__(self) -> None:
        self._windows: list[tuple[int, Sequence[Measured]]] = []

    def add(self, table: Sequence[Measured], num_steps: int) -> list[Measured] | None:
        """Add a window, which is left out where it is not known of all; return the means of all since the last ones, once they are long."""
        if not any(math.isnan(one.step) for one in table):
            self._windows.append((num_steps, table))
        if sum(num_steps * max(one.step for one in table) for num_steps, table in self._windows) < LONG_WINDOW_SECONDS:
            return None
        windows, self._windows = self._windows, []
        total = sum(num_steps for num_steps, _ in windows)
        return [
            Measured(
                *(sum(num_steps * table[rank][place] for num_steps, table in windows) / total for place in range(len(Measured._fields)))
            )
            for rank in range(len(table))
        ]


class StragglerCheck(Watcher):
    """Compares the processes of one training, whose strategy has several of some stage."""

    def __init__(self, strategy: Strategy, *, ratio: float, checkpoints: Checkpoints, tracker: Tracker, note: NoteStraggler) -> None:
        """Prepare it.

        Args:
            ratio: from which on a process is slow.
            checkpoints: steps during which this process writes one are not measured.
            tracker: has each straggler, and the highest ratio of each window.
            note: called on the first process with the rank of each straggler and its record, once: where who relaunches this training
                finds it, and may do without that node.
        """
        self._gang = gang = strategy.gang
        stages = [strategy.stage_number(rank) for rank in range(gang.world_size)]
        self._is_replicated = not strategy.is_sharded
        self._tracker, self._note = tracker, note
        self._timer = LocalStepTimer(gang.device, is_disturbed=lambda: checkpoints.is_saving)
        self._short, self._long = (StepComparison(stages, ratio) for _ in range(2))
        self._long_window = LongWindow()
        self._window_steps, self._num_windows = WINDOW_STEPS, 0
        self.named: dict[int, Straggler] = {}
        """By rank, all that were named so far; the same on all processes."""

    def measured(self, loss: SumLoss, module: nn.Module) -> SumLoss:
        """Return the loss with a measured forward pass, where no collective is in that: the buffers of replicas are sent before it."""
        if not self._is_replicated or self._gang.device.type != "cpu" or any(True for _ in module.buffers()):
            return loss

        def measured(module: nn.Module, batch: Batch) -> torch.Tensor:
            with self._timer.without_collectives():
                return loss(module, batch)

        return measured

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return self._timer.batches(batches)

    def step(self) -> AbstractContextManager[None]:
        return self._timer.step()

    def between_steps(self, step: int, state: Callable[[], Mapping[str, torch.Tensor]], *, is_kept: bool) -> None:
        """Compare the processes, where a window ends with this step.

        Raises:
            PeerLostError: another process is lost.
        """
        num_steps = self._timer.num_steps
        if num_steps < self._window_steps:
            return
        table = [Measured(*row) for row in self._gang.gather_row(*self._timer.window())]
        self._num_windows += 1
        longest = max((one.step for one in table if not math.isnan(one.step)), default=math.nan)
        if longest > 0:
            # From the numbers that all have: the next window ends after the same step everywhere.
            self._window_steps = min(max(WINDOW_STEPS, math.ceil(WINDOW_SECONDS / longest)), MAX_WINDOW_STEPS)
            self._timer.every = max(1, self._window_steps // MAX_MEASURED_STEPS)
        if self._num_windows > 1:
            self._judge(step, as_computed(table) if self._gang.device.type == "cuda" else table, num_steps)

    def _judge(self, step: int, table: Sequence[Measured], num_steps: int) -> None:
        # Of ranks whose cores are shared, the sum tells nothing: see the top of this file.
        without_cores = [one._replace(ready=0.0) for one in table]
        named = [(found, without_cores) for found in self._short.add(without_cores)]
        long_table = self._long_window.add(table, num_steps)
        if long_table is not None:
            of_nodes = with_waits_of_nodes(long_table, [self._gang.node_of(rank) for rank in range(len(table))])
            named += [(found, of_nodes) for found in self._long.add(of_nodes)]
        for (rank, ratio, others), measured in named:
            if rank not in self.named:
                self._name(rank, step, ratio, others, measured[rank])
        if self._gang.is_first and not math.isnan(self._short.highest_ratio):
            self._tracker.log(step, slowest_rank_ratio=self._short.highest_ratio)

    def _name(self, rank: int, step: int, ratio: float, others: float, measured: Measured) -> None:
        self.named[rank] = straggler = Straggler(
            rank=rank,
            node=self._gang.node_of(rank),
            place=self._gang.place_of(rank),
            step=step,
            ratio=ratio,
            measured=measured,
            others_seconds=others,
        )
        if self._gang.is_first:
            logger.warning("step %d: %s, in %d windows in a row", step, straggler.words(), WINDOWS_IN_A_ROW)
            self._tracker.log(step, straggler_rank=float(rank), straggler_ratio=ratio)
            try:
                self._note(rank, straggler.to_json())
            except NightshiftError as err:
                logger.warning("the straggler could not be noted in the store: %s", err)

    def scalars(self) -> dict[str, Scalar]:
        named = [straggler.short_words() for _, straggler in sorted(self.named.items())]
        rest = [f"and {len(named) - MAX_LISTED} others"] if len(named) > MAX_LISTED else []
        return {"stragglers": "; ".join([*named[:MAX_LISTED], *rest])} if named else {}

    def close(self) -> None:
        self._timer.close()
