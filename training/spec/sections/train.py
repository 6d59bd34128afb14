"""The section `train`: how the model is made."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from training.contracts import JsonValue
from training.spec.descriptors.families import FAMILIES
from training.spec.key_types import AUTO, ClassWeight, OrAuto, OrDuration
from training.spec.layout import Layout, fitted
from training.spec.registry import with_defaults
from training.spec.scalar_types import (
    Bytes,
    Digest,
    Line,
    Name,
    PositiveDuration,
    Section,
    Seed,
    Setting,
    refusal,
)

DEFAULT_BATCH_SIZE: Final = 1024
"""Of a class of one's own."""


class Placement(Section):
    """How many processes train, and with what. Amounts are per node."""

    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Machines; more than one is a gang. Unit: nodes."""
    processes_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes of the training on each machine. Unit: processes."""
    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Also sets the threads of each process, an equal share; absent: the family's own number, independent of the machine.
    Unit: cores per node."""
    memory: Bytes | None = None
    """Of a node's pod; absent: as the installation's placement file states."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """Of each node: 0, or one for each process. Unit: GPUs per node."""
    accelerator: Name | None = None
    """Kind of GPU, by the installation's name for it."""
    shared_memory: Bytes | None = None
    """Of /dev/shm, which counts as memory."""
    min_nodes: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Elastic: after a loss, continue with at least this many nodes instead of waiting for all of them. Fewer processes give other bits.
    Unit: nodes."""
    spot: bool = False
    """Train on nodes that may be taken away: cheaper; what is lost is relaunched from the last commit."""
    topology: Name | None = None
    """Domain that all nodes share (`nvlink`, `zone`), by the installation's name for it."""
    priority: Name | None = None
    """Class of priority, by the installation's name for it."""
    pool: Line | None = None
    """Airflow pool of the training task; absent: that of its kind. Example: `training`."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def threads_per_process(self) -> int | None:
        """Threads of each process where `cpus` is given, at least 1; None: the family's own number."""
        return None if self.cpus is None else max(1, int(self.cpus / self.processes_per_node))


class Parallel(Section):
    """How the processes share one model. The sizes multiplied are the number of processes."""

    data: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Replicas of the model; absent: as many as there are processes for. Unit: replicas. Example: `2`."""
    shard: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Processes over which each replica's parameters, gradients and optimizer state are divided (FSDP2): a model larger than one device.
    Unit: processes. Example: `4`."""
    tensor: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Processes over which the computation of each layer is divided, on the same rows; the model's class says how (`tensor_plan`).
    Unit: processes. Example: `2`."""
    pipeline: Annotated[int, Field(ge=1, le=1024)] = 1
    """Stages: processes that each have some of the layers; the model's class says which (`pipeline_stages`). Unit: stages."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """Order of the passes of a pipeline: all forward passes first, or one backward pass after each forward one, which needs less memory.
    The weights are the same."""


class SaveInterval(Section):
    """When a checkpoint is due; of several keys, what comes first."""

    time: PositiveDuration | None = None
    """Since the last save began. Example: `10m`."""
    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Of the optimizer, counted from the start of the training, so that a resumed training saves at the same ones; rounds for trees.
    Unit: steps, rounds for trees. Example: `1000`."""

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if self.time is None and self.steps is None:
            raise refusal("field.choice", "must have time or steps", hint="write a duration such as 10m, or {steps: 1000}")
        return self


