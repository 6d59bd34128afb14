"""Says of a training that runs out of memory which rank it was, on which node, and in which step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from training.engine.parallel.gang import Gang
from training.errors import OutOfMemoryError

MAX_CHARS: Final = 600
CPU_ALLOCATOR: Final = "can't allocate memory"
"""Part of what torch says where the system refuses memory: a RuntimeError."""


@contextmanager
def memory_explained(gang: Gang, step: Callable[[], int]) -> Iterator[None]:
    """Turn what a failed allocation raises into an error that names rank, node and step; other errors pass.

    Args:
        step: the one that is under way.

    Raises:
        OutOfMemoryError: `train.oom`, with what was to be allocated as far as the allocator says it.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as err:
        text = str(err).strip() or "an allocation by Python failed"
        if not isinstance(err, MemoryError | torch.OutOfMemoryError) and CPU_ALLOCATOR not in text:
            raise
        raise OutOfMemoryError(
            "train.oom",
            f"{gang.place_of(gang.rank)}: out of memory on {gang.device} in step {step()}: {text[:MAX_CHARS]}",
            hint="it is relaunched once; set train.micro_batch_size, train.activation_checkpointing, train.parallel or more memory",
            details={"ranks": [gang.rank], "nodes": [gang.node_of(gang.rank)], "step": step()},
        ) from err
