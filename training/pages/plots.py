"""The report's pictures, as SVG text without a clock or random ids, of a size that does not grow with the rows.

Every colour is one of the page's (`var(--candidate)`), so that the pictures follow it into dark mode and onto paper.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from training.evaluation.metrics.calibration import calibration_bins
from training.evaluation.metrics.curves import precision_recall_curve, roc_curve
from training.evaluation.metrics.ranking import RankedRows
from training.spec.sections.evaluation import Gain

Floats = NDArray[np.float64]
Models = Mapping[str, Floats]
"""Role ("candidate", "champion", "canary") to the scores, [n] or for multiclass [n, classes]."""

MAX_POINTS: Final = 300
"""Of one curve: more than a screen shows."""
MAX_CLASSES: Final = 12
"""Of a confusion matrix; the rarer ones are one class, "others"."""
NDCG_CUTS: Final = (1, 3, 5, 10, 20)
NUM_BINS: Final = 20

# Colours that stand for the page's own, which take their places in the finished text.
CANDIDATE, CHAMPION, CANARY, VALIDATION, INK, FAINT = "#1b6ca8", "#777778", "#8a5a00", "#b3541e", "#222223", "#dddcdd"
_VARIABLES: Final = {
    CANDIDATE: "candidate",
    CHAMPION: "champion",
    CANARY: "canary",
    VALIDATION: "validation",
    INK: "ink",
    FAINT: "rule",
}
_LOOKS: Final[Mapping[str, Mapping[str, str | int]]] = {
    "candidate": {"color": CANDIDATE, "zorder": 3},
    "champion": {"color": CHAMPION, "linestyle": "dashed", "zorder": 2},
    "canary": {"color": CANARY, "linestyle": "dotted", "zorder": 2},
}


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

    def roc(axes: Any, name: str, scores: Floats) -> None:
        false_rate, true_rate = roc_curve(labels, scores)
        axes.plot(*thin(false_rate, true_rate), label=name, **_LOOKS[name])

    def precision_recall(axes: Any, name: str, scores: Floats) -> None:
        precision, recall = precision_recall_curve(labels, scores)
        # Before the first positive is found, precision is of nothing: a fall from 1 to 0 that only draws a wall.
        found = recall[::-1] > 0
        axes.plot(*thin(recall[::-1][found], precision[::-1][found]), label=name, **_LOOKS[name])

    def calibration(axes: Any, name: str, scores: Floats) -> None:
        means, shares, _ = calibration_bins(labels, scores)
        axes.plot(means, shares, marker="o", markersize=4, label=name, **_LOOKS[name])

    def spread(axes: Any, name: str, scores: Floats) -> None:
        _histogram(axes, name, scores, (0.0, 1.0))

    return {
        "ROC": _chart("ROC", roc, models, ("false positive rate", "true positive rate"), diagonal=True),
        "Precision and recall": _chart("Precision and recall", precision_recall, models, ("recall", "precision")),
        "Calibration": _chart("Calibration", calibration, models, ("mean predicted probability", "share of positives"), diagonal=True),
        "Predictions": _chart("Predictions", spread, models, ("predicted probability", "share of rows")),
    }


def ranking_plots(labels: Floats, models: Models, groups: NDArray[np.int64], *, gain: Gain = "linear") -> dict[str, str]:
    """Return NDCG by cut, and the spread of NDCG@10 over groups; nothing where no group has a gain."""
    if not (labels > 0).any():
        return {}
    ranked = {name: RankedRows(labels=labels, scores=scores, groups=groups, gain=gain) for name, scores in models.items()}
    values = {name: {cut: rows.ndcg(cut) for cut in NDCG_CUTS} for name, rows in ranked.items()}

    def by_cut(axes: Any, name: str, _: Floats) -> None:
        means = [float(np.nanmean(values[name][cut])) for cut in NDCG_CUTS]
        axes.plot(NDCG_CUTS, means, marker="o", markersize=4, label=name, **_LOOKS[name])
        axes.set_xticks(NDCG_CUTS)

    def spread(axes: Any, name: str, _: Floats) -> None:
        found = values[name][10]
        _histogram(axes, name, found[np.isfinite(found)], (0.0, 1.0))

    return {
        "NDCG by cut": _chart("NDCG by cut", by_cut, models, ("k", "NDCG@k")),
        "NDCG@10 over groups": _chart("NDCG@10 over groups", spread, models, ("NDCG@10", "share of groups")),
    }


def regression_plots(labels: Floats, models: Models) -> dict[str, str]:
    """Return the spread of the residuals (label less prediction), and their median and middle 80 % by prediction."""
    residuals = {name: labels - scores for name, scores in models.items()}
    low, high = np.quantile(np.concatenate(list(residuals.values())), [0.005, 0.995])
    bounds = (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)

    def spread(axes: Any, name: str, _: Floats) -> None:
        # What lies outside is counted in the outermost bins: a long tail would leave one bar.
        _histogram(axes, name, np.clip(residuals[name], *bounds), bounds)

    def by_prediction(axes: Any, name: str, scores: Floats) -> None:
        parts = np.array_split(np.argsort(scores, kind="stable"), min(NUM_BINS, len(scores)))
        centres = [float(scores[part].mean()) for part in parts]
        p10, p50, p90 = (np.array([np.quantile(residuals[name][part], q) for part in parts]) for q in (0.1, 0.5, 0.9))
        axes.plot(centres, p50, label=f"{name}, median", **_LOOKS[name])
        if name == "candidate":
            axes.fill_between(centres, p10, p90, color=CANDIDATE, alpha=0.18, linewidth=0, label="middle 80 %")
            axes.axhline(0, color=FAINT, linewidth=1, zorder=1)

    return {
        "Residuals": _chart("Residuals", spread, models, ("label less prediction", "share of rows")),
        "Residuals by prediction": _chart("Residuals by prediction", by_prediction, models, ("prediction", "label less prediction")),
    }


def multiclass_plots(labels: Floats, models: Models, classes: Sequence[str] = ()) -> dict[str, str]:
    """Return the candidate's confusion matrix, and how sure each model is against how often it is right; scores are [n, classes]."""

    def calibration(axes: Any, name: str, scores: Floats) -> None:
        means, shares, _ = calibration_bins((scores.argmax(axis=1) == labels).astype(np.float64), scores.max(axis=1))
        axes.plot(means, shares, marker="o", markersize=4, label=name, **_LOOKS[name])

    axes_names = ("probability of the predicted class", "share that is right")
    plots = {"Calibration": _chart("Calibration", calibration, models, axes_names, diagonal=True)}
    if "candidate" in models:
        plots = {"Confusion": _confusion(labels, models["candidate"], classes), **plots}
    return plots


