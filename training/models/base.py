"""What every model family does: it fits a dataset's shards and loads what it fitted.

A family is one folder: `family.py` describes it and is light, `module.py` fits and scores (its `FAMILY`). A distribution adds one by an
entry point of the group `nightshift.families` whose value is a package with the same two files. A class of an allowed package
(`package.module:Class`, see `NIGHTSHIFT_MODEL_PACKAGES`) is a family too, without a descriptor; most of these derive from
`training.models.torch_family.TorchFamily`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from training.errors import spec_error

if TYPE_CHECKING:
    # A registered model carries what is imported above, and nothing else: scoring needs neither spec nor store.
    # Scoring alone loads models too: it opens no MLflow (see `canary` in the stage table), and scoring trees imports no torch.
    # Tests follow the imports.
    from training.contracts import Scalar
    from training.data.dataset.manifest import DatasetMeta
    from training.data.dataset.shard_format import FeatureEntry
    from training.data.features.transforms import Matrix
    from training.engine.checkpoint.checkpoints import Checkpoints
    from training.engine.parallel.gang import Gang
    from training.engine.parallel.single_process import Alone
    from training.engine.tracking.tracker import Tracker
    from training.runtime.context import ReportProgress, StopFlag
    from training.spec import PipelineSpec
    from training.spec.layout import Layout

Scorer: TypeAlias = "Callable[[Matrix], NDArray[np.float64]]"
"""A model's input, [n, features], to one score per row, [n] float64; for several classes [n, classes] probabilities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitContext:
    """What a family trains with."""

    spec: PipelineSpec
    dataset_path: Path
    """Local folder of the dataset's files, digests checked; what a training puts beside them is removed with the attempt."""
    dataset_meta: DatasetMeta
    dataset_digest: str
    gang: Gang | Alone
    """Alone, for a family that trains without torch (`FamilyDescriptor.uses_torch`)."""
    checkpoints: Checkpoints
    tracker: Tracker
    stop: StopFlag
    progress: ReportProgress
    note_straggler: Callable[[int, Mapping[str, object]], object]
    """Called on rank 0 with (a rank that is slower than the others, the record of it), which the next attempt may do without."""
    refit_epochs: int | None = None
    """Of a refit: training ends after so many epochs, and the last weights are the model, for the validation rows are training rows too.
    None: early stopping and the validation loss decide."""
    layout: Layout | None = None
    """How the gang shares the model; None: as the section `train` says."""
    judge: Callable[[int, float], bool] | None = None
    """Called by rank 0 after each epoch with (epochs done, validation loss): True ends the training there, as a trial that is pruned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """What training made; only rank 0's counts."""

    weights_name: str
    """`weights.safetensors`, `weights.ubj`, `weights.txt` or `weights.skops`."""
    weights: bytes
    architecture: Mapping[str, object]
    """JSON that `Family.load` needs besides the weights."""
    best_epoch: int = 0
    validation_loss: float = 0.0
    history: Sequence[Mapping[str, float]] = ()
    """One entry per epoch; no clock in it."""
    num_steps: int = 0
    whole_labels: bool = False
    """Whether it learned whole labels; if not, the dataset's `label_center` is added to what it predicts."""
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    requirements: Sequence[str] = ()
    """`distribution==version` that the scorer imports besides what the family's module imports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedArtifact:
    """A model from outside, which a family takes in instead of training one."""

    path: Path
    """Local; its digest is checked, and it is no pickle."""
    spec: PipelineSpec
    features: Sequence[FeatureEntry]
    """The model's input, in the order of its columns."""
    num_classes: int | None
    """That the model must know; None: the task has no classes."""


class Family(ABC):
    """A way to fit and to score."""

    @abstractmethod
    def fit(self, context: FitContext) -> FitResult:
        """Train to the end, resuming from the newest usable checkpoint.

        Raises:
            DivergedError: loss or gradients are not finite, or exploded.
            PreemptedError: stopped by a signal; the saved state is committed.
            NoUsableCheckpointError: checkpoints exist and none can be read.
        """

    def imported(self, artifact: ImportedArtifact) -> FitResult:
        """Return a model from outside as if it had been fitted, with an empty history. Nothing is unpickled.

        Raises:
            SpecError: `artifact.family`, the family takes none.
            DataError: `artifact.*`, the file is damaged, or not a model of this input and this task.
        """
        model = artifact.spec.train.model
        raise spec_error(
            "train.model", "artifact.family", f"{model} takes no model from outside", hint="use another format, or train it here"
        )

    def layout(self, spec: PipelineSpec, gang: Gang | Alone, dataset_path: Path, dataset_meta: DatasetMeta) -> Layout:
        """Return how the processes of a gang share the model; a family that has layouts chooses one for `train.parallel: auto`.

        All processes must call it.

        Args:
            dataset_path: local folder of the dataset's files.

        Raises:
            SpecError: `parallel.memory`, `layout.*`: `auto` finds no layout.
            PeerLostError: another process is lost.
        """
        return spec.train.layout_for(gang.world_size)

    @abstractmethod
    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        """Return the scorer of the weights in the local `folder`. Nothing is unpickled."""


def load_family(name: str) -> Family:
    """Return the family that a spec names.

    Raises:
        SpecError: `model.unknown`; `model.not_a_family`, the name is of something else.
    """
    from training.process import liveness
    from training.spec.descriptors.families import place_of
    from training.spec.registry import imported

    place = place_of(name)
    hint = "name a class that derives from training.models.torch_family.TorchFamily (docs/extending.md)"
    with liveness.phase("start", f"import of {name}"):
        found = imported(name, place, _is_family, code="model.not_a_family", hint=hint)
        family: Family = found() if isinstance(found, type) else found
    return family


def _is_family(found: object) -> bool:
    return isinstance(found, Family) or (isinstance(found, type) and issubclass(found, Family))


def hint_of_last_epoch(best: int, epochs: int) -> str:
    """Return what to try where the best epoch is the last one of several; empty: it is not."""
    return f"the best epoch is the last one, {best}: more of them (train.epochs) may make a better model" if best == epochs > 1 else ""
