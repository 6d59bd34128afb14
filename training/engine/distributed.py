"""The gang: the processes of one training, and how a broken collective is told from a bug."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

import torch
import torch.distributed as dist

from training.environment_numbers import seconds, whole_number
from training.errors import PeerLostError

TIMEOUT_VARIABLE: Final = "NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS"
COLLECTIVE_SECONDS: Final = 120.0

BROKEN_COLLECTIVE: Final = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "timed out",
    "broken pipe",
)


def collective_timeout() -> timedelta:
    """Return how long a collective may hang before it ends the gang.

    Raises:
        SpecError: `settings.number`, the variable is not a number of seconds.
    """
    return timedelta(seconds=seconds(TIMEOUT_VARIABLE, COLLECTIVE_SECONDS))


@dataclass(frozen=True, slots=True)
class Gang:
    """This process's place among all of them."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def join(cls, *, threads_per_process: int = 1) -> Self:
        """Join the gang that torchrun started, or be a gang of one.

        Threads are pinned, and algorithms deterministic, because sums in another order have other bits.

        Raises:
            SpecError: `settings.number`, a variable is not a number.
        """
        rank, world_size = whole_number("RANK", 0), whole_number("WORLD_SIZE", 1)
        cuda = torch.cuda.is_available()
        device = torch.device("cuda", whole_number("LOCAL_RANK", 0)) if cuda else torch.device("cpu")
        if cuda:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.cuda.set_device(device)
        torch.set_num_threads(threads_per_process)
        torch.use_deterministic_algorithms(True)
        gang = cls(rank, world_size, device)
        if world_size > 1:
            with gang.collectives():
                dist.init_process_group("nccl" if cuda else "gloo", timeout=collective_timeout())
        return gang

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def from_first(self, number: int) -> int:
        """Return rank 0's number on every rank."""
        if self.world_size == 1:
            return number
        cell = torch.tensor([number], dtype=torch.int64, device=self.device)
        with self.collectives():
            dist.broadcast(cell, src=0)
        return int(cell.item())

    def text_from_first(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        if self.world_size == 1:
            return text
        data = text.encode()
        num_bytes = self.from_first(len(data))
        cells = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        if self.is_first:
            cells.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with self.collectives():
            dist.broadcast(cells, src=0)
        return bytes(cells.cpu().numpy()).decode()

    def sum(self, *numbers: float) -> list[float]:
        """Return the sums over all ranks, in float64."""
        cells = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            with self.collectives():
                dist.all_reduce(cells)
        return [float(cell) for cell in cells.tolist()]

    @contextmanager
    def collectives(self) -> Iterator[None]:
        """Turn what a broken collective raises into PeerLostError; other errors pass."""
        try:
            yield
        except RuntimeError as err:
            text = str(err).lower()
            if self.world_size > 1 and any(word in text for word in BROKEN_COLLECTIVE):
                raise PeerLostError("peer.lost", f"rank {self.rank}: another rank is gone: {str(err).splitlines()[0][:300]}") from err
            raise
