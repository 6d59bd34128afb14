"""The population stability index, against numbers computed by hand, and its bins where values pile up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from training.validation.drift.stability_index import PILE_SHARE, separated, stability_index


def deciles_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.quantile(values, np.arange(1, 10) / 10)


def test_index_is_the_sum_over_bins_of_a_worked_example() -> None:
    expected = (0.3 - 0.5) * math.log(0.3 / 0.5) + (0.7 - 0.5) * math.log(0.7 / 0.5)
    assert stability_index([50, 50], [30, 70]) == pytest.approx(expected, rel=1e-12)


def test_index_is_symmetric_and_zero_for_the_same_shares() -> None:
    assert stability_index([1, 2, 3], [10, 20, 30]) == 0
    assert stability_index([1, 5], [4, 2]) == pytest.approx(stability_index([4, 2], [1, 5]))


def test_empty_bin_counts_as_one_of_ten_thousand() -> None:
    assert stability_index([100, 0], [50, 50]) == pytest.approx((0.5 - 1) * math.log(0.5) + (0.5 - 1e-4) * math.log(0.5 / 1e-4))


@pytest.mark.parametrize("name", ["normal", "uniform", "exponential", "beta"])
def test_deciles_of_a_smooth_distribution_stay_bit_for_bit(name: str) -> None:
    generator = np.random.default_rng(0)
    samples = {
        "normal": generator.normal(size=2000),
        "uniform": generator.uniform(size=2000),
        "exponential": generator.exponential(size=2000),
        "beta": generator.beta(2, 5, 2000),
    }
    values = np.sort(samples[name])
    assert separated(deciles_of(values), values).tolist() == deciles_of(values).tolist()


@pytest.mark.parametrize("center", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
def test_no_edge_is_inside_a_pile_wherever_it_is(center: float, share: float) -> None:
    generator = np.random.default_rng(0)
    num_piled = int(2000 * share)
    values = np.sort(np.concatenate([center + generator.normal(0, 1e-9, num_piled), generator.uniform(size=2000 - num_piled)]))
    edges = separated(deciles_of(values), values)
    for edge in edges:
        assert np.mean(np.abs(values - edge) < 1e-6) <= PILE_SHARE
    assert (np.diff(edges) > 1e-3).all()


def test_tied_values_are_in_one_bin_and_classes_keep_a_bin_each() -> None:
    values = np.repeat([0.0, 1.0, 2.0], [60, 30, 10])
    edges = separated(deciles_of(values), values)
    counts = np.bincount(np.searchsorted(edges, values, side="left"))
    assert counts[counts > 0].tolist() == [60, 30, 10]


@pytest.mark.parametrize("values", [np.full(20, 7.0), np.full(20, 1e300), np.array([3.0]), np.array([])])
def test_constant_single_or_no_value_ends_with_at_most_one_edge(values: NDArray[np.float64]) -> None:
    edges = deciles_of(values) if len(values) else np.array([])
    assert len(separated(edges, values)) <= 1


def test_outlier_does_not_hide_the_rest_of_a_distribution() -> None:
    values = np.sort(np.append(np.random.default_rng(0).normal(size=2000), 1e12))
    assert len(separated(deciles_of(values), values)) == 9
