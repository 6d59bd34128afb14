"""The training loop: parts are handed in, it owns nothing but the order of things.

Bit-identical by construction: the order of samples, the learning rate and every random number are functions of
(dataset, seed, step, rank), so a checkpoint holds no hidden state, and a resumed run is the undisturbed one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from training.contracts import Scalar
from training.data.dataset.loader import Batch, Loader, cut
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.format import Position
from training.engine.checkpoint.reader import Filled
from training.engine.checkpoint.tensors import check_savable
from training.engine.divergence import DivergenceGuard
from training.engine.optim import MAX_GRAD_NORM, Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.out_of_memory import memory_explained
from training.engine.parallel.strategy import Strategy, SumLoss
from training.engine.precision import LossScale
from training.engine.throughput import Throughput
from training.engine.tracking.tracker import Tracker
from training.engine.training_position import Progress
from training.engine.watcher import Watcher
from training.errors import DataError, PeerLostError, PreemptedError
from training.process import liveness
from training.runtime.context import ReportProgress, StopFlag

logger = logging.getLogger(__name__)

TRACK_EVERY_STEPS: Final = 10
OPTIMIZER: Final = "optimizer/"
"""What the names of the optimizer's tensors begin with in a checkpoint."""

Judge = Callable[[int, float], bool]
"""(epochs done, validation loss) to whether training is to end here: what a search for settings prunes by."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop is made of."""

    module: nn.Module
    loss: SumLoss
    loader: Loader
    validation: Loader | None
    """This data rank's share of the validation rows: on every rank, or None on every rank."""
    strategy: Strategy
    checkpoints: Checkpoints
    tracker: Tracker
    stop: StopFlag
    progress: ReportProgress
    seed: int
    epochs: int
    schedule: Callable[[int], Schedule]
    """Of the number of all steps to the learning rate of each."""
    optimizer: OptimizerSettings
    early_stopping: int | None
    refit_epochs: int | None = None
    """That of `FitContext`."""
    watchers: Sequence[Watcher] = ()
    judge: Judge | None = None
    """Called by rank 0 after each epoch: whether to continue the training."""


