"""The expected calibration error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.resampling import resampled_parts
from training.evaluation.metrics.class_scores import predicted_class
from training.evaluation.metrics.metric import NAN, ClassMetric, Floats, Metric, ScoredRows

CALIBRATION_BINS: Final = 10


def calibration_bins(labels: Floats, scores: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return (mean score, share of positives, rows) of each non-empty tenth of [0, 1]."""
    bins = calibration_bin(scores)
    counts = np.bincount(bins, minlength=CALIBRATION_BINS)
    filled = counts > 0
    means = np.bincount(bins, weights=scores, minlength=CALIBRATION_BINS)[filled] / counts[filled]
    shares = np.bincount(bins, weights=labels, minlength=CALIBRATION_BINS)[filled] / counts[filled]
    return means, shares, counts[filled]


def calibration_bin(scores: Floats) -> NDArray[np.int64]:
    """Return the tenth of [0, 1] that each score lies in, from 0."""
    return np.clip((scores * CALIBRATION_BINS).astype(np.int64), 0, CALIBRATION_BINS - 1)


def calibration_error(labels: Floats, scores: Floats) -> float:
    """Return the expected calibration error over ten equal bins (Naeini et al., 2015), of the likeliest class where there are several."""
    hits, confidences = confidence_and_hits(labels, scores)
    means, shares, counts = calibration_bins(hits, confidences)
    return float(np.average(np.abs(means - shares), weights=counts)) if len(counts) else NAN


def confidence_and_hits(labels: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Return (whether what was predicted happened, its probability), [n] each: the positive class, or the likeliest of several."""
    if scores.ndim == 1:
        return labels, scores
    return (predicted_class(scores) == labels).astype(np.float64), scores.max(axis=1)


class CalibrationError(ClassMetric):
    def of_classes(self, labels: Floats, scores: Floats) -> float:
        return calibration_error(labels, scores)

    def of_probabilities(self, labels: Floats, scores: Floats, threshold: float) -> float:
        return calibration_error(labels, scores)

    def influence(self, rows: ScoredRows) -> Floats:
        """The error is the sum over bins of |sum of (confidence - hit)| / n: each row counts with the sign of its bin."""
        hits, confidences = confidence_and_hits(rows.labels, rows.scores)
        bins, above = calibration_bin(confidences), confidences - hits
        signs = np.sign(np.bincount(bins, weights=above, minlength=CALIBRATION_BINS))
        return np.asarray(signs[bins] * above)

    def differences(self, new: ScoredRows, old: ScoredRows, seed: int) -> Floats:
        """Resample rows by the bins that both models put them in: of each bin counts how far its scores are above what happened."""
        bins, above = [], []
        for rows in (new, old):
            hits, confidences = confidence_and_hits(rows.labels, rows.scores)
            bins.append(calibration_bin(confidences))
            above.append(confidences - hits)
        cells = bins[0] * CALIBRATION_BINS + bins[1]
        order = np.argsort(cells, kind="stable")
        found, starts = np.unique(cells[order], return_index=True)
        sums = resampled_parts(np.stack(above, axis=1)[order], starts, seed)
        errors = []
        for model, of_cell in enumerate((found // CALIBRATION_BINS, found % CALIBRATION_BINS)):
            by_bin = [sums[:, of_cell == number, model].sum(axis=1) for number in range(CALIBRATION_BINS)]
            errors.append(np.abs(by_bin).sum(axis=0))
        return np.asarray(errors[0] - errors[1])


METRICS: Final[Mapping[str, Metric]] = {"calibration_error": CalibrationError()}
