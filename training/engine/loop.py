"""The training loop: parts are handed in, it owns nothing but the order of things.

Bit-identical by construction: the order of samples, the learning rate and every random number are functions of
(dataset, seed, step, rank), so a checkpoint holds no hidden state, and a resumed run is the undisturbed one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from training import liveness
from training.data.loader import Batch, Loader
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.tensors import check_savable
from training.engine.eager import AdamW, GradientReducer
from training.engine.parallel.gang import Gang
from training.engine.precision import autocast
from training.engine.tracking import Tracker
from training.engine.watchdog import Watchdog
from training.errors import PeerLostError, PreemptedError
from training.runtime.context import StageContext, StopFlag

logger = logging.getLogger(__name__)

MAX_GRAD_NORM: Final = 1.0
WARMUP_SHARE: Final = 0.05
FINAL_LR_SHARE: Final = 0.1
TRACK_EVERY_STEPS: Final = 10

SumLoss = Callable[[nn.Module, Batch], torch.Tensor]
"""The loss summed over a batch's units (rows, or groups)."""

Judge = Callable[[int, float], bool]
"""(epochs done, validation loss) to whether training is to end here: what a search for settings prunes by."""


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
    """Sum of this rank-0 epoch's losses so far, over all ranks' units."""

    def to_json(self) -> dict[str, Any]:
        values = dict(vars(self))
        values["best_loss"] = None if math.isinf(self.best_loss) else self.best_loss
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        known = {name: values[name] for name in cls.__dataclass_fields__}
        known["best_loss"] = math.inf if known["best_loss"] is None else known["best_loss"]
        return cls(**known)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop is made of."""

    module: nn.Module
    loss: SumLoss
    loader: Loader
    validation: Loader | None
    """This rank's share of the validation rows: on every rank, or None on every rank."""
    gang: Gang
    checkpoints: Checkpoints
    tracker: Tracker
    stop: StopFlag
    stage: StageContext
    precision: str
    seed: int
    epochs: int
    learning_rate: float
    weight_decay: float
    early_stopping: int | None
    warmup_steps: int | None = None
    """None: `WARMUP_SHARE` of all steps."""
    judge: Judge | None = None
    """Asked by rank 0 after each epoch whether the training is worth going on."""


