"""The charts of an evaluation's page, of a size that does not grow with the rows.

Every colour is one of the page's (`var(--candidate)`), so that the charts follow it into dark mode and onto paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.evaluation.metrics.calibration import calibration_bins
from training.evaluation.metrics.curves import precision_recall_curve, roc_curve
from training.evaluation.metrics.ranking import Floats, RankedRows
from training.pages.axes import Axis
from training.pages.charts import RULE, Chart, Look, staircase
from training.spec.sections.evaluation import Gain

Models = Mapping[str, Floats]
"""Role ("candidate", "champion", "canary") to the scores, [n] or for multiclass [n, classes]."""
Draw = Callable[[Chart, str, Floats], None]
"""Adds one model to a chart: its role and its scores."""

MAX_POINTS: Final = 300
"""Of one curve: more than a screen shows."""
MAX_CLASSES: Final = 12
"""Of a confusion matrix; the rarer ones are one class, "others"."""
NDCG_CUTS: Final = (1, 3, 5, 10, 20)
NUM_BINS: Final = 20

LOOKS: Final[Mapping[str, Look]] = {
    "candidate": Look(color="var(--candidate, #1b6ca8)"),
    "champion": Look(color="var(--champion, #777778)", dash="6 3"),
    "canary": Look(color="var(--canary, #8a5a00)", dash="2 2"),
}
VALIDATION: Final = Look(color="var(--validation, #b3541e)", dash="6 3")
IDEAL: Final = Look(color=RULE, line_width=1.0)


def task_plots(
    task: str,
    labels: Floats,
    models: Mapping[str, Floats | None],
    *,
    groups: NDArray[np.int64] | None = None,
    classes: Sequence[str] = (),
    gain: Gain = "linear",
) -> dict[str, str]:
    """Return a task's curves as {title: SVG text}; none where they would say nothing (one class only, no positive row).

    Args:
        task: as `evaluate.task`; `language` has no curves.
        labels: [n]; class numbers for multiclass.
        models: role to the scores; None and scores that are not finite are left out.
        groups: [n] for ranking.
        classes: names of the classes, multiclass only; absent: their numbers.
        gain: of a label in NDCG.
    """
    known = {name: scores for name, scores in models.items() if scores is not None and len(scores) and np.isfinite(scores).all()}
    if not known:
        return {}
    if task == "binary":
        return binary_plots(labels, known)
    if task == "ranking" and groups is not None:
        return ranking_plots(labels, known, groups, gain=gain)
    if task == "regression":
        return regression_plots(labels, known)
    if task == "multiclass":
        return multiclass_plots(labels, known, classes)
    return {}


def binary_plots(labels: Floats, models: Models) -> dict[str, str]:
    """Return ROC, precision-recall and calibration curves and the spread of the scores; nothing where there is only one class."""
    if len(np.unique(labels)) < 2:
        return {}

    def roc(chart: Chart, name: str, scores: Floats) -> None:
        false_rate, true_rate = roc_curve(labels, scores)
        chart.line(*thin(false_rate, true_rate), LOOKS[name], name)

    def precision_recall(chart: Chart, name: str, scores: Floats) -> None:
        precision, recall = precision_recall_curve(labels, scores)
        # Before the first positive is found, precision is of nothing: a fall from 1 to 0 that only draws a wall.
        found = recall[::-1] > 0
        chart.line(*thin(recall[::-1][found], precision[::-1][found]), LOOKS[name], name)

    def calibration(chart: Chart, name: str, scores: Floats) -> None:
        means, shares, _ = calibration_bins(labels, scores)
        chart.line(means, shares, LOOKS[name], name, has_points=True)

    def spread(chart: Chart, name: str, scores: Floats) -> None:
        _histogram(chart, name, scores, (0.0, 1.0))

    return {
        "ROC": _drawn("ROC", "false positive rate", "true positive rate", roc, models, diagonal=True),
        "Precision and recall": _drawn("Precision and recall", "recall", "precision", precision_recall, models),
        "Calibration": _drawn("Calibration", "mean predicted probability", "share of positives", calibration, models, diagonal=True),
        "Predictions": _drawn("Predictions", "predicted probability", Axis(name="share of rows", least=0.0), spread, models),
    }


def ranking_plots(labels: Floats, models: Models, groups: NDArray[np.int64], *, gain: Gain = "linear") -> dict[str, str]:
    """Return NDCG by cut, and the spread of NDCG@10 over groups; nothing where no group has a gain."""
    if not (labels > 0).any():
        return {}
    ranked = {name: RankedRows(labels=labels, scores=scores, groups=groups, gain=gain) for name, scores in models.items()}
    values = {name: {cut: rows.ndcg(cut) for cut in NDCG_CUTS} for name, rows in ranked.items()}

    def by_cut(chart: Chart, name: str, _: Floats) -> None:
        means = [float(np.nanmean(values[name][cut])) for cut in NDCG_CUTS]
        chart.line(NDCG_CUTS, means, LOOKS[name], name, has_points=True)

    def spread(chart: Chart, name: str, _: Floats) -> None:
        found = values[name][10]
        _histogram(chart, name, found[np.isfinite(found)], (0.0, 1.0))

    return {
        "NDCG by cut": _drawn("NDCG by cut", Axis(name="k", ticks=NDCG_CUTS), "NDCG@k", by_cut, models),
        "NDCG@10 over groups": _drawn("NDCG@10 over groups", "NDCG@10", Axis(name="share of groups", least=0.0), spread, models),
    }


def regression_plots(labels: Floats, models: Models) -> dict[str, str]:
    """Return the spread of the residuals (label less prediction), and their median and middle 80 % by prediction."""
    residuals = {name: labels - scores for name, scores in models.items()}
    low, high = np.quantile(np.concatenate(list(residuals.values())), [0.005, 0.995])
    bounds = (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)

    def spread(chart: Chart, name: str, _: Floats) -> None:
        # What lies outside is counted in the outermost bins: a long tail would leave one bar.
        _histogram(chart, name, np.clip(residuals[name], *bounds), bounds)

    def by_prediction(chart: Chart, name: str, scores: Floats) -> None:
        parts = np.array_split(np.argsort(scores, kind="stable"), min(NUM_BINS, len(scores)))
        centres = [float(scores[part].mean()) for part in parts]
        p10, p50, p90 = ([float(np.quantile(residuals[name][part], q)) for part in parts] for q in (0.1, 0.5, 0.9))
        chart.line(centres, p50, LOOKS[name], f"{name}, median")
        if name == "candidate":
            chart.band(centres, p10, p90, LOOKS[name], "middle 80 %")
            chart.rule(y=0.0)

    residual = "label less prediction"
    return {
        "Residuals": _drawn("Residuals", residual, Axis(name="share of rows", least=0.0), spread, models),
        "Residuals by prediction": _drawn("Residuals by prediction", "prediction", residual, by_prediction, models),
    }


def multiclass_plots(labels: Floats, models: Models, classes: Sequence[str]) -> dict[str, str]:
    """Return the candidate's confusion matrix, and how sure each model is against how often it is right; scores are [n, classes]."""

    def calibration(chart: Chart, name: str, scores: Floats) -> None:
        means, shares, _ = calibration_bins((scores.argmax(axis=1) == labels).astype(np.float64), scores.max(axis=1))
        chart.line(means, shares, LOOKS[name], name, has_points=True)

    sure, right = "probability of the predicted class", "share that is right"
    plots = {"Calibration": _drawn("Calibration", sure, right, calibration, models, diagonal=True)}
    if "candidate" in models:
        plots = {"Confusion": _confusion(labels, models["candidate"], classes), **plots}
    return plots


