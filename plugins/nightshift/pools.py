"""Airflow pools: one per kind of resource, made when the services start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    slots: int
    description: str


CPU: Final = Pool("cpu", 4, "stages that need a core for seconds to minutes")
TRAINING: Final = Pool("training", 1, "trainings: as many at once as there are machines' worth of cores or GPUs")
POOLS: Final = (CPU, TRAINING)


def pool_of(stage: str, asked: str | None) -> str:
    """Return the pool of a stage's task; `asked` is `train.placement.pool`."""
    if stage == "train":
        return asked or TRAINING.name
    return CPU.name