def history_plot(history: Sequence[Mapping[str, float]]) -> str:
    """Return training and validation loss by epoch (a round, for boosted trees)."""
    figure, axes = new_figure(("epoch", "loss"))
    epochs = np.array([entry["epoch"] for entry in history], dtype=np.float64)
    for name, color, style in (("train_loss", CANDIDATE, "solid"), ("validation_loss", VALIDATION, "dashed")):
        losses = np.array([entry.get(name, np.nan) for entry in history], dtype=np.float64)
        known = np.isfinite(losses)
        if known.any():
            marker = "o" if known.sum() < NUM_BINS else None
            label = name.replace("_", " ")
            axes.plot(*thin(epochs[known], losses[known]), marker=marker, markersize=4, label=label, color=color, linestyle=style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    add_legend(axes)
    return svg_text(figure, "Loss")


def thin(x: Floats, y: Floats, limit: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """Return at most `limit` points of a curve, its ends among them: half evenly by `x`, half evenly along the curve.

    By `x` alone a steep start is lost, along the curve alone a noisy start takes everything.
    """
    if len(x) <= limit:
        return x, y
    width, height = float(np.ptp(x)) or 1.0, float(np.ptp(y)) or 1.0
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x) / width, np.diff(y) / height))])
    across = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)))])
    kept = [
        np.clip(np.searchsorted(measure, np.linspace(0.0, measure[-1], limit // 2)), 0, len(x) - 1)
        for measure in (along, across)
        if measure[-1] > 0
    ]
    numbers = np.unique(np.concatenate([[0], *kept, [len(x) - 1]]))[: limit - 1]
    numbers = np.append(numbers, len(x) - 1) if numbers[-1] != len(x) - 1 else numbers
    return x[numbers], y[numbers]


def _histogram(axes: Any, name: str, values: Floats, bounds: tuple[float, float]) -> None:
    weights = np.full(len(values), 1 / max(1, len(values)))
    axes.hist(values, bins=2 * NUM_BINS, range=bounds, weights=weights, histtype="step", label=name, linewidth=1.5, **_LOOKS[name])


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
    figure, axes = new_figure(("predicted class", "class"))
    for row in range(size):
        for column in range(size):
            share = float(shares[row, column])
            if not matrix[row, column]:
                continue
            # Never so dark that the number on it cannot be read.
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=CANDIDATE, alpha=0.6 * share, linewidth=0, clip_on=False))
            axes.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=8 if size <= 8 else 6, color=INK)
    short = [name if len(name) <= 12 else f"{name[:11]}…" for name in names]
    # A class's name is text, never a formula.
    axes.set_xticks(range(size), short, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(size), short, parse_math=False)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    return svg_text(figure, "Confusion")