class Loop:
    """Trains one module to the end; `best` then holds the weights of the best epoch."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._strategy = parts.strategy
        self._gang = parts.strategy.gang
        self._divergence_guard = DivergenceGuard()
        self._loss = parts.loss
        for watcher in parts.watchers:
            self._loss = watcher.measured(self._loss, parts.module)
        self._throughput = Throughput()
        self._given_up = False
        self.progress = Progress(loss_scale=LossScale() if parts.strategy.precision == "fp16" else None)
        self.best: dict[str, torch.Tensor] = {}

    def train(self) -> None:
        """Run from the newest checkpoint to the end.

        Raises:
            SpecError: `checkpoint.dtype`, `checkpoint.layout`: the module holds a tensor that no checkpoint can restore.
            DivergedError, PreemptedError, ReplicasDifferError, PeerLostError: see `training.errors`.
            NoUsableCheckpointError, LeaseLostError: see there too.
        """
        parts = self._parts
        # Before the first step: the first save may be due after hours.
        check_savable({f"module/{name}": tensor for name, tensor in parts.module.state_dict().items()})
        # Ranks make their modules, and read a checkpoint, at their own speed; what follows has the limit of a step.
        self._gang.wait_for_all()
        self._parameters = self._strategy.place(parts.module)
        self._optimizer = ScheduledOptimizer(self._parameters, parts.schedule(self._total_steps), parts.optimizer, muon=self._strategy.muon)
        if self._strategy.saves:
            parts.checkpoints.reserve(self._largest_state())
        self._resume()
        for watcher in parts.watchers:
            watcher.begin(self.progress.step)
        self._gang.wait_for_all()
        parts.module.train()
        try:
            with liveness.phase("step"), memory_explained(self._gang, lambda: self.progress.step + 1):
                while self.progress.epoch < parts.epochs and not self._given_up and not self._stopped_early():
                    self._epoch()
        except PeerLostError as err:
            self._gang.answer()
            if parts.stop.requested and self._strategy.can_rescue:
                # The other one was asked to stop too, and ended a step earlier.
                raise self._stopped() from err
            self._rescue()
            raise self._gang.lost(err, self.progress.step) from err
        finally:
            for watcher in parts.watchers:
                watcher.close()
        parts.checkpoints.wait()

    @property
    def _num_epochs(self) -> int:
        return self._parts.refit_epochs or self._parts.epochs

    @property
    def _total_steps(self) -> int:
        """Of the learning rate's schedule, which a refit does not shorten."""
        return self._parts.loader.steps_per_epoch * self._parts.epochs

    def _epoch(self) -> None:
        parts, progress = self._parts, self.progress
        # The first rank may still wait for an upload: not in the collective of a step, whose limit is short.
        self._gang.wait_for_all()
        self._throughput.begin()
        first = progress.step - progress.epoch * parts.loader.steps_per_epoch
        # The collector would end the loader's thread in any thread, also in one that starts and holds a lock which that end needs.
        with closing(parts.loader.batches(progress.epoch, first)) as loaded:
            batches: Iterator[Batch] = loaded
            for watcher in parts.watchers:
                batches = watcher.batches(batches)
            for number, batch in enumerate(batches, start=first):
                self._step(cut(batch, parts.loader.num_micro_batches(number)), parts.loader.batch_weight(progress.epoch, number))
                self._between_steps()
        self._finish_epoch()

    def _between_steps(self) -> None:
        """Save, where it is due or the training is to stop; only here is the state that of a whole step."""
        parts, progress = self._parts, self.progress
        saves = self._strategy.saves
        is_stopped, is_due = self._strategy.agree(parts.stop.requested, saves and parts.checkpoints.is_due(progress.step))
        # Where all save together, watchers see what is saved; of whole models the first rank saves when it likes.
        self._watch(is_kept=self._strategy.is_sharded and (is_stopped or is_due))
        if is_stopped and saves:
            raise self._stopped()
        if is_stopped:
            # Its collective with the first rank breaks, which then saves the last whole step.
            raise PreemptedError("train.preempted", f"rank {self._gang.rank} stopped after step {progress.step}")
        if is_due:
            self._save()

    def _stopped(self) -> PreemptedError:
        """Save what fits into the time that is left, and return the error that says what was committed."""
        outcome = "is committed" if self._save_last() else "is not committed: the checkpoint before it is kept"
        return PreemptedError("train.preempted", f"stopped after step {self.progress.step}, which {outcome}")

    def _step(self, batches: Sequence[Batch], weight: float) -> None:
        parts, progress, strategy = self._parts, self.progress, self._strategy
        _seed((parts.seed * 1_000_003 + progress.step) * 4099 + strategy.data_rank, self._gang.device)
        with ExitStack() as watched:
            for watcher in parts.watchers:
                watched.enter_context(watcher.step())
            self._optimizer.clear_gradients()
            scale = 1.0 if progress.loss_scale is None else progress.loss_scale.factor
            total = strategy.backward(batches, _scaled(self._loss, scale), weight)
            if scale != 1.0:
                self._optimizer.divide_gradients(scale)
            norm = strategy.clip(MAX_GRAD_NORM)
            loss = float(total) / scale * strategy.num_data_ranks / weight
            metrics = self._update(loss, norm)
        progress.step += 1
        self._throughput.add(sum(len(batch["label"]) for batch in batches) * strategy.num_data_ranks)
        # In fp16 a single batch may overflow: its step is skipped, and its loss left out.
        known = {"loss": loss} if math.isfinite(loss) else {}
        progress.epoch_loss += sum(known.values()) * weight
        if progress.step % TRACK_EVERY_STEPS == 0:
            parts.tracker.log(progress.step, **metrics, **self._throughput.take())
        parts.progress(progress.step, parts.loader.steps_per_epoch * self._num_epochs, "steps", epoch=progress.epoch + 1, **known)

    def _update(self, loss: float, norm: float) -> dict[str, float]:
        """Let the optimizer take a step, unless its gradients overflow in fp16; return what is to be tracked."""
        progress, scale = self.progress, self.progress.loss_scale
        scaling = {}
        if scale is not None:
            is_usable = scale.update(progress.step, norm)
            scaling = {"loss_scale": scale.factor, "skipped_steps": float(scale.skipped_steps)}
            if not is_usable:
                if self._gang.is_first:
                    logger.warning("step %d is skipped: its gradients overflow in fp16; loss scale %g", progress.step + 1, scale.factor)
                return scaling
        self._divergence_guard.check(progress.step, loss, norm)
        with self._gang.collectives():
            learning_rate = self._optimizer.step(progress.step)
        return {"train_loss_step": loss, "grad_norm": norm, "learning_rate": learning_rate, **scaling}

    def _finish_epoch(self) -> None:
        parts, progress = self._parts, self.progress
        self._watch(is_kept=True)
        train_loss = progress.epoch_loss / parts.loader.total_weight
        with liveness.phase("validation", f"epoch {progress.epoch + 1}"):
            validation_loss = self._validate()
        with liveness.phase("part", "judge"):
            given_up = self._gang.is_first and parts.judge is not None and parts.judge(progress.epoch + 1, validation_loss)
        # One rank judges, all act on it: early stopping and pruning must be the same everywhere.
        reported = (train_loss, validation_loss, float(given_up)) if self._gang.is_first else (0.0, 0.0, 0.0)
        train_loss, validation_loss, is_over = self._gang.sum(*reported)
        self._given_up = bool(is_over)
        progress.epoch += 1
        progress.epoch_loss = 0.0
        progress.history.append({"epoch": progress.epoch, "train_loss": train_loss, "validation_loss": validation_loss})
        if validation_loss < progress.best_loss or parts.refit_epochs is not None:
            progress.best_loss, progress.best_epoch = validation_loss, progress.epoch
            self.best = self._strategy.weights()
        if self._gang.is_first:
            logger.info(
                "epoch %d of %d: train loss %.5f, validation loss %.5f", progress.epoch, self._num_epochs, train_loss, validation_loss
            )
            parts.tracker.log(progress.step, train_loss=train_loss, validation_loss=validation_loss, epoch=float(progress.epoch))
        if self._strategy.saves:
            self._save(name=f"epoch_{progress.epoch}")

    def _validate(self) -> float:
        """Return the mean loss over all validation rows, the same on every rank; the training loss where there are none."""
        parts = self._parts
        if parts.validation is None or parts.validation.num_units == 0:
            return self.progress.epoch_loss / parts.loader.total_weight
        with closing(parts.validation.batches(0)) as batches:
            return self._strategy.summed_loss(batches, parts.loss) / parts.validation.total_weight

    def _watch(self, *, is_kept: bool) -> None:
        """Let the watchers look at the state of a whole step: before it is saved, or kept as the best."""
        for watcher in self._parts.watchers:
            watcher.between_steps(
                self.progress.step, lambda: _sections(module=self._parameters, optimizer=self._optimizer.state()), is_kept=is_kept
            )

    def scalars(self) -> dict[str, Scalar]:
        """Return what the stage's result says of the training besides its model; only where there is something to say."""
        return {name: value for watcher in self._parts.watchers for name, value in watcher.scalars().items()}

    def _stopped_early(self) -> bool:
        if self._parts.refit_epochs is not None:
            return self.progress.epoch >= self._parts.refit_epochs
        patience = self._parts.early_stopping
        return patience is not None and self.progress.epoch - self.progress.best_epoch >= patience

    def _state(self) -> dict[str, torch.Tensor]:
        return _sections(module=self._strategy.state(), best=self.best, optimizer=self._optimizer.state())

    def _saved_state(self) -> dict[str, torch.Tensor]:
        """Return what this process saves: buffers differ between the shares of a step, and those of the first one are the model's."""
        state = self._state()
        if self._strategy.data_rank == 0:
            return state
        others = {f"module/{name}" for name, _ in self._parts.module.named_buffers(remove_duplicate=False)}
        return {name: tensor for name, tensor in state.items() if name not in others}

    def _largest_state(self) -> dict[str, torch.Tensor]:
        """Return tensors shaped as the state is after the first epoch, with the optimizer's moments and the best weights."""
        module = {name: tensor.detach() for name, tensor in self._strategy.state().items()}
        return _sections(module=module, best=module, optimizer=self._optimizer.largest_state())

    def _save(self, *, name: str | None = None) -> None:
        self._parts.checkpoints.save(self._saved_state(), self._position(), name=name)

    def _position(self) -> Position:
        position = self.progress.to_json()
        for watcher in self._parts.watchers:
            watcher.add_to(position)
        return position

    def _save_last(self) -> bool:
        """Save before this process is killed, if that fits into what is left; return whether the state is committed."""
        checkpoints, position = self._parts.checkpoints, self._position()
        left, needed = self._time_for_last_save()
        fits = needed <= left
        if math.isfinite(left) and self._gang.is_first:
            words = f"{left:.1f} s are left to commit step {self.progress.step}"
            measured = f"earlier checkpoints took {needed:.1f} s" if needed else "no checkpoint was measured yet"
            logger.info("%s; %s: %s", words, measured, "it is saved" if fits else "it is not saved, the checkpoint before it is kept")
        is_committed = checkpoints.save_within(self._saved_state() if fits else None, position, seconds=left)
        if fits and not is_committed and self._gang.is_first:
            logger.warning("step %d was not committed in time: the checkpoint before it is kept", self.progress.step)
        return is_committed

    def _time_for_last_save(self) -> tuple[float, float]:
        """Return the seconds until the first process must have committed, and those that the slowest one needs for it.

        Where all save together, the answer is the same on all ranks.
        """
        own = (self._parts.stop.seconds_left, self._parts.checkpoints.expected_seconds())
        if not self._strategy.is_sharded:
            return own
        gang = self._gang
        left = own[0] if math.isfinite(own[0]) else -1.0
        cells = gang.sum(*(number if rank == gang.rank else 0.0 for rank in range(gang.world_size) for number in (left, own[1])))
        return min((cell for cell in cells[::2] if cell >= 0), default=math.inf), max(cells[1::2])

    def _rescue(self) -> None:
        """A peer is lost in the middle of a step: the state is still that of the last whole step, so nothing need be lost."""
        if not self._strategy.can_rescue:
            return
        logger.warning("another rank is lost; saving the state after step %d", self.progress.step)
        self._parts.checkpoints.save_within(self._saved_state(), self._position(), seconds=self._parts.stop.seconds_left)

    def _resume(self) -> None:
        parts = self._parts
        started_at = time.monotonic()
        entry = self._gang.from_first(parts.checkpoints.newest_entry() if self._gang.is_first else 0)
        if entry == 0:
            return
        if self._strategy.is_sharded:
            self._resume_parts(entry)
        else:
            self._resume_whole(entry)
        logger.info("resuming after step %d (read in %.1f s)", self.progress.step, time.monotonic() - started_at)

    def _resume_parts(self, entry: int) -> None:
        """Read into the tensors that this process has: each reads only its part, whatever layout the checkpoint was saved in."""
        self.best = self._strategy.weights()
        filled = self._filled(entry)
        # A block may be altered that only one rank reads: all then take the checkpoint before.
        while self._gang.sum(float(filled is None))[0] or filled is None:
            entry = self._gang.from_first(self._parts.checkpoints.newest_entry(before=entry) if self._gang.is_first else 0)
            filled = self._filled(entry)
        self.progress = Progress.from_json(filled.meta)
        if self.progress.best_epoch == 0:
            self.best = {}

    def _filled(self, entry: int) -> Filled | None:
        """Return what a checkpoint filled, None where this rank could not read its part."""
        try:
            names = self._parts.checkpoints.names(entry)
            self._optimizer.allocate([name.removeprefix(OPTIMIZER) for name in names if name.startswith(OPTIMIZER)])
            return self._parts.checkpoints.restore_into(entry, self._state(), optional_prefixes=("best/",))
        except DataError as err:
            logger.warning("a checkpoint cannot be restored on rank %d, trying the one before: %s", self._gang.rank, err)
            return None

    def _resume_whole(self, entry: int) -> None:
        restored = self._parts.checkpoints.restore(entry)
        self.progress = Progress.from_json(restored.meta)
        sections: dict[str, dict[str, torch.Tensor]] = {"module": {}, "best": {}, "optimizer": {}}
        for name, tensor in restored.state.items():
            section, _, rest = name.partition("/")
            sections[section][rest] = tensor
        self._strategy.restore(sections["module"])
        self.best = sections["best"]
        self._optimizer.restore(sections["optimizer"])


def _sections(**sections: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of all sections by `<section>/<name>`."""
    return {f"{section}/{name}": tensor for section, tensors in sections.items() for name, tensor in tensors.items()}


def _scaled(loss: SumLoss, scale: float) -> SumLoss:
    if scale == 1.0:
        return loss
    # In fp32: the scaled loss itself may be larger than fp16 can hold.
    return lambda module, batch: loss(module, batch).float() * scale


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on `device` draws from, to the numbers of `torch.manual_seed`.

    That function also seeds devices that are not there, and formats a stack trace for it: 140 to 440 microseconds a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
