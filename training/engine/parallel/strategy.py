"""The seam of parallel training: how one model is trained by all processes of a gang.

One file for each strategy: `ddp`, and `sharded` and `pipeline` of `training.large`. The loop, the loader and torch families know a strategy
only by this protocol: torch.distributed and its wrappers are imported in these two folders alone. Order of the calls: `place`, then the
optimizer is made of the parameters that it returned, then `restore` where there is a checkpoint, then steps and validations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from training.data.dataset.loader import Batch
from training.engine.optimizers import MakeMuon
from training.engine.parallel.gang import Gang

SumLoss = Callable[[nn.Module, Batch], torch.Tensor]
"""The loss summed over a batch's units (rows, or groups)."""


class Strategy(Protocol):
    """How the processes of a gang share one training. An instance is for one model."""

    @property
    def gang(self) -> Gang:
        """All processes. `gang.rank` counts them; what belongs to the whole training (a log line, a judge) is done by `gang.is_first`."""

    @property
    def precision(self) -> str:
        """What the forward pass runs in: a key of `training.engine.precision.DTYPES`. With `fp16`, the caller scales the loss."""

    @property
    def data_rank(self) -> int:
        """Which share of each batch this process gets, from 0. Processes that hold parts of one replica have the same number."""

    @property
    def num_data_ranks(self) -> int:
        """Into how many shares a batch is divided. At most the number of processes."""

    def part(self, rank: int) -> int:
        """Return which part of a replica a process has: after each step, processes with the same part have the same parameters."""

    def stage_number(self, rank: int) -> int:
        """Return which stage of a pipeline a process has; 0 where there is none. Processes of one stage have the same work in a step."""

    @property
    def saves(self) -> bool:
        """Whether this process writes checkpoints."""

    @property
    def is_sharded(self) -> bool:
        """Whether each process has a part of the state, so that all save and restore together; otherwise `state` is the whole of it."""

    @property
    def can_rescue(self) -> bool:
        """Whether this process alone has the whole state of the last step, after another one was lost in the next."""

    def agree(self, *flags: bool) -> list[bool]:
        """Return what the processes decide between two steps: where they save together, any one's flag is everyone's; else one's own.

        Raises:
            PeerLostError: another process is lost.
        """

    def place(self, module: nn.Module) -> Mapping[str, nn.Parameter]:
        """Move the model to the devices and wrap it; return the parameters that this process updates, by name.

        All processes must call it, with the same model.

        Raises:
            PeerLostError: another process is lost.
        """

    def backward(self, batches: Sequence[Batch], loss: SumLoss, weight: float) -> torch.Tensor:
        """Add to the parameters' gradients those of the mean loss over a global batch.

        Args:
            batches: this data rank's share, on the CPU, cut into micro-batches: one or more, as many on every rank; one may be empty.
            loss: of a module and a batch, summed over its units.
            weight: of the global batch, over all data ranks.

        Returns:
            The loss summed over the share's units, without a graph.

        Raises:
            PeerLostError: another process is lost.
        """

    @property
    def muon(self) -> MakeMuon:
        """What `train.optimizer: muon` updates matrices by, as `place` returns them."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to a norm over the whole model; return the norm before, the same number in every process.

        Raises:
            PeerLostError: another process is lost.
        """

    def summed_loss(self, batches: Iterable[Batch], loss: SumLoss) -> float:
        """Return the loss over the batches of all data ranks, without gradients: the same number in every process.

        Args:
            batches: this data rank's shares, as many on every rank; a share may be empty.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the model that this process saves, by name; they change with the next step."""

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over a model's tensors, by the names of `state`."""

    def weights(self) -> dict[str, torch.Tensor]:
        """Return copies of the tensors of `state`, by name: what is kept of the best epoch."""

    def whole(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the whole model's tensors on the CPU, by name, from what `weights` returned: in the first process; else they may be none.

        All processes must call it.

        Raises:
            PeerLostError: another process is lost.
        """
