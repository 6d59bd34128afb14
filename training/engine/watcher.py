"""What watches a training from beside its loop, such as the comparison of its processes; a training without watchers imports none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from training.contracts import Scalar
from training.data.dataset.loader import Batch
from training.engine.checkpoint.format import Position
from training.engine.parallel.strategy import SumLoss


class Watcher:
    """What the loop calls, on all processes at the same steps; each method does nothing unless a watcher overrides it."""

    def measured(self, loss: SumLoss, module: nn.Module) -> SumLoss:
        """Return the loss that training steps use: the same values."""
        return loss

    def begin(self, step: int) -> None:
        """Note that all processes begin after a step, with the state of one checkpoint, or of a new model."""

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return an epoch's batches, the same ones."""
        return batches

    def step(self) -> AbstractContextManager[None]:
        """A step from its batch to the optimizer's update."""
        return nullcontext()

    def between_steps(self, step: int, state: Callable[[], Mapping[str, torch.Tensor]], *, is_kept: bool) -> None:
        """Look at the training after a step; also called twice for one step.

        Args:
            state: returns by name the tensors that are equal in all replicas of the model.
            is_kept: whether this state is about to be kept, by all processes together or as that of an epoch.

        Raises:
            NightshiftError: the training must end.
        """

    def add_to(self, position: Position) -> None:
        """Add to what a checkpoint says of where the training was."""

    def scalars(self) -> dict[str, Scalar]:
        """Return what the stage's result says; only where there is something to say."""
        return {}

    def close(self) -> None:
        """Release what it holds."""
