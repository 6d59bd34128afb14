"""One stage of a pipeline as torch's schedules call it, and what the stages hand on: found out by one forward pass.

Micro-batches differ by a row; what is sent has one size, the largest. Rows are added after a stage, and left out before the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from training.data.dataset.loader import Batch
from training.engine.parallel.strategy import SumLoss
from training.engine.precision import autocast
from training.errors import SpecError
from training.large.pipeline_cut import ComputedOutput, wrong_cut

MAX_DIMENSIONS: Final = 8
DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
REFUSED: Final = -1
REASONS: Final = (
    "must return one floating-point tensor",
    "must return a tensor whose dimension 0 is the rows of the batch",
    f"must return a tensor of at most {1 + MAX_DIMENSIONS} dimensions, of {', '.join(map(str, DTYPES))}",
    "has a loss that calls the module with another batch than it was given; the stages have computed that one",
)


@dataclass(frozen=True, slots=True)
class Size:
    """Of what one stage hands on: everything but the number of rows."""

    dtype: torch.dtype
    per_row: tuple[int, ...]

    def tensor(self, rows: int, device: torch.device | str = "meta") -> torch.Tensor:
        """Return a tensor of so many rows; on `meta` it stands for one that needs gradients."""
        return torch.empty(rows, *self.per_row, dtype=self.dtype, device=device, requires_grad=str(device) == "meta")


@dataclass(frozen=True, slots=True)
class Passed:
    """What a stage takes and gives."""

    takes: Size | None
    """None: the batch."""
    gives: Size | None
    """None: the loss."""


class StageOfBatch(nn.Module):
    """What a schedule calls with the number of a micro-batch: every stage finds the batch itself."""

    def __init__(self, stage: nn.Module, number: int, num_stages: int, *, precision: str, device: torch.device) -> None:
        super().__init__()
        self.stage = stage
        self.is_first, self.is_last = number == 0, number == num_stages - 1
        self.number = number
        self.num_rows = 1
        """Of what is sent."""
        self.precision = precision
        self.device = device
        self._batches: Sequence[Batch] = ()
        self._totals: list[torch.Tensor] = []

    def set_work(self, batches: Sequence[Batch], loss: SumLoss, weight: float) -> list[torch.Tensor]:
        """Set the micro-batches of a step; return the list that gets the last stage's losses, summed over units."""
        self._batches, self._loss, self._weight, self._totals = batches, loss, weight, []
        return self._totals

    def forward(self, *states: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        batch = self._batches[int(number)]
        rows = len(batch["label"])
        if self.is_first or self.is_last:
            batch = self.on_device(batch)
        with autocast(self.precision, self.device):
            output = self.stage(batch if self.is_first else states[0][:rows])
            if self.is_last:
                total = self._loss(ComputedOutput(output, batch), batch)
        if self.is_last:
            self._totals.append(total.detach())
            return total * (1 / self._weight)
        return self._padded(output)

    def on_device(self, batch: Batch) -> Batch:
        return {name: cells.to(self.device, non_blocking=True) for name, cells in batch.items()}

    def _padded(self, states: torch.Tensor) -> torch.Tensor:
        if not states.requires_grad:
            # Of frozen layers: the next stage sends a gradient in any case.
            states = states.detach().requires_grad_()
        missing = self.num_rows - len(states)
        return torch.cat([states, states.new_zeros(missing, *states.shape[1:])]) if missing else states.contiguous()


def learn_passed(stage: StageOfBatch, batch: Batch, loss: SumLoss, stages: dist.ProcessGroup) -> Passed:
    """Run one forward pass through the stages, which leaves no trace, and return what this one takes and gives. All must call it.

    Raises:
        SpecError: `parallel.pipeline_stages`, on all processes.
    """
    header = torch.full((2 + MAX_DIMENSIONS,), REFUSED, dtype=torch.int64, device=stage.device)
    takes: Size | None = None
    if not stage.is_first:
        dist.recv(header, group=stages, group_src=stage.number - 1)
        takes = _size(header.tolist())
    facts, gives, refused = [REFUSED], None, 0
    if stage.is_first or takes is not None:
        gives, refused = _tried(stage, batch, loss, takes)
        if gives is not None:
            facts = [DTYPES.index(gives.dtype), len(gives.per_row), *gives.per_row]
    if not stage.is_last:
        header.fill_(REFUSED)[: len(facts)] = torch.tensor(facts, device=stage.device)
        dist.send(header, group=stages, group_dst=stage.number + 1)
    # Everyone refuses what one stage of one pipeline finds.
    code = torch.tensor([len(REASONS) * stage.number + refused if refused else 0], dtype=torch.int64, device=stage.device)
    dist.all_reduce(code, op=dist.ReduceOp.MAX)
    if found := int(code):
        number, reason = divmod(found - 1, len(REASONS))
        raise wrong_cut(f"stage {number} {REASONS[reason]}")
    return Passed(takes, gives)


def _size(header: list[int]) -> Size | None:
    if header[0] == REFUSED:
        return None
    return Size(DTYPES[header[0]], tuple(header[2 : 2 + header[1]]))


def _tried(stage: StageOfBatch, batch: Batch, loss: SumLoss, takes: Size | None) -> tuple[Size | None, int]:
    """Return what a stage gives for a batch, and the number of the reason why it cannot be used, from 1; 0: it can."""
    rows = len(batch["label"])
    batch = stage.on_device(batch)
    kept = [(buffer, buffer.clone()) for buffer in stage.buffers()]
    devices = [stage.device] if stage.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), autocast(stage.precision, stage.device):
        output = stage.stage(batch if takes is None else takes.tensor(rows, stage.device).zero_())
        refused = _loss_refused(output, batch, loss) if stage.is_last else _output_refused(output, rows)
        for buffer, before in kept:
            buffer.copy_(before)
    return (None if stage.is_last or refused else Size(output.dtype, tuple(output.shape[1:]))), refused


def _output_refused(output: object, rows: int) -> int:
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return 1
    if output.ndim < 1 or output.shape[0] != rows:
        return 2
    return 3 if output.ndim - 1 > MAX_DIMENSIONS or output.dtype not in DTYPES else 0


def _loss_refused(output: object, batch: Batch, loss: SumLoss) -> int:
    try:
        loss(ComputedOutput(output, batch), batch)
    except SpecError:
        return 4
    return 0