class Checkpoint(Section):
    """When checkpoints are saved, and how many stay."""

    every: Annotated[SaveInterval, OrDuration("time", "{steps: 1000}")] = Field(default="10m", validate_default=True)
    """When a checkpoint is saved besides those after each epoch: a duration, `{steps: 1000}`, or both keys."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """The newest checkpoints that stay, besides that of the best epoch. Unit: checkpoints."""


class Train(Section):
    """How the model is made."""

    model: Line
    """A family of training/models/, or `package.module:Class` of an allowed package."""
    seed: Seed = 0
    """Of the initial weights, the order of rows, and all random numbers of the training. Unit: none."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Passes over the training rows; boosting rounds for trees. Required, but for `sklearn`, which has none. Unit: epochs."""
    batch_size: Annotated[int, Field(ge=1, le=2**27)] | None = None
    """Rows of one step over all processes. Absent, for a class of your own: 1,024. Unit: rows."""
    micro_batch_size: Annotated[int, Field(ge=1, le=2**27)] | None = None
    """Rows that a process holds in memory at once; it adds up the gradients of its share of a batch. Absent: the whole share.
    Unit: rows."""
    learning_rate: Annotated[float, Field(gt=0, le=100)] | None = None
    """Required, but for `linear` and `sklearn`, which have none. Unit: none."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Steps until the learning rate is reached, linearly; absent: a twentieth of all steps. Unit: steps. Example: `100`."""
    warmup_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """The same as a share of all steps; not together with `warmup_steps`."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Of the learning rate after the warm-up: down to a tenth by a cosine or by a line, or constant."""
    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """`muon` updates the matrices of hidden layers, AdamW the other parameters: embeddings, norms, biases, the output head."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of `sgd` and `muon`; absent: 0.9 and 0.95."""
    weight_decay: Annotated[float, Field(ge=0, le=100)] | None = None
    """AdamW and muon shrink the weights by it; `sgd` adds it times the weights to the gradient. Absent: 0. Unit: none."""
    early_stopping: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Epochs without a better validation metric after which training ends. Unit: epochs."""
    refit: Literal["none", "validation"] = "none"
    """`validation`: a stage of its own fits the model once more, on the train and validation rows, with the number of epochs that the
    training found; that model is evaluated, judged and served."""
    class_weight: ClassWeight = None
    """How much the rows of each class count in the training and validation loss, times `data.weight`: `balanced` (each class as much as any
    other), or the weight of each class by its name or quoted number, `{'1': 5}`; other classes have the weight 1."""
    settings: dict[str, Setting] = Field(default_factory=dict, validate_default=True)
    """The family's own; defaults are filled in."""
    placement: Placement = Field(default_factory=Placement)
    parallel: Annotated[Parallel | Literal["auto"], OrAuto("sizes: {shard: 2}")] | None = None
    """How the processes share the model; absent: each has all of it, and a share of each batch. `auto`: chosen at the start of the training
    from the model's size and the memory of the devices."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of the forward and backward pass; weights and optimizer stay fp32. `auto`: bf16 on GPUs that have it, otherwise fp32. `fp16` scales
    the loss and skips steps whose gradients overflow."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Each block of layers (`full`), or every second one (`selective`), computes its activations again in the backward pass: less memory,
    more computing, the same weights."""
    gradient_compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Of the gradients that processes with the whole model exchange: half the bytes, or matrices of low rank. bf16: GPUs only."""
    powersgd_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Columns of PowerSGD's matrices; absent: 4. More are more exact, and more bytes. Unit: columns."""
    replica_check_steps: Annotated[int, Field(ge=0, le=10**9)] = 1000
    """Steps between two comparisons of the model's replicas, which also takes place at the end of each epoch; 0: they are not compared.
    Unit: steps."""
    straggler_ratio: Annotated[float, Field(gt=1, le=1000)] | None = 1.5
    """A process that works on a step for so many times as long as the others, in three windows of steps in a row, is named as a straggler
    with rank, node and step; null: they are not compared. Unit: ratio."""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    from_checkpoint: Digest | None = None
    """SHA-256 of the manifest of a checkpoint in the store, at which the training begins (`nightshift checkpoints restore`).
    Example: `"0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d"`."""

    def layout_for(self, world_size: int) -> Layout:
        """Return how so many processes share the model: all of `placement`, or what an elastic training is left with.

        Raises:
            ValueError: it is `auto`, which several processes choose at the start (`training.models.training_plan`).
        """
        if self.parallel == AUTO and world_size > 1:
            raise ValueError("train.parallel is auto: the layout follows from the devices")
        parallel = self.parallel if isinstance(self.parallel, Parallel) else Parallel()
        return fitted(shard=parallel.shard, tensor=parallel.tensor, pipeline=parallel.pipeline, world_size=world_size)

    @property
    def threads_per_process(self) -> int:
        """Threads that each process trains with. They can change the bits of the weights, so they never depend on the machine."""
        facts = FAMILIES.get(self.model)
        return self.placement.threads_per_process or (facts.threads if facts else 1)

    @field_validator("settings", mode="after")
    @classmethod
    def _fill(cls, value: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        model = info.data.get("model")
        facts = None if model is None else FAMILIES.get(model)
        return value if facts is None else with_defaults(facts.settings, value)
