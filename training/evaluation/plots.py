"""The report's pictures, as SVG text without a clock or random ids."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from training.evaluation.metrics import calibration_bins, group_ndcg

Floats = NDArray[np.float64]
CANDIDATE, CHAMPION = "#1b6ca8", "#b0b0b0"


def binary_plots(labels: Floats, candidate: Floats, champion: Floats | None) -> dict[str, str]:
    """Return ROC, precision-recall and calibration curves; nothing where there is only one class."""
    if len(np.unique(labels)) < 2:
        return {}

    def roc(axes: Any, scores: Floats, label: str, color: str) -> None:
        false_rate, true_rate, _ = roc_curve(labels, scores)
        axes.plot(false_rate, true_rate, label=label, color=color)

    def precision_recall(axes: Any, scores: Floats, label: str, color: str) -> None:
        precision, recall, _ = precision_recall_curve(labels, scores)
        axes.plot(recall, precision, label=label, color=color)

    def calibration(axes: Any, scores: Floats, label: str, color: str) -> None:
        means, shares, _ = calibration_bins(labels, scores)
        axes.plot(means, shares, marker="o", label=label, color=color)

    return {
        "ROC": _both(roc, candidate, champion, ("false positive rate", "true positive rate"), diagonal=True),
        "Precision and recall": _both(precision_recall, candidate, champion, ("recall", "precision")),
        "Calibration": _both(calibration, candidate, champion, ("mean predicted probability", "share of positives"), diagonal=True),
    }


def ranking_plots(labels: Floats, candidate: Floats, champion: Floats | None, groups: NDArray[np.int64]) -> dict[str, str]:
    """Return the spread of NDCG@10 over groups, and NDCG by cut."""
    cuts = (1, 2, 3, 5, 10, 20)

    def spread(axes: Any, scores: Floats, label: str, color: str) -> None:
        values = group_ndcg(labels, scores, groups, 10)
        axes.hist(values[np.isfinite(values)], bins=20, range=(0, 1), histtype="step", label=label, color=color)

    def by_cut(axes: Any, scores: Floats, label: str, color: str) -> None:
        means = [np.nanmean(group_ndcg(labels, scores, groups, cut)) for cut in cuts]
        axes.plot(cuts, means, marker="o", label=label, color=color)

    if not (labels > 0).any():
        return {}
    return {
        "NDCG by cut": _both(by_cut, candidate, champion, ("k", "NDCG@k")),
        "NDCG@10 over groups": _both(spread, candidate, champion, ("NDCG@10", "groups")),
    }


def history_plot(history: Sequence[Mapping[str, float]]) -> str:
    """Return training and validation loss by epoch."""
    figure, axes = _figure(("epoch", "loss"))
    epochs = [entry["epoch"] for entry in history]
    for name, color in (("train_loss", CANDIDATE), ("validation_loss", "#d1701b")):
        axes.plot(
            epochs, [entry[name] for entry in history], marker="o" if len(epochs) < 20 else None, label=name.replace("_", " "), color=color
        )
    axes.legend(frameon=False)
    return _svg(figure)


def _both(
    draw: Callable[[Any, Floats, str, str], None],
    candidate: Floats,
    champion: Floats | None,
    names: tuple[str, str],
    *,
    diagonal: bool = False,
) -> str:
    figure, axes = _figure(names)
    if diagonal:
        axes.plot([0, 1], [0, 1], color="#dddddd", linewidth=1)
    if champion is not None:
        draw(axes, champion, "champion", CHAMPION)
    draw(axes, candidate, "candidate", CANDIDATE)
    axes.legend(frameon=False)
    return _svg(figure)


def _figure(names: tuple[str, str]) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    # A fixed salt, no date: the same evaluation gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "nightshift", "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
