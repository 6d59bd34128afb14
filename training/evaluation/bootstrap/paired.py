"""How sure a difference is: a paired bootstrap, both models on the same resampled units (Efron and Tibshirani, 1993), and blocks.

The bootstrap takes units (rows, or groups) as independent; the interval by blocks of time, entities or groups (`blocks`) does not.
The comparison has both, and its ends are those of the wider one.

No metric is computed a thousand times over: a mean, or a function of means, comes from weights; F1 and the quantiles of errors
from counts of rows that are alike, exactly; areas under curves from weights in the order of scores or, for many rows, from each
row's influence (`training.evaluation.metrics.auc`). Only a metric of the spec's own is called for each resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from training.evaluation.bootstrap.blocks import BlockInterval, Origins, block_interval
from training.evaluation.bootstrap.influence import Influence, influence_of
from training.evaluation.bootstrap.resampling import NUM_RESAMPLES, resampled_counts, resampled_means, resampled_parts, resampled_weights
from training.evaluation.metrics import auc
from training.evaluation.metrics.by_task import (
    CALIBRATION_BINS,
    QUANTILES,
    OwnMetric,
    calibration_bin,
    classes_of,
    confidence_and_hits,
    metric_value,
    predicted_class,
    unit_values,
    with_all_classes,
)
from training.spec.sections.evaluation import LOWER_IS_BETTER, Gain

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]

FEW_ROWS: Final = 1_000
"""Up to which areas are computed for each resample; above, from influences, of which little is left out."""
FEW_OF_A_CLASS: Final = 200
"""Rows of the rarer class below which areas are computed for each resample, however many rows there are."""
OWN_CELLS: Final = 200_000_000
"""Rows that a metric of the spec's own may see over all resamples; above, there are fewer than 1,000, and never below 100."""
LEAST_OWN: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """By how much the candidate is better; positive is better for every metric."""

    gain: float
    low: float
    high: float
    """Ends of the wider interval: the lower of both lows, the higher of both highs."""
    probability: float
    """Share of resamples in which the candidate is better."""
    num_units: int
    row_low: float
    row_high: float
    """Ends of the bootstrap's interval over units."""
    blocks: BlockInterval | None
    """None where nobody said when the rows happened."""
    decided_by: Literal["rows", "blocks"]
    """Which interval has the lower low."""


def compare(  # noqa: PLR0913 - one array a role; bundling them would only move the names
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: Groups | None,
    *,
    confidence: float,
    seed: int,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
    origins: Origins | None = None,
    least_seconds: float = 86_400.0,
) -> Comparison:
    """Compare two models' scores of the same rows by the metric `name`.

    Args:
        labels, candidate, champion: [n], scores of several classes [n, classes]; see `metrics.score_metrics`.
        groups: [n] for ranking: whole groups are resampled.
        confidence: of the two-sided intervals.
        seed: of the resamples.
        threshold: at which a probability counts as a yes.
        gain: of a label in NDCG.
        own: the metric itself, where it is one of the spec's own.
        origins: when each row happened, and whose it is; without them there is no interval by blocks.
        least_seconds: the shortest block of time.
    """
    pair = _Pair(name, labels, candidate, champion, groups, seed, threshold, gain, own)
    new, old = (metric_value(name, labels, scores, groups, threshold=threshold, gain=gain, own=own) for scores in (candidate, champion))
    num_units = pair.num_units
    if num_units < 2 or not np.isfinite([new, old]).all():
        return _comparison(math.nan, math.nan, math.nan, math.nan, num_units, None)
    if np.array_equal(candidate, champion):
        return _comparison(
            0.0, 0.0, 0.0, 0.0, num_units, None if origins is None else pair.by_blocks(origins, 0.0, confidence, least_seconds)
        )
    difference = float(pair.sign * (new - old))
    samples = pair.sign * pair.differences()
    finite = samples[np.isfinite(samples)]
    if len(finite) < len(samples) * 0.9:
        return _comparison(math.nan, math.nan, math.nan, math.nan, num_units, None)
    tail = (1 - confidence) / 2
    low, high = (float(end) for end in np.quantile(finite, [tail, 1 - tail]))
    blocks = None if origins is None else pair.by_blocks(origins, difference, confidence, least_seconds)
    return _comparison(difference, low, high, float((finite > 0).mean()), num_units, blocks)