class Loop:
    """Trains one module to the end; `best` then holds the weights of the best epoch."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._module = parts.module.to(parts.gang.device)
        self._names = {name: p for name, p in self._module.named_parameters()}
        self._parameters = list(self._names.values())
        self._optimizer = AdamW(self._module.parameters(), lr=parts.learning_rate, weight_decay=parts.weight_decay, fused=True)
        self._watchdog = Watchdog()
        self._given_up = False
        self.progress = Progress()
        self.best: dict[str, torch.Tensor] = {}

    def train(self) -> None:
        """Run from the newest checkpoint to the end.

        Raises:
            SpecError: `checkpoint.dtype`, `checkpoint.layout`: the module holds a tensor that no checkpoint can restore.
            DivergedError, PreemptedError, PeerLostError, NoUsableCheckpointError, LeaseLostError: see `training.errors`.
        """
        # Before the first step: the first save may be due after hours.
        check_savable(self._state())
        if self._parts.gang.is_first:
            self._parts.checkpoints.reserve(self._largest_state())
        self._resume()
        parts = self._parts
        # Ranks read a checkpoint at their own speed; what follows has the limit of a step.
        parts.gang.wait_for_all()
        wrapped = self._module if parts.gang.world_size == 1 else GradientReducer(self._module, gradient_as_bucket_view=True)
        self._module.train()
        try:
            with liveness.phase("step"):
                while self.progress.epoch < parts.epochs and not self._given_up and not self._stopped_early():
                    self._epoch(wrapped)
        except PeerLostError:
            self._rescue()
            raise
        parts.checkpoints.wait()

    @property
    def _total_steps(self) -> int:
        return self._parts.loader.steps_per_epoch * self._parts.epochs

    def _epoch(self, wrapped: nn.Module) -> None:
        parts, progress = self._parts, self.progress
        # The first rank may still wait for an upload: not in the collective of a step, whose limit is short.
        parts.gang.wait_for_all()
        first = progress.step - progress.epoch * parts.loader.steps_per_epoch
        for number, batch in enumerate(parts.loader.batches(progress.epoch, first), start=first):
            self._step(wrapped, batch, parts.loader.num_global_units(number))
            if parts.stop.requested and parts.gang.is_first:
                self._save(wait=True)
                raise PreemptedError("train.preempted", f"stopped after step {progress.step}, which is committed")
            if parts.stop.requested:
                # Its collective with the first rank breaks, which then saves the last whole step.
                raise PreemptedError("train.preempted", f"rank {parts.gang.rank} stopped after step {progress.step}")
            if parts.gang.is_first and parts.checkpoints.due:
                self._save()
        self._finish_epoch()

    def _step(self, wrapped: nn.Module, batch: Batch, num_units: int) -> None:
        parts, progress, gang = self._parts, self.progress, self._parts.gang
        _seed((parts.seed * 1_000_003 + progress.step) * 4099 + gang.rank, gang.device)
        lr = self._learning_rate(progress.step)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        on_device = {name: cells.to(gang.device, non_blocking=True) for name, cells in batch.items()}
        with gang.collectives():
            with autocast(parts.precision, gang.device):
                total = parts.loss(wrapped, on_device)
            # DDP averages over ranks; shares differ by a unit, so the mean over units is the sum of sums over all units.
            (total * (gang.world_size / num_units)).backward()  # type: ignore[no-untyped-call]
            norm = float(nn.utils.clip_grad_norm_(self._parameters, MAX_GRAD_NORM))
        loss = float(total.detach()) * gang.world_size / num_units
        self._watchdog.check(progress.step, loss, norm)
        self._optimizer.step()
        progress.step += 1
        progress.epoch_loss += loss * num_units
        if progress.step % TRACK_EVERY_STEPS == 0:
            parts.tracker.log(progress.step, train_loss_step=loss, grad_norm=norm, learning_rate=lr)
        parts.stage.progress(progress.step, self._total_steps, "steps", epoch=progress.epoch + 1, loss=loss)

    def _finish_epoch(self) -> None:
        parts, progress = self._parts, self.progress
        train_loss = progress.epoch_loss / parts.loader.num_units
        with liveness.phase("validation", f"epoch {progress.epoch + 1}"):
            validation_loss = self._validate()
        with liveness.phase("part", "judge"):
            given_up = parts.gang.is_first and parts.judge is not None and parts.judge(progress.epoch + 1, validation_loss)
        # One rank judges, all act on it: early stopping and pruning must be the same everywhere.
        told = (train_loss, validation_loss, float(given_up)) if parts.gang.is_first else (0.0, 0.0, 0.0)
        train_loss, validation_loss, is_over = parts.gang.sum(*told)
        self._given_up = bool(is_over)
        progress.epoch += 1
        progress.epoch_loss = 0.0
        progress.history.append({"epoch": progress.epoch, "train_loss": train_loss, "validation_loss": validation_loss})
        if validation_loss < progress.best_loss:
            progress.best_loss, progress.best_epoch = validation_loss, progress.epoch
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in self._module.state_dict().items()}
        if parts.gang.is_first:
            logger.info("epoch %d of %d: train loss %.5f, validation loss %.5f", progress.epoch, parts.epochs, train_loss, validation_loss)
            parts.tracker.log(progress.step, train_loss=train_loss, validation_loss=validation_loss, epoch=float(progress.epoch))
            self._save(name=f"epoch_{progress.epoch}")

    def _validate(self) -> float:
        """Return the loss per unit over all validation rows, the same on every rank; the training loss where there are none.

        Each rank sums its share with the bare module; ranks meet only when all are done, in the patient group. With buffers,
        every rank uses those of rank 0, which are also the ones that are saved.
        """
        parts = self._parts
        if parts.validation is None or parts.validation.num_units == 0:
            return self.progress.epoch_loss / parts.loader.num_units
        parts.gang.copy_from_first(self._module.buffers())
        self._module.eval()
        total = 0.0
        with torch.no_grad(), autocast(parts.precision, parts.gang.device):
            for batch in parts.validation.batches(0):
                liveness.moved()
                # A batch of fewer units than ranks leaves nothing for some; a mean over no rows would not be a number.
                if len(batch["label"]):
                    total += float(parts.loss(self._module, {n: c.to(parts.gang.device) for n, c in batch.items()}))
        self._module.train()
        return parts.gang.sum(total)[0] / parts.validation.num_units

    def _stopped_early(self) -> bool:
        patience = self._parts.early_stopping
        return patience is not None and self.progress.epoch - self.progress.best_epoch >= patience

    def _learning_rate(self, step: int) -> float:
        """Linear warm-up over `warmup_steps` (5 % of all), then a cosine down to a tenth (Loshchilov and Hutter, SGDR, 2017)."""
        asked = self._parts.warmup_steps
        warmup = max(1, round(self._total_steps * WARMUP_SHARE) if asked is None else asked)
        if step < warmup:
            return self._parts.learning_rate * (step + 1) / warmup
        share = (step - warmup) / max(1, self._total_steps - warmup)
        return self._parts.learning_rate * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * share)))

    def _state(self) -> dict[str, torch.Tensor]:
        state = {f"module/{name}": tensor for name, tensor in self._module.state_dict().items()}
        state |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for name, parameter in self._names.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"optimizer/{key}/{name}"] = value
        return state

    def _largest_state(self) -> dict[str, torch.Tensor]:
        """Return tensors shaped as the state is after the first epoch, with the optimizer's moments and the best weights."""
        state = {name: tensor.detach() for name, tensor in self._state().items()}
        for name, tensor in self._module.state_dict().items():
            state[f"best/{name}"] = tensor
        for name, parameter in self._names.items():
            moments = {"exp_avg": parameter, "exp_avg_sq": parameter, "step": torch.empty((), dtype=torch.float32)}
            state |= {f"optimizer/{key}/{name}": value.detach() for key, value in moments.items()}
        return state

    def _save(self, *, name: str | None = None, wait: bool = False) -> None:
        self._parts.checkpoints.save(self._state(), self.progress.to_json(), name=name)
        if wait:
            self._parts.checkpoints.wait()

    def _rescue(self) -> None:
        """A peer is gone in the middle of a step: the state is still that of the last whole one, so nothing need be lost."""
        if not self._parts.gang.is_first or any(True for _ in self._module.buffers()):
            return
        logger.warning("another rank is gone; saving the state after step %d", self.progress.step)
        self._save(wait=True)

    def _resume(self) -> None:
        parts = self._parts
        started_at = time.monotonic()
        entry = parts.gang.from_first(parts.checkpoints.newest_entry() if parts.gang.is_first else 0)
        if entry == 0:
            return
        restored = parts.checkpoints.restore(entry)
        self.progress = Progress.from_json(restored.meta)
        sections: dict[str, dict[str, torch.Tensor]] = {"module": {}, "best": {}, "optimizer": {}}
        for name, tensor in restored.state.items():
            section, _, rest = name.partition("/")
            sections[section][rest] = tensor
        self._module.load_state_dict(sections["module"])
        self.best = sections["best"]
        for name, tensor in sections["optimizer"].items():
            key, _, parameter_name = name.partition("/")
            parameter = self._names[parameter_name]
            # The step too: the fused kernel reads it where the parameter is.
            self._optimizer.state[parameter][key] = tensor.to(parameter.device)
        logger.info("resuming after step %d (read in %.1f s)", self.progress.step, time.monotonic() - started_at)


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on `device` draws from, to the numbers of `torch.manual_seed`.

    That function also seeds devices that are not there, and formats a stack trace for it: 140 to 440 microseconds a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
