"""The training of `sklearn`: all rows in memory as float64, one call of the estimator's `fit`."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, root_mean_squared_error
from threadpoolctl import ThreadpoolController

from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.data.features.transforms import LayoutEntry, Matrix
from training.errors import DataError, shown
from training.models.base import Scorer
from training.models.boosting_rounds import Rounds
from training.models.shard_rows import WholeLabels, class_weights_of, labels_of, num_classes
from training.models.sklearn.estimators import made, needs_whole_labels, requirement_of, type_name
from training.models.sklearn.scoring import inputs_of, scorer_of, takes_missing_numbers
from training.models.sklearn.weights import NAME, loaded, saved
from training.process import liveness

if TYPE_CHECKING:
    from training.models.base import FitContext, FitResult

logger = logging.getLogger(__name__)

SCORED_ROWS: Final = 65_536
MAX_WARNINGS: Final = 10

Floats = NDArray[np.float64]


class Fits(Rounds):
    """One fit."""

    unit = "fits"
    hint = "use other parameters, or the transform standard for numbers"


def fitted(context: FitContext) -> FitResult:
    """Fit the estimator.

    Raises:
        SpecError: what `training.models.sklearn.estimators.violations` finds.
        DataError: `estimator.fit`, it does not take these rows; `feature.missing`, a number is missing; `estimator.unsaved`,
            `estimator.untrusted`; labels that are no classes.
    """
    settings = context.spec.train.settings
    estimator, weights_of_classes = made(context.spec), class_weights_of(context)
    folder, meta, is_whole = context.dataset_path, context.dataset_meta, needs_whole_labels(estimator)
    kind = WholeLabels if is_whole else MappedShards
    shards = {split: kind(folder, meta, split, class_weights=weights_of_classes) for split in SHARDED_SPLITS}
    classes = None if context.spec.evaluate.task == "regression" else max(2, num_classes(labels_of(context)))
    with liveness.phase("part", "fit"):
        _fit(context, estimator, shards, is_classifier=classes is not None)
    if "n_jobs" in estimator.get_params(deep=False):
        # Of this training alone: neither of the model's digest nor of those who score.
        estimator.set_params(n_jobs=type(estimator)().n_jobs)
    weights, trusted = saved(estimator), [type_name(place) for place in settings["trusted"]]
    score = scorer_of(loaded(weights, trusted), classes)
    run = Fits(context)
    with liveness.phase("part", "losses"):
        run.record(*(_loss(rows, score, classes) for rows in (shards["train"], shards["validation"])))
    architecture = {"estimator": settings["estimator"], "trusted": trusted, "num_classes": classes}
    requirements = sorted({requirement_of(place) for place in settings["trusted"]})
    return dataclasses.replace(run.result(NAME, weights, architecture), requirements=requirements, whole_labels=is_whole)


def _fit(context: FitContext, estimator: Any, shards: Mapping[str, MappedShards], *, is_classifier: bool) -> None:
    train, name = shards["train"], type(estimator).__name__
    if not takes_missing_numbers(estimator):
        for split, rows in shards.items():
            _check_present(rows, split, name)
    inputs, labels, weights = np.empty((train.num_rows, len(train.features))), _labels(train), _weights(train)
    counted = {} if weights is None else {"sample_weight": weights}
    start = 0
    for matrix in _pieces(train):
        inputs[start : start + len(matrix.cells)] = inputs_of(matrix)
        start += len(matrix.cells)
    threads = context.spec.train.threads_per_process
    with warnings.catch_warnings(record=True) as caught, ThreadpoolController().limit(limits=threads):
        warnings.simplefilter("always")
        try:
            estimator.fit(inputs, labels.astype(np.int64) if is_classifier else labels, **counted)
        except ValueError as err:
            message = f"{name} does not take these {len(labels)} rows: {err}"
            raise DataError("estimator.fit", message, hint="change train.settings, the features or the rows") from err
    for words in list(dict.fromkeys(str(each.message) for each in caught))[:MAX_WARNINGS]:
        logger.warning("%s: %s", name, words)


def _check_present(rows: MappedShards, split: str, name: str) -> None:
    for matrix in _pieces(rows):
        missing = np.isnan(matrix.floats).any(axis=0)
        if missing.any():
            feature = rows.features[int(np.argmax(missing))]["name"]
            message = f"feature {shown(feature)}: {split} rows have missing numbers, which {name} cannot take"
            raise DataError("feature.missing", message, hint=f"set prepare.features.{feature}.fill: mean, or the transform bucket")


def _pieces(rows: MappedShards) -> Iterator[Matrix]:
    layout, width = tuple(LayoutEntry(**entry) for entry in rows.features), len(rows.features)
    for cells in rows.cells:
        for first in range(0, len(cells), SCORED_ROWS):
            liveness.moved()
            yield Matrix(cells=cells[first : first + SCORED_ROWS, :width], layout=layout)


def _labels(rows: MappedShards) -> Floats:
    labels_of_cells = rows.exact_labels if isinstance(rows, WholeLabels) else rows.labels
    return np.concatenate([labels_of_cells(cells) for cells in rows.cells]).astype(np.float64)


def _weights(rows: MappedShards) -> Floats | None:
    if not rows.is_weighted:
        return None
    parts = [rows.weights_of_cells(cells) for cells in rows.cells]
    return np.concatenate([part for part in parts if part is not None]).astype(np.float64)


def _loss(rows: MappedShards, score: Scorer, classes: int | None) -> float:
    """Return the mean log loss, or for numbers the RMSE, each row by its weight."""
    scores, labels, weights = np.concatenate([score(matrix) for matrix in _pieces(rows)]), _labels(rows), _weights(rows)
    if not np.isfinite(scores).all():
        return float("nan")
    if classes is None:
        return float(root_mean_squared_error(labels, scores, sample_weight=weights))
    return float(log_loss(labels, scores, sample_weight=weights, labels=np.arange(classes)))
