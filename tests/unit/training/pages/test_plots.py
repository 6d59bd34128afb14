"""The report's pictures: bounded whatever the number of rows, the same every time, and without what says nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import auc, roc_curve

from training.pages.plots import MAX_CLASSES, MAX_POINTS, history_plot, task_plots, thin

Floats = NDArray[np.float64]


def night(num_rows: int) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(7)
    labels = (generator.random(num_rows) < 0.3).astype(np.float64)
    scores: Floats = 1 / (1 + np.exp(1 - labels - generator.normal(size=num_rows)))
    return labels, scores


def all_plots(num_rows: int) -> dict[str, str]:
    labels, scores = night(num_rows)
    groups = np.arange(num_rows) // 10
    generator = np.random.default_rng(8)
    classes = generator.random((num_rows, 4))
    models = {"candidate": scores, "champion": scores[::-1].copy(), "canary": scores**2}
    found = {f"binary {name}": svg for name, svg in task_plots("binary", labels, models).items()}
    found |= {f"ranking {name}": svg for name, svg in task_plots("ranking", labels, models, groups=groups).items()}
    found |= {f"regression {name}": svg for name, svg in task_plots("regression", 100 * labels, models).items()}
    numbers = generator.integers(0, 4, num_rows).astype(np.float64)
    return found | {f"multiclass {name}": svg for name, svg in task_plots("multiclass", numbers, {"candidate": classes}).items()}


@pytest.mark.slow
def test_each_task_has_its_curves() -> None:
    assert list(all_plots(500)) == [
        *("binary ROC", "binary Precision and recall", "binary Calibration", "binary Predictions"),
        *("ranking NDCG by cut", "ranking NDCG@10 over groups"),
        *("regression Residuals", "regression Residuals by prediction"),
        *("multiclass Confusion", "multiclass Calibration"),
    ]
    assert task_plots("language", np.ones(3), {"candidate": np.ones(3)}) == {}


@pytest.mark.slow
def test_a_hundred_times_the_rows_make_no_larger_picture() -> None:
    few, many = all_plots(1_000), all_plots(100_000)
    assert max(map(len, many.values())) < 40_000
    assert sum(map(len, many.values())) < 1.3 * sum(map(len, few.values()))


def test_pictures_are_well_formed_have_words_for_a_screen_reader_and_no_colour_of_their_own() -> None:
    for name, svg in all_plots(500).items():
        root = ElementTree.fromstring(svg)  # noqa: S314 - made above
        assert root.get("role") == "img", name
        assert root.get("aria-label", "").startswith(name.partition(" ")[2]), name
        assert not re.search(r"(?<!, )#[0-9a-f]{6}", svg), name
        assert "<style" not in svg, name
        ids = re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:url\(|href=")#([\w.-]+)', svg)) == set(ids), name


@pytest.mark.slow
def test_pictures_are_the_same_every_time() -> None:
    assert all_plots(500) == all_plots(500)


def test_curves_name_every_model() -> None:
    labels, scores = night(500)
    both = task_plots("binary", labels, {"candidate": scores, "champion": scores, "canary": None})["ROC"]
    assert ">candidate<" in both
    assert ">champion<" in both
    assert ">canary<" not in both


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_with_scores_that_are_not_finite_is_not_drawn(bad: float) -> None:
    labels, scores = night(500)
    broken = scores.copy()
    broken[3] = bad
    assert ">champion<" not in task_plots("binary", labels, {"candidate": scores, "champion": broken})["ROC"]
    assert task_plots("binary", labels, {"candidate": broken}) == {}


def test_what_says_nothing_is_not_drawn() -> None:
    scores = np.linspace(0, 1, 20)
    assert task_plots("binary", np.ones(20), {"candidate": scores}) == {}
    assert task_plots("ranking", np.zeros(20), {"candidate": scores}, groups=np.arange(20) // 5) == {}
    assert task_plots("ranking", np.ones(20), {"candidate": scores}) == {}
    assert task_plots("regression", np.empty(0), {"candidate": np.empty(0)}) == {}


def test_constant_predictions_can_be_drawn() -> None:
    constant = np.full(50, 0.5)
    assert len(task_plots("binary", night(50)[0], {"candidate": constant})) == 4
    assert len(task_plots("regression", constant, {"candidate": constant})) == 2


def test_a_thinned_curve_keeps_its_ends_its_order_and_its_area() -> None:
    labels, scores = night(100_000)
    x, y, _ = roc_curve(labels, scores, drop_intermediate=False)
    few_x, few_y = thin(x, y)
    assert len(few_x) <= MAX_POINTS
    assert (few_x[0], few_y[0], few_x[-1], few_y[-1]) == (x[0], y[0], x[-1], y[-1])
    assert (np.diff(few_x) >= 0).all()
    assert auc(few_x, few_y) == pytest.approx(auc(x, y), abs=1e-3)


def test_a_noisy_start_leaves_points_for_the_rest_of_a_curve() -> None:
    x = np.linspace(0, 1, 10_000)
    y = np.where(np.arange(10_000) < 100, np.arange(10_000) % 2, 0.5)
    few_x, _ = thin(x, y)
    assert (few_x > 0.01).sum() > MAX_POINTS / 3


def test_short_and_flat_curves_stay_as_they_are() -> None:
    x = np.arange(10.0)
    assert thin(x, x)[0] is x
    same = np.zeros(1000)
    assert [part.tolist() for part in thin(same, same)] == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.slow
def test_rare_classes_are_one_and_a_class_name_is_text() -> None:
    generator = np.random.default_rng(3)
    names = [f"<b>$x_{n}$" for n in range(MAX_CLASSES + 5)]
    counts = np.repeat(np.arange(len(names)), np.arange(len(names), 0, -1))
    svg = task_plots("multiclass", counts.astype(np.float64), {"candidate": generator.random((len(counts), len(names)))}, classes=names)[
        "Confusion"
    ]
    words = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]  # noqa: S314 - made above
    assert "others" in words
    assert words.count("<b>$x_0$") == 2  # on both axes
    assert f"<b>$x_{MAX_CLASSES}$" not in words


def test_the_confusion_matrix_says_what_share_of_a_class_is_taken_for_which() -> None:
    labels = np.array([0.0] * 4 + [1.0] * 2)
    said = np.array([0, 0, 0, 1, 1, 1])
    svg = task_plots("multiclass", labels, {"candidate": np.eye(2)[said]}, classes=["late", "on time"])["Confusion"]
    assert sorted(re.findall(r">(\d+%)<", svg)) == ["100%", "25%", "75%"]


def test_the_history_skips_what_was_not_measured() -> None:
    history = [{"epoch": n, "train_loss": 1 / n} | ({"validation_loss": 2 / n} if n % 2 else {}) for n in range(1, 11)]
    svg = history_plot(history)
    assert ">train loss<" in svg
    assert ">validation loss<" in svg
    assert "nan" not in svg
    assert ">validation loss<" not in history_plot([{"epoch": 1, "train_loss": 0.5, "validation_loss": float("nan")}])


def test_a_long_history_stays_small() -> None:
    assert len(history_plot([{"epoch": n, "train_loss": 1 / n, "validation_loss": 2 / n} for n in range(1, 50_001)])) < 40_000