def paired_influence(
    name: str,
    labels: Floats,
    candidate: Floats,
    champion: Floats,
    groups: Groups | None,
    *,
    threshold: float = 0.5,
    gain: Gain = "linear",
    own: OwnMetric | None = None,
) -> tuple[float, Influence] | None:
    """Return (gain of the candidate, influence of each unit on it), None where a metric has no value; arguments as `compare`."""
    pair = _Pair(name, labels, candidate, champion, groups, 0, threshold, gain, own)
    new, old = (metric_value(name, labels, scores, groups, threshold=threshold, gain=gain, own=own) for scores in (candidate, champion))
    return (float(pair.sign * (new - old)), pair.influence(new - old)) if np.isfinite([new, old]).all() else None


def _comparison(gain: float, low: float, high: float, probability: float, num_units: int, blocks: BlockInterval | None) -> Comparison:
    ends = [(low, high)] if blocks is None else [(low, high), (blocks.low, blocks.high)]
    return Comparison(
        gain=gain,
        low=float(np.min([end[0] for end in ends])),
        high=float(np.max([end[1] for end in ends])),
        probability=probability,
        num_units=num_units,
        row_low=low,
        row_high=high,
        blocks=blocks,
        decided_by="blocks" if blocks is not None and not blocks.low >= low else "rows",
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two models' scores of the same rows."""

    name: str
    labels: Floats
    candidate: Floats
    champion: Floats
    groups: Groups | None
    seed: int
    threshold: float
    gain: Gain
    own: OwnMetric | None

    @property
    def num_units(self) -> int:
        """Rows, or groups where those are resampled; groups without a value do not count."""
        if self.groups is None:
            return len(self.labels)
        values = None if self.own is not None else unit_values(self.name, self.labels, self.candidate, self.groups, gain=self.gain)
        return len(np.unique(self.groups)) if values is None else int(np.isfinite(values).sum())

    @property
    def sign(self) -> float:
        """-1 for a metric of which less is better."""
        return -1.0 if self.name in LOWER_IS_BETTER and self.own is None else 1.0

    def influence(self, difference: float) -> Influence:
        """Return each unit's influence on the gain; `difference` is candidate less champion in the metric's units."""
        scores = (self.candidate, self.champion)
        if self.own is None:
            return influence_of(self.name, self.labels, scores, self.groups, threshold=self.threshold, gain=self.gain, sign=self.sign)
        own = self.own

        def without(kept: NDArray[np.bool_]) -> float:
            groups = None if self.groups is None else self.groups[kept]
            new, old = (own(self.labels[kept], some[kept], groups) for some in scores)
            return new - old - difference

        rows = None if self.groups is None else np.unique(self.groups, return_inverse=True)[1].astype(np.int64)
        num_units = len(self.labels) if rows is None else int(rows.max()) + 1
        return Influence(rows=rows, num_units=num_units, without=without)

    def by_blocks(self, origins: Origins, gain: float, confidence: float, least_seconds: float) -> BlockInterval:
        """Return the interval by blocks; `gain` is signed."""
        influence = self.influence(self.sign * gain)
        return block_interval(influence, origins, self.groups, gain=gain, confidence=confidence, least_seconds=least_seconds)

    def differences(self) -> Floats:
        """Return candidate less champion by resample."""
        if self.own is not None:
            return self._of_own(self.own)
        if self.name in ("auc", "pr_auc"):
            return self._of_areas()
        if self.name == "f1":
            return self._of_f1()
        if self.name in QUANTILES:
            return self._of_quantiles(QUANTILES[self.name])
        if self.name == "calibration_error":
            return self._of_calibration()
        if self.name in _FUNCTIONS_OF_MEANS:
            return self._of_functions()
        return self._of_means()

    def _of_means(self) -> Floats:
        new, old = (unit_values(self.name, self.labels, scores, self.groups, gain=self.gain) for scores in (self.candidate, self.champion))
        if new is None or old is None:
            raise ValueError(f"{self.name} is no mean over units")
        differences = new - old
        return resampled_means(differences[np.isfinite(differences)][:, None], self.seed)[:, 0]

    def _of_functions(self) -> Floats:
        components_of, value_of = _FUNCTIONS_OF_MEANS[self.name]
        parts = [self._by_group(components_of(self.labels, scores)) for scores in (self.candidate, self.champion)]
        means = resampled_means(np.concatenate(parts, axis=1), self.seed)
        width = parts[0].shape[1]
        return value_of(means[:, :width]) - value_of(means[:, width:])

    def _of_calibration(self) -> Floats:
        """Resample rows by the bins that both models put them in: of each bin counts how far its scores are above what happened."""
        bins, above = [], []
        for scores in (self.candidate, self.champion):
            hits, confidences = confidence_and_hits(self.labels, scores)
            bins.append(calibration_bin(confidences))
            above.append(confidences - hits)
        cells = bins[0] * CALIBRATION_BINS + bins[1]
        order = np.argsort(cells, kind="stable")
        found, starts = np.unique(cells[order], return_index=True)
        sums = resampled_parts(np.stack(above, axis=1)[order], starts, self.seed)
        errors = []
        for model, of_cell in enumerate((found // CALIBRATION_BINS, found % CALIBRATION_BINS)):
            by_bin = [sums[:, of_cell == number, model].sum(axis=1) for number in range(CALIBRATION_BINS)]
            errors.append(np.abs(by_bin).sum(axis=0))
        return np.asarray(errors[0] - errors[1])

    def _by_group(self, components: Floats) -> Floats:
        if self.groups is None:
            return components
        numbers = np.unique(self.groups, return_inverse=True)[1]
        return np.stack([np.bincount(numbers, weights=column) for column in components.T], axis=1)

    def _of_areas(self) -> Floats:
        if self.candidate.ndim == 1:
            classes, parts = [1], [(self.candidate, self.champion)]
        else:
            classes = classes_of(self.labels).tolist()
            wide = [with_all_classes(scores, self.labels) for scores in (self.candidate, self.champion)]
            parts = [(wide[0][:, number], wide[1][:, number]) for number in classes]
        positives = [(self.labels == number).astype(np.float64) for number in classes]
        rarest = min(min(some.sum(), len(some) - some.sum()) for some in positives)
        if len(self.labels) > FEW_ROWS and rarest >= FEW_OF_A_CLASS:
            influence = auc.roc_influence if self.name == "auc" else auc.precision_influence
            found, exact = np.zeros(len(self.labels)), 0.0
            for some, (new, old) in zip(positives, parts, strict=True):
                found += (influence(some, new) - influence(some, old)) / len(classes)
                exact += (metric_value(self.name, some, new, None) - metric_value(self.name, some, old, None)) / len(classes)
            return resampled_means(found[:, None], self.seed)[:, 0] + exact
        area = auc.weighted_roc_area if self.name == "auc" else auc.weighted_precision_area
        chunks = []
        for weights in resampled_weights(len(self.labels), self.seed):
            by_class = [area(some, new, weights) - area(some, old, weights) for some, (new, old) in zip(positives, parts, strict=True)]
            chunks.append(np.mean(by_class, axis=0))
        return np.concatenate(chunks)

    def _of_f1(self) -> Floats:
        """Resample the kinds of rows that there are: by label and both models' answers."""
        if self.candidate.ndim == 1:
            answers = [(scores >= self.threshold).astype(np.int64) for scores in (self.candidate, self.champion)]
            classes = np.array([1])
        else:
            answers = [predicted_class(scores) for scores in (self.candidate, self.champion)]
            classes = np.unique(np.concatenate([self.labels.astype(np.int64), *answers]))
        kinds, counts = np.unique(np.stack([self.labels.astype(np.int64), *answers], axis=1), axis=0, return_counts=True)
        chunks = []
        for drawn in resampled_counts(counts, self.seed):
            new, old = (_macro_f1(drawn, kinds[:, 0], kinds[:, column], classes) for column in (1, 2))
            chunks.append(new - old)
        return np.concatenate(chunks)

    def _of_quantiles(self, share: float) -> Floats:
        """Resample one by one only the rows whose errors can be the quantile of a resample; the others count by the side they are on."""
        errors = [np.abs(self.labels - scores) for scores in (self.candidate, self.champion)]
        total = len(self.labels)
        # Nine standard deviations of a resampled quantile's rank, and some more where there are few rows.
        reach = 9 * np.sqrt(total * share * (1 - share)) + 20
        first, last = (int(np.clip(share * (total - 1) + side * reach, 0, total - 1)) for side in (-1, 1))
        edges = [np.partition(values, (first, last))[[first, last]] for values in errors]
        # 0 below the window, 1 in it, 2 above.
        sides = [(values >= low).astype(np.int64) + (values > high) for values, (low, high) in zip(errors, edges, strict=True)]
        single = np.flatnonzero((sides[0] == 1) | (sides[1] == 1))
        corner = np.bincount((sides[0] * 3 + sides[1])[(sides[0] != 1) & (sides[1] != 1)], minlength=9)
        counts = np.concatenate([corner, np.ones(len(single), dtype=np.int64)])
        kinds = [
            np.concatenate([np.where(np.arange(9) // step % 3 == 0, -np.inf, np.inf), values[single]])
            for step, values in zip((3, 1), errors, strict=True)
        ]
        chunks = []
        for drawn in resampled_counts(counts, self.seed):
            new, old = (_quantile(values, drawn, share * (total - 1)) for values in kinds)
            chunks.append(new - old)
        return np.concatenate(chunks)

    def _of_own(self, own: OwnMetric) -> Floats:
        generator = np.random.Generator(np.random.SFC64(self.seed))
        num_resamples = int(np.clip(OWN_CELLS // max(1, len(self.labels)), LEAST_OWN, NUM_RESAMPLES))
        units = _units(self.groups, len(self.labels))
        found = np.empty(num_resamples)
        for number in range(num_resamples):
            chosen = generator.integers(0, len(units), size=len(units))
            rows = chosen if self.groups is None else np.concatenate([units[unit] for unit in chosen])
            # A group that is drawn twice is two groups.
            groups = None if self.groups is None else np.repeat(np.arange(len(chosen)), [len(units[unit]) for unit in chosen])
            new, old = (own(self.labels[rows], scores[rows], groups) for scores in (self.candidate, self.champion))
            found[number] = new - old
        return found


def _units(groups: Groups | None, num_rows: int) -> list[Groups] | range:
    """Return the rows of each group, or the rows."""
    if groups is None:
        return range(num_rows)
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def _macro_f1(drawn: NDArray[np.int64], labels: Groups, answers: Groups, classes: Groups) -> Floats:
    """Return the mean F1 over classes that a resample has, [resamples]; `drawn` is [resamples, kinds], the others [kinds] or [classes]."""
    hits = np.stack([drawn[:, (labels == number) & (answers == number)].sum(axis=1) for number in classes], axis=1)
    of_label = np.stack([drawn[:, labels == number].sum(axis=1) for number in classes], axis=1)
    of_answer = np.stack([drawn[:, answers == number].sum(axis=1) for number in classes], axis=1)
    there = of_label + of_answer > 0
    values = np.where(there, 2 * hits / np.maximum(of_label + of_answer, 1), 0.0)
    means: Floats = values.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    return means


def _quantile(values: Floats, drawn: NDArray[np.int64], place: float) -> Floats:
    """Return the value at the rank `place` (between two ranks: in between) of each resample of [kinds] values drawn [resamples, kinds]."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(drawn[:, order], axis=1)
    at, following = (values[order][(reached <= rank).sum(axis=1)] for rank in (int(place), int(np.ceil(place))))
    found: Floats = at + (following - at) * (place - int(place))
    return found


def _squares(labels: Floats, scores: Floats) -> Floats:
    return ((labels - scores) ** 2)[:, None]


def _tokens(_num_bytes: Floats, losses: Floats) -> Floats:
    return np.stack([losses, np.ones(len(losses))], axis=1)


def _bytes(num_bytes: Floats, losses: Floats) -> Floats:
    return np.stack([losses / np.log(2), num_bytes], axis=1)


_FUNCTIONS_OF_MEANS: Final[dict[str, tuple[Callable[[Floats, Floats], Floats], Callable[[Floats], Floats]]]] = {
    "rmse": (_squares, lambda means: np.sqrt(np.maximum(means[:, 0], 0))),
    "loss": (_tokens, lambda means: means[:, 0] / means[:, 1]),
    "perplexity": (_tokens, lambda means: np.exp(means[:, 0] / means[:, 1])),
    "bits_per_byte": (_bytes, lambda means: means[:, 0] / means[:, 1]),
}
"""Metric to its components, whose means over units make it, and to what is made of them."""
