"""How often the gates are wrong: models of known quality, judged again and again on rows drawn anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.gates import Trial, binary_trial, count_promoted, ranking_trial, upper_bound

pytestmark = pytest.mark.slow

NUM_TRIALS = 300
"""A gate that promotes one of twenty promotes at most eight of so many, which the bound allows, in 4 % of all seeds."""
MANY_TRIALS = 1000


@pytest.mark.parametrize("num_trials", [NUM_TRIALS, pytest.param(MANY_TRIALS, marks=pytest.mark.long)])
@pytest.mark.parametrize(("draw", "size"), [(binary_trial, 300), (ranking_trial, 200)], ids=["auc", "ndcg"])
def test_equal_models_are_promoted_in_less_than_one_of_twenty_nights(
    draw: Callable[[int, float, int], Trial], size: int, num_trials: int
) -> None:
    """At the default setting; the bound is Clopper and Pearson's 95 %."""
    (promoted,) = count_promoted(draw, size, 0.0, num_trials=num_trials)
    assert 0 < promoted
    assert upper_bound(promoted, num_trials) <= 0.05


def test_bound_of_a_share_is_clopper_and_pearsons() -> None:
    assert upper_bound(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000))
    assert upper_bound(37, 1000) < 0.05 < upper_bound(39, 1000)


def test_worse_models_are_not_promoted_and_better_ones_the_more_often_the_more_groups_there_are() -> None:
    (worse,) = count_promoted(ranking_trial, 500, -0.03, num_trials=40)
    few, many = (count_promoted(ranking_trial, size, 0.03, num_trials=40)[0] for size in (100, 1000))
    assert worse == 0
    assert few < many
    assert many >= 36


def test_a_stated_minimum_only_makes_promotion_rarer() -> None:
    default, minimum, large = count_promoted(ranking_trial, 500, 0.02, num_trials=30, asked=(0.0, 0.005, 0.05))
    assert 0 < minimum <= default
    assert large == 0
