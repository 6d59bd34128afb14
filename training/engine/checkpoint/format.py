"""The format of a checkpoint: one byte string cut into blocks, and an index that says where each tensor lies in it.

A manifest of kind `checkpoint` names the blocks. Its meta holds the index (`tensors`), what a training must agree on to go on from it
(`identity`), and where the training was. No torch: trees save bytes, as tensors of uint8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NotRequired, TypedDict

BLOCK_BYTES: Final = 4 * 1024 * 1024
ALIGNMENT_BYTES: Final = 8
ITEM_BYTES: Final = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2},
    **{"float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1},
    **{"bool": 1, "complex64": 8},
}
"""What a checkpoint can hold, with the bytes of one item: the types of safetensors, since the best weights become such a file."""


class TensorEntry(TypedDict):
    """Where a tensor lies."""

    dtype: str
    """A name of `ITEM_BYTES`."""
    shape: list[int]
    offset: int
    """Of its first byte among those of all blocks; a multiple of `ALIGNMENT_BYTES`."""


Index = Mapping[str, TensorEntry]
"""By name of the tensor."""


class CheckpointIdentity(TypedDict):
    """What a checkpoint must agree on to be resumed from."""

    world_size: int
    dataset: str
    """Digest."""
    batch_size: NotRequired[int | None]
    threads: NotRequired[int]
    """Of each process, only where the spec sets them."""
    device: NotRequired[str]
    """Absent for the CPU."""
    layout: NotRequired[dict[str, int]]
    """Of processes that share a model; absent where each has all of it."""


class ScaleEntry(TypedDict):
    """The scale of the loss of a training in fp16 (`training.engine.precision.LossScale`)."""

    factor: float
    good_steps: int
    skipped_steps: int


class Position(TypedDict):
    """Where a training was, as JSON; the first two keys are in every checkpoint. A family with other keys derives its own class."""

    step: int
    epoch: int
    best_loss: NotRequired[float | None]
    """None: no epoch is over, or none had a finite loss."""
    best_epoch: NotRequired[int]
    best_round: NotRequired[int]
    """Of trees, whose rounds are epochs."""
    epoch_loss: NotRequired[float]
    history: NotRequired[list[dict[str, float]]]
    compared_step: NotRequired[int]
    """The last step after which all replicas were known to be equal; only of a training that compares them."""
    loss_scale: NotRequired[ScaleEntry]
    """Only of a training in fp16."""


def padded(num_bytes: int) -> int:
    """Return where the next entry may begin after one of so many bytes."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def size_of(*, dtype: str, shape: list[int], offset: int) -> int:
    """Return the bytes of an entry."""
    return math.prod(shape) * ITEM_BYTES[dtype]