def _chart(title: str, draw: Callable[[Any, str, Floats], None], models: Models, names: tuple[str, str], *, diagonal: bool = False) -> str:
    figure, axes = new_figure(names)
    if diagonal:
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, zorder=1)
    for name, scores in models.items():
        draw(axes, name, scores)
    add_legend(axes)
    return svg_text(figure, title)


def add_legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)


def new_figure(names: tuple[str, str]) -> tuple[Figure, Any]:
    """Return an empty figure and its axes; `names`: of x and y."""
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    axes.set_xlabel(names[0], color=INK)
    axes.set_ylabel(names[1], color=INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(CHAMPION)
    return figure, axes


def svg_text(figure: Figure, title: str) -> str:
    """Return a figure as SVG for a page that may hold several, the same text for the same figure."""
    stream = io.StringIO()
    # A fixed salt, no date: the same evaluation gives the same bytes. Text stays text: it can be read aloud, searched and coloured.
    with mpl.rc_context({"svg.hashsalt": "nightshift", "svg.fonttype": "none", "text.color": INK}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    # The picture's own style sheet would hold for the whole page; the page's font is the picture's.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r" font-family: [^;]*;|\n\s*(?=<)|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _page_wide_ids(text, re.sub(r"[^a-z0-9]+", "-", title.lower()))
    names = "; ".join(label for label in (_axis_label(figure, "y"), _axis_label(figure, "x")) if label)
    described = html.escape(f"{title}: {names}", quote=True)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{described}" viewBox="{_view_box(text)}">'
    text = opening + text[text.index(">") + 1 :]
    for color, name in _VARIABLES.items():
        text = text.replace(color, f"var(--{name}, {color})")
    return text.strip()


def _view_box(text: str) -> str:
    found = re.search(r'viewBox="([\d. ]+)"', text)
    return found[1] if found else "0 0 331.2 244.8"


def _axis_label(figure: Figure, side: str) -> str:
    axes = figure.axes[0]
    return str(axes.get_xlabel() if side == "x" else axes.get_ylabel())


def _page_wide_ids(text: str, prefix: str) -> str:
    """Keep only the ids that the picture itself refers to, and make them its own: a page holds several pictures."""
    used = set(re.findall(r"#([\w.-]+)[\")]", text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    return re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}-', text)
