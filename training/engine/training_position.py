"""Where a training stands, as its checkpoints hold it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from training.engine.checkpoint.format import Position
from training.engine.precision import LossScale


@dataclass(kw_only=True)
class Progress:
    """Where a training stands; with the tensors, all that a checkpoint holds."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    best_epoch: int = 0
    best_loss: float = math.inf
    history: list[dict[str, float]] = field(default_factory=list)
    epoch_loss: float = 0.0
    """Sum of this rank-0 epoch's losses so far, over all ranks' units, each times its weight."""
    loss_scale: LossScale | None = None
    """Only of a training in fp16."""

    def to_json(self) -> Position:
        position = Position(
            step=self.step,
            epoch=self.epoch,
            best_epoch=self.best_epoch,
            best_loss=None if math.isinf(self.best_loss) else self.best_loss,
            history=self.history,
            epoch_loss=self.epoch_loss,
        )
        if self.loss_scale is not None:
            position["loss_scale"] = self.loss_scale.to_json()
        return position

    @classmethod
    def from_json(cls, values: Position) -> Progress:
        best_loss = values["best_loss"]
        return cls(
            step=values["step"],
            epoch=values["epoch"],
            best_epoch=values["best_epoch"],
            best_loss=math.inf if best_loss is None else best_loss,
            history=values["history"],
            epoch_loss=values["epoch_loss"],
            loss_scale=LossScale(**values["loss_scale"]) if "loss_scale" in values else None,
        )
