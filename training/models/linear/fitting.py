"""The training of `linear`: L-BFGS over blocks of rows, made from the mapped shards.

Sums go over the blocks in their order and use one thread, so that two runs have the same bits, whether or not the blocks fit the memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import sparse
from scipy.optimize import OptimizeResult, minimize

from training.data.dataset.mapped_shards import MappedShards
from training.errors import DataError, PreemptedError, shown
from training.models.boosting_rounds import Rounds
from training.models.linear.scores import MAX_LOG, Floats, id_sizes, sigmoid, softmax
from training.models.shard_rows import labels_of, num_classes, shards_of
from training.process import liveness
from training.runtime.stage_memory import stage_memory_bytes

if TYPE_CHECKING:
    from training.models.base import FitContext

logger = logging.getLogger(__name__)

BLOCK_ROWS: Final = 65_536
MEMORY_SHARE: Final = 0.25
"""Of the stage's memory, what the blocks of a split may take; above it they are made again for each iteration."""
ENTRY_BYTES: Final = 12
"""Of a cell in a sparse matrix: a float64 and its column."""
UNIT: Final = "iterations"

Loss = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Linear scores, [n, outputs], and labels, [n], to each row's loss, [n], and its gradient, [n, outputs]."""


@dataclass(frozen=True, eq=False, slots=True)
class RowBlock:
    """Some rows."""

    cells: sparse.csr_array
    """[n, inputs]: standardised numbers, then a 1 for each id."""
    labels: Floats
    weights: Floats


class Iterations(Rounds):
    """Iterations; the last one is the minimum, which is the model unless training may end early."""

    unit = UNIT
    hint = "raise train.settings.penalty, or use the transform standard for numbers"

    @property
    def is_over(self) -> bool:
        # A refit has a minimum of its own, which may take more iterations.
        return super().is_over if self.context.spec.train.early_stopping is not None else self._given_up

    def record(self, train_loss: float, validation_loss: float) -> None:
        super().record(train_loss, validation_loss)
        if self.context.spec.train.early_stopping is None:
            self.best_round, self.best_loss = self.num_rounds, validation_loss


def fitted(context: FitContext) -> tuple[dict[str, Floats], str, Rounds]:
    """Return the weights by name, the name of the link, and the iterations.

    Raises:
        DataError: labels that the objective does not take; `feature.missing`, a number is missing.
        PreemptedError: `train.preempted`.
    """
    objective, num_outputs = _objective(context)
    shards = shards_of(context)
    with liveness.phase("part", "means"):
        scale = Scale.of(shards)
    blocks = {split: _blocks(rows, scale) for split, rows in shards.items()}
    fit = LinearFit(context, LOSSES[objective], blocks, num_outputs)
    with liveness.phase("step"):
        fit.run(_intercept(objective, blocks["train"], num_outputs))
    inputs, intercept = fit.best[:-1], fit.best[-1]
    num_floats = shards["train"].num_floats
    # Of the numbers as they are stored: a scorer standardises nothing.
    floats = inputs[:num_floats] / scale.deviations[:, None]
    intercept = intercept - (floats * scale.means[:, None]).sum(axis=0)
    return {"floats": floats, "ids": inputs[num_floats:], "intercept": intercept}, LINK_OF[objective], fit.iterations


def _objective(context: FitContext) -> tuple[str, int]:
    """Return the name of the loss, and the number of linear scores of a row."""
    task, named = context.spec.evaluate.task, context.spec.train.settings.get("objective")
    return str(named or task), num_classes(labels_of(context)) if task == "multiclass" else 1


