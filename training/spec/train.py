"""The sections `train`, `evaluate` and `promote`: how the model is made, measured, and let into use."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from training.spec.families import with_defaults
from training.spec.values import Bytes, ColumnName, Line, Name, PositiveDuration, Section, Setting

Task = Literal["ranking", "binary"]

METRICS: Final[dict[str, tuple[str, ...]]] = {"ranking": ("ndcg@10", "mrr"), "binary": ("auc", "log_loss", "brier", "calibration_error")}
"""Task to its metrics; `ndcg@10` stands for any cut from 1 to 1000."""
LOWER_IS_BETTER: Final = frozenset({"log_loss", "brier", "calibration_error"})

_NDCG = re.compile(r"ndcg@([1-9]\d{0,2}|1000)", re.ASCII)


class Placement(Section):
    """How many processes train, and with what. Amounts are per node."""

    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    processes_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    memory: Bytes | None = None
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    accelerator: Name | None = None
    """Kind of GPU, by the installation's name for it."""
    shared_memory: Bytes | None = None
    """Of /dev/shm, which counts as memory."""
    min_nodes: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Elastic: after a loss, go on with as few nodes as this rather than wait for all of them. Fewer processes make other bits."""
    spot: bool = False
    """Train on nodes that may be taken away: cheaper; what is lost is relaunched from the last commit."""
    topology: Name | None = None
    """Domain that all nodes share (`nvlink`, `zone`), by the installation's name for it."""
    priority: Name | None = None
    """Class of priority, by the installation's name for it."""
    pool: Line | None = None
    """Airflow pool of the training task; absent: that of its kind."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def launcher(self) -> Literal["torchrun", "python"]:
        """torchrun starts training exactly where there is more than one process."""
        return "torchrun" if self.world_size > 1 else "python"


class Checkpoint(Section):
    every: PositiveDuration = Field(default="10m", validate_default=True)
    keep: Annotated[int, Field(ge=1, le=1000)] = 3


class Train(Section):
    model: Line
    """A family of training/models/, or `package.module:Class` of an allowed package."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    epochs: Annotated[int, Field(ge=1, le=100_000)]
    """Passes over the training rows; boosting rounds for trees."""
    batch_size: Annotated[int, Field(ge=1, le=2**27)] | None = None
    """Rows of one step over all processes."""
    learning_rate: Annotated[float, Field(gt=0, le=100)]
    weight_decay: Annotated[float, Field(ge=0, le=100)] | None = None
    early_stopping: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Epochs without a better validation metric after which training ends."""
    settings: dict[str, Setting] = Field(default_factory=dict, validate_default=True)
    """The family's own; defaults are filled in."""
    placement: Placement = Field(default_factory=Placement)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)

    @field_validator("settings", mode="after")
    @classmethod
    def _fill(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return with_defaults(info.data.get("model"), value)


class Improvement(Section):
    """How much better than the champion's the primary metric must be: in its own units, or as a share of the champion's."""

    absolute: Annotated[float, Field(ge=0, le=1e6)] | None = None
    relative: Annotated[float, Field(ge=0, le=100)] | None = None


class Evaluate(Section):
    task: Task
    primary: Line
    minimum: dict[str, Annotated[float, Field(ge=-1e6, le=1e6)]] = Field(default_factory=dict)
    """Metric to the least that it must reach."""
    improvement: Improvement = Field(default_factory=Improvement)
    confidence: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.95
    """Of the interval whose lower end must be above zero."""
    slices: Annotated[tuple[ColumnName, ...], Field(strict=False)] = ()
    slice_support: Annotated[int, Field(ge=1, le=10**9)] = 100
    """A slice of fewer rows is reported and judges nothing."""


class Promote(Section):
    model: Name
    """Name in the registry."""
    approval: Literal["automatic", "required"] = "automatic"


def is_metric(task: str, name: str) -> bool:
    """Say whether `name` is a metric of the task."""
    return bool(_NDCG.fullmatch(name)) if name.startswith("ndcg@") and task == "ranking" else name in METRICS.get(task, ())
