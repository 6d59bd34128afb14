"""What each unit adds to a gain: against the metric itself, measured again without some of the units."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scored import metric_value, pair
from training.spec.descriptors.metrics import is_lower_better

NUM = 4_000


def scored(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Return (labels, candidate, champion, groups) of one kind of task."""
    generator = np.random.default_rng(5)
    signal = generator.normal(size=NUM)
    if kind == "multiclass":
        labels = generator.integers(0, 3, NUM).astype(float)
        scores = [generator.dirichlet(np.ones(3), NUM) + 0.4 * (labels[:, None] == np.arange(3)) for _ in range(2)]
        scores = [some / some.sum(axis=1, keepdims=True) for some in scores]
        return labels, scores[0], scores[1], None
    labels = (generator.random(NUM) < 1 / (1 + np.exp(1 - 2 * signal))).astype(float)
    scores = [1 / (1 + np.exp(1 - 2 * signal - noise * generator.normal(size=NUM))) for noise in (0.5, 1.0)]
    if kind == "regression":
        scores = [labels + noise * generator.normal(size=NUM) for noise in (1.0, 1.1)]
    if kind == "language":
        return generator.integers(1, 6, NUM).astype(float), generator.gamma(2.0, 1.0, NUM), generator.gamma(2.1, 1.0, NUM), None
    return labels, scores[0], scores[1], np.arange(NUM) // 10 if kind == "ranking" else None


CASES = [
    *(("binary", name) for name in ("auc", "pr_auc", "log_loss", "f1", "brier", "calibration_error")),
    *(("multiclass", name) for name in ("accuracy", "auc", "pr_auc", "log_loss", "f1", "brier", "calibration_error")),
    *(("regression", name) for name in ("rmse", "mae", "median_absolute_error", "absolute_error_p90", "bias")),
    *(("ranking", name) for name in ("ndcg@10", "mrr", "recall@3")),
    *(("language", name) for name in ("loss", "perplexity", "bits_per_byte")),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_leaving_out_a_block_moves_the_gain_as_its_influence_says(kind: str, name: str) -> None:
    labels, candidate, champion, groups = scored(kind)
    found = pair(name, labels, candidate, champion, groups).influence()
    assert found is not None
    gain, influence = found
    sign = -1 if is_lower_better(name) else 1
    assert gain == pytest.approx(sign * (metric_value(name, labels, candidate, groups) - metric_value(name, labels, champion, groups)))
    parts = np.arange(influence.num_units) * 20 // influence.num_units
    sums = influence.sums(parts, 20)
    assert sums.sum() == pytest.approx(0, abs=1e-6 * np.abs(sums).sum())
    rows = np.arange(NUM) if influence.rows is None else influence.rows
    moved = []
    for part in range(20):
        kept = (parts[rows] != part) | (rows < 0)
        some = None if groups is None else groups[kept]
        values = [metric_value(name, labels[kept], scores[kept], some) for scores in (candidate, champion)]
        moved.append(sign * (values[0] - values[1]) - gain)
    expected = -sums / (influence.num_units - np.bincount(parts))
    # Quantiles and calibration move by steps and are linear on the average only.
    is_rough = name in ("median_absolute_error", "absolute_error_p90", "calibration_error")
    assert np.corrcoef(moved, expected)[0, 1] > (0.8 if is_rough else 0.99)
    assert np.std(moved) == pytest.approx(np.std(expected), rel=0.4 if is_rough else 0.05)


@pytest.mark.parametrize("kind", ["binary", "ranking"])
def test_a_metric_of_ones_own_is_measured_again_without_each_block(kind: str) -> None:
    labels, candidate, champion, groups = scored(kind)

    def own(truth: np.ndarray, scores: np.ndarray, _: np.ndarray | None) -> float:
        return -float(np.mean((truth - scores) ** 2))

    found = pair("profit", labels, candidate, champion, groups, own=own).influence()
    same = pair("brier", labels, candidate, champion, None).influence()
    assert found is not None
    assert same is not None
    assert found[0] == pytest.approx(same[0])
    assert found[1].num_units == (NUM if groups is None else NUM // 10)
    units = np.arange(found[1].num_units) * 16 // found[1].num_units
    by_row = np.arange(NUM) * 16 // NUM
    assert found[1].sums(units, 16) / found[1].num_units == pytest.approx(same[1].sums(by_row, 16) / NUM, rel=1e-6)


def test_groups_without_a_value_belong_to_no_block() -> None:
    labels, candidate, champion, groups = scored("ranking")
    labels[:10] = 0
    found = pair("ndcg@10", labels, candidate, champion, groups).influence()
    assert found is not None
    influence = found[1]
    assert influence.rows is not None
    assert (influence.rows[:10] == -1).all()
    assert influence.num_units == len(np.unique(influence.rows[influence.rows >= 0]))
    assert influence.first_of(np.arange(NUM)).min() >= 10


def test_scores_without_a_value_have_no_influence() -> None:
    assert pair("auc", np.ones(5), np.linspace(0, 1, 5), np.linspace(1, 0, 5), None).influence() is None