@dataclass(frozen=True, eq=False, slots=True)
class Scale:
    """Mean and deviation of each number over the training rows."""

    means: Floats
    deviations: Floats
    """1 for a number with one value."""

    @classmethod
    def of(cls, shards: Mapping[str, MappedShards]) -> Scale:
        train = shards["train"]
        for split, rows in shards.items():
            for values in _floats(rows):
                wrong = ~np.isfinite(values).all(axis=0)
                if wrong.any():
                    name = rows.features[int(np.argmax(wrong))]["name"]
                    message = f"feature {shown(name)}: {split} rows have missing numbers, which a linear model cannot take"
                    raise DataError("feature.missing", message, hint=f"set prepare.features.{name}.fill: mean, or the transform bucket")
        means = sum((values.sum(axis=0) for values in _floats(train)), np.zeros(train.num_floats)) / train.num_rows
        squares = sum((((values - means) ** 2).sum(axis=0) for values in _floats(train)), np.zeros(train.num_floats))
        deviations = np.sqrt(squares / train.num_rows)
        # Rounding leaves a deviation to a constant.
        is_constant = deviations <= 1e-12 * np.abs(means)
        return cls(means=means, deviations=np.where(is_constant | (deviations == 0), 1.0, deviations))


def _pieces(rows: MappedShards) -> Iterator[tuple[int, slice]]:
    for shard, size in enumerate(rows.shard_rows):
        for first in range(0, size, BLOCK_ROWS):
            yield shard, slice(first, min(first + BLOCK_ROWS, size))


def _floats(rows: MappedShards) -> Iterator[Floats]:
    for shard, piece in _pieces(rows):
        liveness.moved()
        yield np.ascontiguousarray(rows.cells[shard][piece, : rows.num_floats]).view(np.float32).astype(np.float64)


class _RowBlocks:
    """The blocks of a split, made again each time."""

    def __init__(self, rows: MappedShards, scale: Scale) -> None:
        self._rows, self._scale = rows, scale
        sizes = id_sizes(rows.features)
        self._firsts = rows.num_floats + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if sizes else np.zeros(0, np.int64)
        self._num_inputs = rows.num_floats + sum(sizes)

    def __iter__(self) -> Iterator[RowBlock]:
        rows, num_floats, width = self._rows, self._rows.num_floats, len(self._rows.features)
        for shard, piece in _pieces(rows):
            liveness.moved()
            cells = rows.cells[shard][piece]
            values = np.ones((len(cells), width))
            values[:, :num_floats] = (
                np.ascontiguousarray(cells[:, :num_floats]).view(np.float32) - self._scale.means
            ) / self._scale.deviations
            columns = np.empty((len(cells), width), dtype=np.int32)
            columns[:, :num_floats] = np.arange(num_floats)
            columns[:, num_floats:] = cells[:, num_floats:width] + self._firsts
            ends = np.arange(0, len(cells) * width + 1, width or 1)[: len(cells) + 1]
            matrix = sparse.csr_array((values.ravel(), columns.ravel(), ends), shape=(len(cells), self._num_inputs))
            weights = rows.weights(shard, piece)
            each = np.ones(len(cells)) if weights is None else weights.astype(np.float64)
            yield RowBlock(matrix, rows.labels(cells).astype(np.float64), each)


def _blocks(rows: MappedShards, scale: Scale) -> Iterable[RowBlock]:
    found = _RowBlocks(rows, scale)
    fits = rows.num_rows * len(rows.features) * ENTRY_BYTES <= stage_memory_bytes() * MEMORY_SHARE
    return list(found) if fits else found


