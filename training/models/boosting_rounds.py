"""Rounds of a training without torch: their history, the best one, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from training.errors import DivergedError
from training.models.base import FitContext, FitResult


class Rounds:
    """Rounds done so far, and their history."""

    unit = "rounds"
    """Of the progress that is reported."""
    hint = "lower train.learning_rate"
    """What to do where the loss is not finite."""

    def __init__(self, context: FitContext) -> None:
        # Imported here: a registered model carries what this file imports above.
        from training.engine.throughput import Throughput

        self.context = context
        self.num_rounds = 0
        self.best_round = 0
        self.best_loss = float("inf")
        self.history: list[dict[str, float]] = []
        self._given_up = False
        self._throughput = Throughput()
        self.is_stopped = False
        """Whether a process was to stop by the end of the last round."""

    @property
    def is_over(self) -> bool:
        if self.context.refit_epochs is not None:
            return self.num_rounds >= self.context.refit_epochs
        patience = self.context.spec.train.early_stopping
        return self._given_up or (patience is not None and self.num_rounds - self.best_round >= patience)

    def result(self, weights_name: str, weights: bytes, architecture: Mapping[str, object]) -> FitResult:
        """Return what training made; the arguments are of `FitResult`."""
        from training.models.shard_rows import log_objective

        return FitResult(
            weights_name=weights_name,
            weights=weights,
            architecture=architecture,
            best_epoch=self.best_round,
            validation_loss=self.best_loss,
            history=self.history,
            num_steps=self.num_rounds,
            whole_labels=log_objective(self.context.spec) is not None,
        )

    def record(self, train_loss: float, validation_loss: float) -> None:
        """Note a round's losses.

        Raises:
            DivergedError: `loss.not_finite`.
        """
        if not np.isfinite([train_loss, validation_loss]).all():
            message = f"round {self.num_rounds + 1}: train loss {train_loss}, validation loss {validation_loss}"
            raise DivergedError("loss.not_finite", message, hint=self.hint)
        self.num_rounds += 1
        self.history.append({"epoch": self.num_rounds, "train_loss": train_loss, "validation_loss": validation_loss})
        if validation_loss < self.best_loss or self.context.refit_epochs is not None:
            self.best_loss, self.best_round = validation_loss, self.num_rounds
        context, gang = self.context, self.context.gang
        given_up = gang.is_first and context.judge is not None and context.judge(self.num_rounds, validation_loss)
        # One rank judges, and a signal reaches each at another time: all end after the same round.
        self._given_up, self.is_stopped = (bool(number) for number in gang.sum(given_up, context.stop.requested))
        if gang.is_first:
            # Each round goes over all training rows.
            self._throughput.add(sum(context.dataset_meta["shards"]["train"]))
            context.tracker.log(self.num_rounds, train_loss=train_loss, validation_loss=validation_loss, **self._throughput.take())
        context.progress(self.num_rounds, context.refit_epochs or context.spec.train.epochs, self.unit, validation_loss=validation_loss)
