"""Airflow's pools, one per resource: how many tasks of a kind run at once, over all pipelines.

`pool_creation` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from training.spec import PipelineSpec
from training.stage_table import TABLE, TRAININGS


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A pool of Airflow."""

    name: str
    slots: int
    description: str


CPU: Final = Pool(name="cpu", slots=4, description="Stages that read, check and measure")
TRAIN: Final = Pool(name="train", slots=1, description="Trainings without an accelerator: each takes all cores that it is given")
GPU: Final = Pool(name="gpu", slots=1, description="Trainings with an accelerator")

POOLS: Final = (CPU, TRAIN, GPU)


def pool_of(spec: PipelineSpec, stage: str) -> str:
    """Return the pool that a stage's task waits in: for training the spec's own, if it names one."""
    if stage not in TRAININGS:
        return TABLE[stage].pool
    placement = spec.train.placement
    return placement.pool or (GPU.name if placement.gpus else TRAIN.name)
