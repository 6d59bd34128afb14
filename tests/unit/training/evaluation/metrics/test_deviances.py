"""Pinball loss and Poisson deviance: scikit-learn's values, no value where there is none, and only where a spec names them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance

from benchmarks.scored import metric_value, score_metrics
from training.spec.descriptors.metrics import is_lower_better, is_metric, metrics_of

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("percent", [1, 10, 50, 90, 99])
def test_pinball_loss_is_that_of_scikit_learn_and_smallest_at_its_quantile(percent: int) -> None:
    labels, scores = RNG.normal(size=500), RNG.normal(size=500)
    expected = mean_pinball_loss(labels, scores, alpha=percent / 100)
    assert metric_value(f"pinball_loss@{percent}", labels, scores, None) == pytest.approx(expected)
    shares = (1, 10, 50, 90, 99)
    losses = [metric_value(f"pinball_loss@{percent}", labels, np.full(500, np.quantile(labels, at / 100)), None) for at in shares]
    assert shares[int(np.argmin(losses))] == percent


def test_poisson_deviance_is_that_of_scikit_learn() -> None:
    labels, means = RNG.poisson(1.5, 400).astype(float), RNG.gamma(2, size=400)
    assert (labels == 0).any()
    assert metric_value("poisson_deviance", labels, means, None) == pytest.approx(mean_poisson_deviance(labels, means))
    assert metric_value("poisson_deviance", means, means, None) == 0


@pytest.mark.parametrize(("label", "score"), [(-1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, -2.0)])
def test_poisson_deviance_has_no_value_where_one_row_has_none(label: float, score: float) -> None:
    assert math.isnan(metric_value("poisson_deviance", np.array([2.0, label]), np.array([2.0, score]), None))


def test_evaluations_have_them_only_where_a_spec_names_them() -> None:
    labels, scores = RNG.normal(size=50), RNG.normal(size=50)
    assert not {"pinball_loss@50", "poisson_deviance"} & set(metrics_of("regression"))
    assert "pinball_loss@90" not in score_metrics("regression", "rmse", labels, scores, None)
    assert math.isfinite(score_metrics("regression", "rmse", labels, scores, None, also=["pinball_loss@90"])["pinball_loss@90"])


def test_only_percentiles_of_numbers_are_metrics() -> None:
    assert is_metric("regression", "pinball_loss@99")
    assert is_lower_better("pinball_loss@5")
    assert not is_metric("binary", "pinball_loss@90")
    for name in ("pinball_loss", "pinball_loss@0", "pinball_loss@100", "pinball_loss@0.9", "poisson_deviance@1"):
        assert not is_metric("regression", name)
