"""Data parallel training: each process has the whole model and a share of each batch; gradients are averaged over the processes.

A gang of one process is the same without a wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training.data.dataset.loader import Batch
from training.engine.optimizers import MakeMuon, whole_muon
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import SumLoss
from training.engine.precision import autocast
from training.engine.uncompiled_torch import compiler_options, unwrapped
from training.errors import spec_error
from training.process import liveness

UNFINISHED: Final = "Expected to have finished reduction"
"""Part of what torch says where gradients of some parameters have not come."""


class GradientReducer(DistributedDataParallel):
    """torch's DistributedDataParallel with buckets that stay, which does not import torch's compiler (`training.engine.uncompiled_torch`).

    torch makes new buckets after the first backward pass. Where an element is in a bucket decides in which order more than two ranks add
    it up, so the first step after a resumption would have other bits than the same step of an undisturbed training.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        with compiler_options():
            super().__init__(module, **options)
        # As if all gradients had come once, in the order of the parameters.
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        # Backwards, as a backward pass comes to them: a bucket is sent while the next ones are computed.
        parameters, is_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], is_sparse[::-1]

    # A generator function, which torch makes a context manager.
    _inside_ddp_forward = contextmanager(unwrapped(DistributedDataParallel._inside_ddp_forward))


class ReplicatedModel:
    """The strategy `ddp`: every process is a data rank, and the first one saves the whole state."""

    is_sharded = False

    def __init__(
        self, gang: Gang, *, precision: str = "fp32", compress_gradients: Callable[[DistributedDataParallel], object] | None = None
    ) -> None:
        """Prepare it.

        Args:
            compress_gradients: registers torch's communication hook with the wrapped model; not called in a gang of one process.
        """
        self.gang = gang
        self.precision = precision
        self._compress_gradients = compress_gradients
        self._module: nn.Module = nn.Identity()
        self._wrapped: nn.Module = self._module
        self._parameters: dict[str, nn.Parameter] = {}

    @property
    def data_rank(self) -> int:
        return self.gang.rank

    @property
    def num_data_ranks(self) -> int:
        return self.gang.world_size

    def part(self, rank: int) -> int:
        return 0

    def stage_number(self, rank: int) -> int:
        return 0

    @property
    def saves(self) -> bool:
        return self.gang.is_first

    @property
    def can_rescue(self) -> bool:
        # A forward pass changes buffers: those are not of the last whole step any more.
        return self.gang.is_first and not any(True for _ in self._module.buffers())

    def agree(self, *flags: bool) -> list[bool]:
        # The first one saves alone, and may do so at any step.
        return list(flags)

    def place(self, module: nn.Module) -> Mapping[str, nn.Parameter]:
        self._module = self._wrapped = module.to(self.gang.device)
        self._parameters = dict(self._module.named_parameters())
        if self.gang.world_size > 1:
            with self.gang.collectives():
                self._wrapped = wrapped = GradientReducer(self._module, gradient_as_bucket_view=True)
            if self._compress_gradients is not None:
                self._compress_gradients(wrapped)
        return self._parameters

    def backward(self, batches: Sequence[Batch], loss: SumLoss, weight: float) -> torch.Tensor:
        totals = []
        with self.gang.collectives():
            for number, batch in enumerate(batches, start=1):
                with self._reduction(is_last=number == len(batches)):
                    with autocast(self.precision, self.gang.device):
                        total = loss(self._wrapped, self._on_device(batch))
                    # DDP averages over ranks; shares differ by a unit, so the mean over units is the sum of sums over all units.
                    (total * (self.num_data_ranks / weight)).backward()  # type: ignore[no-untyped-call]
                totals.append(total.detach())
            self._check_reduced()
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum()

    def _reduction(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Gradients are reduced over ranks once, in the backward pass of the last micro-batch."""
        return nullcontext() if is_last or not isinstance(self._wrapped, GradientReducer) else self._wrapped.no_sync()

    def _check_reduced(self) -> None:
        """Raise where gradients were not averaged, as some are missing: torch says it at the next step, after the optimizer has used them.

        Raises:
            SpecError: `parallel.unused_block`.
        """
        if not isinstance(self._wrapped, GradientReducer):
            return
        try:
            self._wrapped.reducer._rebuild_buckets()
        except RuntimeError as err:
            if UNFINISHED not in str(err):
                raise
            names = [name for name, parameter in self._parameters.items() if parameter.requires_grad and parameter.grad is None]
            what = (
                f"the loss does not depend on {', '.join(names[:5])}" if names else "the loss depends on some parameters for some rows only"
            )
            message = f"{what}: processes cannot average gradients"
            hint = "set requires_grad to False for parameters that are not used; let each forward pass use all others"
            raise spec_error("train.model", "parallel.unused_block", message, hint=hint) from err

    @property
    def muon(self) -> MakeMuon:
        return whole_muon

    def clip(self, max_norm: float) -> float:
        # Reading the norm waits for the collectives of a GPU.
        with self.gang.collectives():
            return float(nn.utils.clip_grad_norm_(self._parameters.values(), max_norm))

    def summed_loss(self, batches: Iterable[Batch], loss: SumLoss) -> float:
        """Each rank sums its share with the bare module; ranks meet only when all are done, in the patient group.

        With buffers, every rank uses those of rank 0, which are also the ones that are saved.
        """
        self.gang.copy_from_first(self._module.buffers())
        self._module.eval()
        total = 0.0
        with torch.no_grad(), autocast(self.precision, self.gang.device):
            for batch in batches:
                liveness.moved()
                # A batch of fewer units than ranks leaves nothing for some; a mean over no rows would not be a number.
                if len(batch["label"]):
                    total += float(loss(self._module, self._on_device(batch)))
        self._module.train()
        return self.gang.sum(total)[0]

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self._module.state_dict())

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._module.load_state_dict(state)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self._module.state_dict().items()}

    def whole(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(weights)

    def _on_device(self, batch: Batch) -> Batch:
        return {name: cells.to(self.gang.device, non_blocking=True) for name, cells in batch.items()}
