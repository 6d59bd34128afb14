"""What a model family says of itself: `training/models/<family>/family.py` holds one `DESCRIPTOR`, and imports no library to train with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from training.spec.types import Section

NEURAL_ONLY: Final = (
    *("batch_size", "micro_batch_size", "parallel", "precision", "activation_checkpointing"),
    *("gradient_compression", "powersgd_rank", "replica_check_steps", "straggler_ratio"),
    *("optimizer", "momentum", "weight_decay", "schedule", "warmup_steps", "warmup_share"),
)
"""Keys of `train` that have no effect on a family that is not trained by gradient descent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyDescriptor:
    """What spec, placement and fingerprints have to know of a family. Its implementation is `module.py` in the same folder."""

    settings: type[Section]
    """Of `train.settings`."""
    tasks: tuple[str, ...]
    """Values of `evaluate.task` that it trains for."""
    libraries: tuple[str, ...]
    """Distributions that it trains with; the first one names the framework of a model's version."""
    distributed: bool
    """Whether it trains in more than one process."""
    needs: tuple[str, ...] = ()
    """Keys of `train` that must be given."""
    ignored_keys: tuple[str, ...] = ()
    """Keys of `train` that would have no effect."""
    uses_gpus: bool
    gpus_on_request: bool = False
    """Whether it uses GPUs only where `placement.gpus` is set; else wherever there are some."""
    uses_torch: bool
    """Whether training it needs torch. Without, one process that trains it on a CPU does not import torch; several meet by torch's gloo."""
    weighted_tasks: tuple[str, ...] = ()
    """Tasks of which its loss counts rows by their weights (`data.weight`, `train.class_weight`)."""
    takes_missing_numbers: bool = True
    """Whether a cell of its input may be NaN; if not, `prepare` refuses one, and the training would too."""
    kept_row_bytes: int = 0
    """Memory that a training keeps of each training and validation row on a CPU, whatever its limit; 0: none that is known."""
    kept_start_bytes: int = 0
    """What it takes besides."""
    threads: int = 1
    """Of each process, unless `placement.cpus` says otherwise. Fixed: another number of threads can round otherwise."""

    def __post_init__(self) -> None:
        # The registration of a model reads the first one, at the end of the night.
        if not self.libraries:
            raise ValueError("libraries is empty: the first one names the framework of a model's version")
