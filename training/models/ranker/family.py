"""The descriptor of `ranker`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.descriptors.families import FamilyDescriptor
from training.spec.scalar_types import Section


class RankerSettings(Section):
    """Of `ranker`: embeddings of the ids and the numbers, then a multi-layer perceptron."""

    embedding_dim: Annotated[int, Field(ge=1, le=1024)] = 16
    """Length of the vector of each id. Unit: dimensions."""
    hidden: Annotated[tuple[Annotated[int, Field(ge=1, le=8192)], ...], Field(strict=False, max_length=16)] = (64, 32)
    """Width of each hidden layer. Unit: units per layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the units of hidden layers that a training step leaves out."""
    loss: Literal["listwise", "pairwise"] = "listwise"
    """`listwise`: the cross entropy of the softmax over a group's rows. `pairwise`: the logistic loss of each pair of different labels."""


DESCRIPTOR: Final = FamilyDescriptor(
    settings=RankerSettings,
    tasks=("ranking",),
    libraries=("torch",),
    distributed=True,
    needs=("batch_size",),
    # Its perceptron has layers, and no blocks of several.
    ignored_keys=("activation_checkpointing",),
    uses_gpus=True,
    uses_torch=True,
)
