"""Airflow's pools, one per resource: how many tasks of a kind run at once, over all pipelines.

`pool_creation` makes them, with the slots of `nightshift.slots`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nightshift.slots import CPU, GPU, HOUSEKEEPING, TRAIN
from training.spec import PipelineSpec
from training.stage_table import TABLE, TRAININGS

PURPOSES: Final[Mapping[str, str]] = {
    CPU: "Stages that read, check and measure",
    TRAIN: "Trainings without an accelerator",
    GPU: "Trainings with an accelerator",
    HOUSEKEEPING: "Hourly maintenance, which waits for no pipeline",
}
OTHERS: Final = "Named by a pipeline"


def pool_of(spec: PipelineSpec, stage: str) -> str:
    """Return the pool that a stage's task waits in: for training the spec's own, if it names one."""
    if stage not in TRAININGS:
        return TABLE[stage].pool
    placement = spec.train.placement
    return placement.pool or (GPU if placement.gpus else TRAIN)