def history_plot(history: Sequence[Mapping[str, float]]) -> str:
    """Return training and validation loss by epoch (a round, for boosted trees)."""
    chart = Chart("Loss", Axis(name="epoch", is_integer=True), Axis(name="loss"))
    epochs = np.array([entry["epoch"] for entry in history], dtype=np.float64)
    for name, look in (("train_loss", LOOKS["candidate"]), ("validation_loss", VALIDATION)):
        losses = np.array([entry.get(name, np.nan) for entry in history], dtype=np.float64)
        known = np.isfinite(losses)
        if known.any():
            chart.line(*thin(epochs[known], losses[known]), look, name.replace("_", " "), has_points=int(known.sum()) < NUM_BINS)
    return chart.svg()


def thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return at most `MAX_POINTS` points of a curve, its ends among them: half evenly by `x`, half evenly along the curve.

    By `x` alone a steep start is lost, along the curve alone a noisy start takes everything.
    """
    if len(x) <= MAX_POINTS:
        return x, y
    width, height = float(np.ptp(x)) or 1.0, float(np.ptp(y)) or 1.0
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x) / width, np.diff(y) / height))])
    across = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)))])
    kept = [
        np.clip(np.searchsorted(measure, np.linspace(0.0, measure[-1], MAX_POINTS // 2)), 0, len(x) - 1)
        for measure in (along, across)
        if measure[-1] > 0
    ]
    numbers = np.unique(np.concatenate([[0], *kept, [len(x) - 1]]))[: MAX_POINTS - 1]
    numbers = np.append(numbers, len(x) - 1) if numbers[-1] != len(x) - 1 else numbers
    return x[numbers], y[numbers]


def _histogram(chart: Chart, name: str, values: Floats, bounds: tuple[float, float]) -> None:
    counts, edges = np.histogram(values, bins=2 * NUM_BINS, range=bounds)
    chart.line(*staircase(edges.tolist(), (counts / max(1, len(values))).tolist(), base=0.0), LOOKS[name], name)


def _confusion(labels: Floats, scores: Floats, classes: Sequence[str]) -> str:
    actual, said = labels.astype(np.int64), scores.argmax(axis=1)
    counts = np.bincount(actual, minlength=scores.shape[1])
    shown = np.sort(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
    names = [classes[number] if number < len(classes) else str(number) for number in shown]
    place = np.full(len(counts), len(shown))
    place[shown] = np.arange(len(shown))
    if len(counts) > len(shown):
        names.append("others")
    size = len(names)
    matrix = np.bincount(place[actual] * size + place[said], minlength=size * size).reshape(size, size)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    chart = Chart("Confusion", Axis(name="predicted class", categories=names), Axis(name="class", categories=names))
    for row, column in np.argwhere(matrix).tolist():
        chart.cell(column, row, float(shares[row, column]), LOOKS["candidate"])
    return chart.svg()


def _drawn(title: str, x: Axis | str, y: Axis | str, draw: Draw, models: Models, *, diagonal: bool = False) -> str:
    """Return a chart of all models; an axis that is only a name is one of numbers."""
    across, up = (Axis(name=axis) if isinstance(axis, str) else axis for axis in (x, y))
    chart = Chart(title, across, up)
    for name, scores in models.items():
        draw(chart, name, scores)
    if diagonal:
        chart.line([0.0, 1.0], [0.0, 1.0], IDEAL)
    return chart.svg()