class LinearFit:
    """One training."""

    def __init__(self, context: FitContext, loss: Loss, blocks: Mapping[str, Iterable[RowBlock]], num_outputs: int) -> None:
        self._context, self._loss, self._blocks = context, loss, blocks
        self._total = {split: sum(float(block.weights.sum()) for block in found) for split, found in blocks.items()}
        num_inputs = next(iter(blocks["train"])).cells.shape[1]
        self._shape = (num_inputs + 1, num_outputs)
        self._penalty = float(context.spec.train.settings["penalty"]) / self._total["train"]
        self.iterations = Iterations(context)
        self.best: Floats = np.zeros(self._shape)

    def run(self, intercept: Floats) -> None:
        start = np.zeros(self._shape)
        start[-1] = intercept
        train = self._context.spec.train
        options = {"maxiter": train.epochs, "maxfun": 10 * train.epochs + 100, "gtol": float(train.settings["tolerance"]), "ftol": 0.0}
        found = minimize(self._value, start.ravel(), jac=True, method="L-BFGS-B", callback=self._after, options=options)
        if self.iterations.num_rounds == 0:
            # The start is the minimum.
            self._record(start)
        if not found.success and not self.iterations.is_over:
            steepest = float(np.abs(found.jac).max())
            logger.warning(
                "no minimum after %d iterations, the largest component of the gradient is %.1e: raise train.epochs or settings.tolerance",
                self.iterations.num_rounds,
                steepest,
            )

    def _value(self, flat: Floats) -> tuple[float, Floats]:
        """Return the mean loss with the penalty, and its gradient."""
        values = flat.reshape(self._shape)
        loss, gradient = 0.0, np.zeros(self._shape)
        for block in self._blocks["train"]:
            losses, slopes = self._loss(block.cells @ values[:-1] + values[-1], block.labels)
            loss += float((losses * block.weights).sum())
            slopes = slopes * block.weights[:, None]
            gradient[:-1] += block.cells.T @ slopes
            gradient[-1] += slopes.sum(axis=0)
        gradient /= self._total["train"]
        gradient[:-1] += self._penalty * values[:-1]
        return loss / self._total["train"] + self._penalty / 2 * float((values[:-1] ** 2).sum()), gradient.ravel()

    def _mean_loss(self, split: str, values: Floats) -> float:
        total = 0.0
        for block in self._blocks[split]:
            losses, _ = self._loss(block.cells @ values[:-1] + values[-1], block.labels)
            total += float((losses * block.weights).sum())
        return total / self._total[split]

    def _after(self, intermediate_result: OptimizeResult) -> None:
        self._record(intermediate_result.x.reshape(self._shape))
        run = self.iterations
        if run.is_stopped and run.num_rounds < self._context.spec.train.epochs and not run.is_over:
            raise PreemptedError("train.preempted", f"stopped after iteration {run.num_rounds}; a linear model begins again")
        if run.is_over:
            raise StopIteration

    def _record(self, values: Floats) -> None:
        self.iterations.record(self._mean_loss("train", values), self._mean_loss("validation", values))
        if self.iterations.best_round == self.iterations.num_rounds:
            self.best = values.copy()


def _binary(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    z = scores[:, 0]
    return np.logaddexp(0, z) - labels * z, (sigmoid(z) - labels)[:, None]


def _multiclass(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    rows, numbers = np.arange(len(labels)), labels.astype(np.int64)
    raised = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(raised).sum(axis=1)) - raised[rows, numbers]
    slopes = softmax(scores)
    slopes[rows, numbers] -= 1
    return losses, slopes


def _squares(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    errors = scores[:, 0] - labels
    return errors**2 / 2, errors[:, None]


def _poisson(scores: Floats, labels: Floats) -> tuple[Floats, Floats]:
    means = np.exp(np.minimum(scores[:, 0], MAX_LOG))
    return means - labels * scores[:, 0], (means - labels)[:, None]


LOSSES: Final[Mapping[str, Loss]] = {
    "binary": _binary,
    "multiclass": _multiclass,
    "regression": _squares,
    "poisson": _poisson,
    "log": _squares,
}
LINK_OF: Final = {"binary": "sigmoid", "multiclass": "softmax", "regression": "identity", "poisson": "exp", "log": "expm1"}
"""Names of losses to those of `LINKS`."""


def _intercept(objective: str, blocks: Iterable[RowBlock], num_outputs: int) -> Floats:
    """Return where the intercept begins: at what predicts the mean label, or the share of each class."""
    total, sums = 0.0, np.zeros(max(2, num_outputs))
    for block in blocks:
        total += float(block.weights.sum())
        if objective == "multiclass":
            sums += np.bincount(block.labels.astype(np.int64), weights=block.weights, minlength=len(sums))
        else:
            sums[0] += float((block.weights * block.labels).sum())
    if objective == "multiclass":
        return np.asarray(np.log(np.maximum(sums[:num_outputs], 0.5) / total))
    mean: Any = sums[0] / total
    if objective == "binary":
        mean = np.clip(mean, 1e-6, 1 - 1e-6)
        return np.array([np.log(mean / (1 - mean))])
    return np.array([np.log(max(mean, 1e-6)) if objective == "poisson" else mean])
