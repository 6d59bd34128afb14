"""Which ranks are lost, once a collective broke: its error names an address at most.

Each rank that is still there answers in the launcher's store. A rank whose process has ended is found by the ranks that can see the
process, those on its own machine, and they tell the others: nobody waits for its answer. A rank that hangs, or whose whole node is lost,
is one that has not answered within `ANSWER_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

import torch

from training.process.identity import Process

ANSWER_SECONDS: Final = 5.0
"""How long the others have to answer: they are in the same step."""
PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Absent:
    """Ranks that are lost."""

    ranks: tuple[int, ...] = ()
    have_ended: bool = False
    """Whether their processes have; else they have not answered."""


@dataclass(frozen=True, slots=True)
class RollCall:
    """One rank's view of the others."""

    store: torch._C._distributed_c10d.Store
    rank: int
    processes: tuple[Process, ...]
    """By rank."""

    @classmethod
    def meet(cls, store: torch._C._distributed_c10d.Store, rank: int, world_size: int) -> Self:
        """Exchange the processes of all ranks; waits for each as the store does."""
        store.set(f"nightshift/process/{rank}", Process.this().to_text())
        processes = (Process.from_text(store.get(f"nightshift/process/{other}").decode()) for other in range(world_size))
        return cls(store, rank, tuple(processes))

    def answer(self) -> None:
        """Tell the others that this rank is there, after a collective broke."""
        with suppress(RuntimeError):
            # The launcher may be what is lost.
            self.store.set_timeout(timedelta(seconds=ANSWER_SECONDS))
            self.store.set(f"nightshift/answer/{self.rank}", "")

    def absent(self) -> Absent:
        """Return the ranks that are lost; none where that cannot be found out."""
        missing, deadline = set(range(len(self.processes))) - {self.rank}, time.monotonic() + ANSWER_SECONDS
        try:
            while missing and time.monotonic() < deadline:
                if ended := self._ended(missing):
                    return Absent(ended, have_ended=True)
                missing = {rank for rank in missing if not self.store.check([f"nightshift/answer/{rank}"])}
                time.sleep(PAUSE_SECONDS if missing else 0)
        except RuntimeError:
            return Absent()
        return Absent(tuple(sorted(missing)))

    def _ended(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return those whose process has ended, and tell the ranks that cannot see it."""
        seen = [rank for rank in ranks if self.processes[rank].has_ended()]
        for rank in seen:
            self.store.set(f"nightshift/ended/{rank}", "")
        return tuple(sorted({*seen, *(rank for rank in ranks if self.store.check([f"nightshift/ended/{rank}"]))}))
