"""Compares the replicas of a model: hardware that computes wrong numbers without an error is found, and named by rank and node.

Replicas begin with the same bits, and each step adds the same numbers to all of them, so they stay equal in all bits. After a number of
steps, and before what an epoch made is kept, each process sums up its parameters and its optimizer's state into 64 bits, and all compare.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import torch

from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.format import Position
from training.engine.checkpoint.tensors import local_part
from training.engine.parallel.strategy import Strategy
from training.engine.watcher import Watcher
from training.errors import PeerLostError, ReplicasDifferError

logger = logging.getLogger(__name__)

WORDS_AT_A_TIME: Final = 1 << 17
"""What a sum needs beside the tensors: a few times 8 bytes for each."""
SEED: Final = 20_260_101
WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_of(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Return a number of 63 bits for the bits of tensors, in their order; of a DTensor, for this process's part.

    Words are multiplied by odd numbers and summed as integers, which is exact in any order: another value of any one word always gives
    another sum, and other tensors give the same one by chance alone.
    """
    factors = _factors(device)
    sums = [
        torch.dot(block, factors[: len(block)]) if device.type == "cpu" else (block * factors[: len(block)]).sum()
        for tensor in tensors
        for block in _blocks(tensor)
    ]
    if not sums:
        return 0
    data = torch.stack([found.to(device) for found in sums]).cpu().numpy().tobytes()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1


def _blocks(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    local = local_part(tensor)
    words = local.contiguous().reshape(-1).view(WORDS[local.element_size()])
    return (words[start : start + WORDS_AT_A_TIME].to(torch.int64) for start in range(0, len(words), WORDS_AT_A_TIME))


def _factors(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randint(-(2**62), 2**62, (WORDS_AT_A_TIME,), generator=generator, dtype=torch.int64)
    return (drawn * 2 + 1).to(device)


def minority(digests: Sequence[int], parts: Sequence[int]) -> list[int]:
    """Return the ranks whose digest is not that of most replicas of their part; all of a part where no digest has the most.

    Args:
        digests: by rank.
        parts: by rank: which part of a replica it has.
    """
    ranks_of: defaultdict[int, list[int]] = defaultdict(list)
    for rank, part in enumerate(parts):
        ranks_of[part].append(rank)
    named: list[int] = []
    for ranks in ranks_of.values():
        counts = Counter(digests[rank] for rank in ranks).most_common()
        is_tied = len(counts) > 1 and counts[0][1] == counts[1][1]
        named += [rank for rank in ranks if len(counts) > 1 and (is_tied or digests[rank] != counts[0][0])]
    return sorted(named)


class ReplicaCheck(Watcher):
    """Compares the replicas of one training, whose strategy has several of some part."""

    def __init__(self, strategy: Strategy, checkpoints: Checkpoints, *, every_steps: int) -> None:
        """Prepare it.

        Args:
            every_steps: how many steps lie between two comparisons.
        """
        self._gang = strategy.gang
        self._parts = [strategy.part(rank) for rank in range(self._gang.world_size)]
        self._checkpoints = checkpoints
        self._every_steps = every_steps
        self._equal_step = 0
        """The last step after which all replicas were equal: compared, or begun with the same bits."""

    def begin(self, step: int) -> None:
        self._equal_step = step

    def add_to(self, position: Position) -> None:
        position["compared_step"] = self._equal_step

    def between_steps(self, step: int, state: Callable[[], Mapping[str, torch.Tensor]], *, is_kept: bool) -> None:
        """Compare the replicas where that is due, and before their state is kept.

        Raises:
            ReplicasDifferError: `train.replica_diverged`; the checkpoints since the last comparison are withdrawn.
            PeerLostError: another process is lost.
        """
        if step == self._equal_step or not (is_kept or step - self._equal_step >= self._every_steps):
            return
        found = state()
        digests = self._gang.gather(digest_of((found[name] for name in sorted(found)), self._gang.device))
        named = minority(digests, self._parts)
        if not named:
            self._equal_step = step
            return
        error = self._error(step, named)
        logger.error("%s", error.message)
        self._checkpoints.withdraw(after_step=self._equal_step)
        # The others end their processes, and the launcher then ends this one: not before the entry is made.
        with suppress(PeerLostError):
            self._gang.wait_for_all()
        raise error

    def _error(self, step: int, named: Sequence[int]) -> ReplicasDifferError:
        who = ", ".join(self._gang.place_of(rank) for rank in named)
        num_replicas = sum(part == self._parts[named[0]] for part in self._parts)
        which = "which of them is wrong is not known" if len(named) >= num_replicas else "the others agree with each other"
        return ReplicasDifferError(
            "train.replica_diverged",
            f"step {step}: the weights of {who} differ from those of the other replicas; {which}; "
            f"they were equal after step {self._equal_step}, later checkpoints are withdrawn",
            hint="it is relaunched from the checkpoint before; if a node is named again, test its hardware",
            details={"ranks": list(named), "nodes": sorted({self._gang.node_of(rank) for rank in named}), "step": step},
        )
