"""The gang: the processes of one training, and how a broken collective is distinguished from a bug.

There are two groups of the same processes. The gradients of a step go through the default one: there all ranks do the same
work, and the collective time-out is short. What happens between steps (validation, reading a checkpoint, waiting for an
upload, asking a study) can take long on one rank alone: it goes through the patient group, whose limit is its own. A process
that ends breaks a collective of either group at once; only a process that hangs is found by a time-out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from training.engine.devices import DevicePlace, backend_of
from training.engine.parallel.lost_ranks import ANSWER_SECONDS, Absent, RollCall
from training.errors import PeerLostError, first_line
from training.installation import RANK, WORLD_SIZE, Seconds, node_name
from training.process import liveness

COLLECTIVE_LIMIT: Final = Seconds(
    name="NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS",
    seconds=120.0,
    default="120",
    meaning="how long the ranks of a training wait for each other within a step before it is relaunched (docs/timeouts.md)",
)
SLOW_WORK_LIMIT: Final = Seconds(
    name="NIGHTSHIFT_SLOW_WORK_TIMEOUT_SECONDS",
    seconds=3600.0,
    default="3600",
    meaning="the same at the start and between steps, for a rank that downloads data, validates, reads a checkpoint or waits for an upload",
)
COMPILER_OPTIONS: Final = "torch._inductor.config"
COMPILER_VARIABLE: Final = "TORCHINDUCTOR_DETERMINISTIC"

BROKEN_COLLECTIVE: Final = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "timed out",
    "wait timeout",
    "broken pipe",
)


def collective_timeout() -> timedelta:
    """Return how long a collective of a training step may hang before it ends the gang.

    Raises:
        SpecError: `settings.number`, the variable is not a number of seconds.
    """
    return timedelta(seconds=COLLECTIVE_LIMIT.read())


def slow_work_timeout() -> timedelta:
    """Return how long a rank waits for the work of another one between steps; never less than for a collective.

    Raises:
        SpecError: `settings.number`, the variable is not a number of seconds.
    """
    return max(timedelta(seconds=SLOW_WORK_LIMIT.read()), collective_timeout())


def _meet(rank: int, world_size: int, place: DevicePlace) -> tuple[RollCall, list[DevicePlace], tuple[str, ...]]:
    """Wait until every rank is there; return who they are, what each of them trains on, and on which node.

    What comes before can take one rank longer than a collective may: imports, the lease, fetching the shards.
    """
    limit = slow_work_timeout()
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=limit))
    store.set_timeout(limit)
    store.set(f"nightshift/place/{rank}", place.to_text())
    store.set(f"nightshift/node/{rank}", node_name())
    places = [DevicePlace.from_text(store.get(f"nightshift/place/{other}").decode()) for other in range(world_size)]
    nodes = tuple(store.get(f"nightshift/node/{other}").decode() for other in range(world_size))
    return RollCall.meet(store, rank, world_size), places, nodes


def _use_deterministic_algorithms() -> None:
    """Do what `torch.use_deterministic_algorithms(True)` does, without the compiler that it imports to set its option.

    That import costs 1.4 CPU seconds. A model that is compiled imports it later, and it then reads the option from the variable.
    """
    if COMPILER_OPTIONS in sys.modules:
        torch.use_deterministic_algorithms(True)
        return
    os.environ[COMPILER_VARIABLE] = "1"
    torch.set_deterministic_debug_mode("error")


@dataclass(frozen=True, slots=True)
class Gang:
    """This process's place among all of them."""

    rank: int
    world_size: int
    device: torch.device
    patient: dist.ProcessGroup | None = None
    """Gloo group of all ranks with the limit of slow work, for numbers on the CPU; None: the default group."""
    nodes: tuple[str, ...] = ()
    """By rank, the name of its node; empty where it is not known."""
    roll_call: RollCall | None = None
    """How lost ranks are found; None: the ranks did not meet through the launcher's store."""

    @classmethod
    def join(cls, *, threads_per_process: int = 1, use_gpus: bool = True) -> Self:
        """Join the gang that torchrun started, or be a gang of one.

        Threads are pinned, and algorithms deterministic, because sums in another order have other bits.

        Raises:
            SpecError: `settings.number`, a variable is not a number; `device.mixed`.
            PeerLostError: another rank does not come within the limit of slow work.
        """
        rank, world_size = RANK.read(), WORLD_SIZE.read()
        place = DevicePlace.of_this_process() if use_gpus else DevicePlace(type="cpu")
        device = place.device
        if device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.cuda.set_device(device)
        torch.set_num_threads(threads_per_process)
        _use_deterministic_algorithms()
        gang = cls(rank, world_size, device)
        if world_size == 1:
            return gang
        with gang._meeting():
            roll_call, places, nodes = _meet(rank, world_size, place)
            backend = backend_of(places)
            dist.init_process_group(backend, store=roll_call.store, rank=rank, world_size=world_size, timeout=collective_timeout())
            return cls(rank, world_size, device, dist.new_group(backend="gloo", timeout=slow_work_timeout()), nodes, roll_call)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def from_first(self, number: int) -> int:
        """Return rank 0's number on every rank; rank 0 may be late by the limit of slow work."""
        if self.world_size == 1:
            return number
        cell = torch.tensor([number], dtype=torch.int64, device=self._numbers_device)
        with self._meeting():
            dist.broadcast(cell, src=0, group=self.patient)
        return int(cell.item())

    def text_from_first(self, text: str) -> str:
        """Return rank 0's text on every rank; rank 0 may be late by the limit of slow work."""
        if self.world_size == 1:
            return text
        data = text.encode()
        num_bytes = self.from_first(len(data))
        cells = torch.zeros(num_bytes, dtype=torch.uint8, device=self._numbers_device)
        if self.is_first:
            cells.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with self._meeting():
            dist.broadcast(cells, src=0, group=self.patient)
        return bytes(cells.cpu().numpy()).decode()

    def sum(self, *numbers: float) -> list[float]:
        """Return the sums over all ranks, in float64 and in the order of ranks: the same bits on each, for every order of arrival.

        Any rank may be late by the limit of slow work.
        """
        if self.world_size == 1:
            return [float(number) for number in numbers]
        cells = torch.tensor(numbers, dtype=torch.float64, device=self._numbers_device)
        with self._meeting():
            by_rank = [torch.empty_like(cells) for _ in range(dist.get_world_size(self.patient))]
            dist.all_gather(by_rank, cells, group=self.patient)
        total = by_rank[0]
        for others in by_rank[1:]:
            total = total + others
        return [float(cell) for cell in total.tolist()]

    def gather(self, number: int) -> list[int]:
        """Return the number of each rank, by rank; of 63 bits. The ranks meet within a step: with the limit of its collectives."""
        if self.world_size == 1:
            return [number]
        cell = torch.tensor([number], dtype=torch.int64, device=self.device)
        with self.collectives():
            by_rank = [torch.empty_like(cell) for _ in range(self.world_size)]
            dist.all_gather(by_rank, cell)
            return [int(found.item()) for found in by_rank]

    def gather_row(self, *numbers: float) -> list[list[float]]:
        """Return the numbers of each rank, by rank; in float64. As `gather`: a rank that is lost here is found as in any step."""
        if self.world_size == 1:
            return [[float(number) for number in numbers]]
        cells = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        with self.collectives():
            by_rank = [torch.empty_like(cells) for _ in range(self.world_size)]
            dist.all_gather(by_rank, cells)
            return [[float(cell) for cell in row.tolist()] for row in by_rank]

    def node_of(self, rank: int) -> str:
        """Return the name of a rank's node, empty where it is not known."""
        return self.nodes[rank] if self.nodes else ""

    def place_of(self, rank: int) -> str:
        """Return a rank for people, with its node where that is known."""
        return f"rank {rank} (node {self.nodes[rank]})" if self.nodes else f"rank {rank}"

    def lost(self, err: PeerLostError, step: int) -> PeerLostError:
        """Return an error that names the ranks that are lost; each rank that has lost another one must call it.

        Args:
            err: what the broken collective was turned into.
            step: the last whole one.
        """
        absent = Absent() if self.roll_call is None else self.roll_call.absent()
        if not absent.ranks:
            return PeerLostError(err.code, f"after step {step}: {err.message}", hint=err.hint)
        who = ", ".join(self.place_of(rank) for rank in absent.ranks)
        if absent.have_ended:
            reason, hint = "its process has ended", "look at the log of that rank and at its node"
        else:
            limit = f"{COLLECTIVE_LIMIT.name} = {COLLECTIVE_LIMIT.read():g} s"
            reason = f"no answer within {ANSWER_SECONDS:.0f} s ({limit})"
            hint = "look at the log of that rank and at its node; a rank that is only slow needs a higher limit"
        message = f"{who} is lost after step {step}: {reason}; {err.message}"
        return PeerLostError(err.code, message, hint=hint, details={"ranks": list(absent.ranks)})

    def answer(self) -> None:
        """Tell the others that this rank is there, after a collective broke."""
        if self.roll_call is not None:
            self.roll_call.answer()

    def wait_for_all(self) -> None:
        """Return once every rank is here; any may be late by the limit of slow work."""
        self.sum(0.0)

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give tensors, the same number with the same shapes on every rank, the values of rank 0."""
        if self.world_size == 1:
            return
        with self.collectives(), torch.no_grad():
            for tensor in tensors:
                # As bytes: not every backend broadcasts every dtype.
                cells = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                dist.broadcast(cells, src=0)
                tensor.copy_(cells.view(tensor.dtype).reshape(tensor.shape))

    @property
    def _numbers_device(self) -> torch.device:
        return self.device if self.patient is None else torch.device("cpu")

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """A collective between steps: the wait is not this rank's hang, whose own timer ends the one that does not come."""
        with liveness.phase("peers"), self.collectives():
            yield

    @contextmanager
    def collectives(self) -> Iterator[None]:
        """Turn what a broken collective raises into PeerLostError; other errors pass."""
        try:
            yield
        except RuntimeError as err:
            text = str(err).lower()
            if self.world_size > 1 and any(word in text for word in BROKEN_COLLECTIVE):
                raise PeerLostError("peer.lost", f"rank {self.rank}: another rank is lost: {first_line(err)}") from err
            raise
