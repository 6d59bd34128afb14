"""A canary's alarm: one always-valid test over completed blocks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from training.evaluation.bootstrap.blocks import Origins
from training.evaluation.bootstrap.influence import Influence
from training.evaluation.bootstrap.sequential import alarm_of
from training.evaluation.record import Alarm

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

from benchmarks import gate_errors

HOUR = 3_600_000_000


def alarm(values: np.ndarray, hours: np.ndarray, *, entities: np.ndarray | None = None) -> Alarm:
    mean = float(values.mean())
    influence = Influence(rows=None, num_units=len(values), values=values - mean)
    origins = Origins(microseconds=(hours * HOUR).astype(np.int64), entities={} if entities is None else {"customer": entities})
    return alarm_of(mean, influence, origins, None, confidence=0.95)


def test_no_alarm_before_eight_completed_blocks_however_bad_the_canary() -> None:
    generator = np.random.default_rng(1)
    for num_hours in range(1, 41):
        # The last hour is not complete.
        found = alarm(generator.normal(-5, 1, 20 * num_hours), np.repeat(np.arange(num_hours), 20))
        assert found.num_blocks < 8
        assert (found.e_value, found.is_worse) == (1.0, False)
    assert alarm(generator.normal(-5, 1, 1200), np.repeat(np.arange(60), 20)).is_worse


def test_a_better_canary_raises_no_alarm_and_has_evidence() -> None:
    found = alarm(np.random.default_rng(12).normal(1, 1, 6000), np.repeat(np.arange(60), 100))
    assert found.e_value > found.required == pytest.approx(20)
    assert not found.is_worse


def test_correlated_hours_make_longer_blocks() -> None:
    hourly = gate_errors.series(np.random.default_rng(3), 300, 0.9)
    assert alarm(np.repeat(hourly, 5), np.repeat(np.arange(300), 5)).block_seconds > 6 * 3600
    assert alarm(np.random.default_rng(4).normal(size=1500), np.repeat(np.arange(300), 5)).block_seconds == 5 * 3600


def test_daily_batches_are_judged_by_entities() -> None:
    generator = np.random.default_rng(5)
    days, customers = np.repeat([0, 24, 48], 100), generator.integers(0, 40, 300)
    found = alarm(generator.normal(-2, 1, 300), days, entities=customers)
    assert (found.clusters, found.num_blocks, found.is_worse) == ("entity", 40, True)
    nobody = alarm(generator.normal(-2, 1, 300), days)
    assert (nobody.clusters, nobody.num_blocks, nobody.is_worse) == ("none", 0, False)


def test_rows_in_three_hours_of_each_day_raise_no_alarm_within_three_days_and_one_within_ten() -> None:
    generator = np.random.default_rng(1)
    alarms = []
    for num_days in range(1, 11):
        hours = np.repeat((24 * np.arange(num_days)[:, None] + np.array([9, 10, 11])).ravel(), 40)
        found = alarm(generator.normal(-5, 1, len(hours)), hours, entities=generator.integers(0, 40, len(hours)))
        if len(np.unique(hours)) >= 8:
            # Neighbouring hours share a block of five, so hours with rows are not blocks yet.
            assert found.clusters == "time"
            assert found.num_blocks <= 2 * num_days
            assert found.required_blocks == 8
            alarms += [num_days] if found.is_worse else []
        if num_days == 3:
            assert (found.num_blocks, found.block_seconds, found.e_value) == (4, 5 * 3600, 1.0)
    assert alarms
    assert min(alarms) >= 4


def false_alarms(first_hour: int, outlier: int | None) -> int:
    """Return how many of 30 equal canaries hourly looks end in three days: rows from 9 to 17 o'clock, shocks that an hour's rows share.

    Args:
        first_hour: of the day at which the canary starts.
        outlier: hours before that at which one more row lies.
    """
    num = 0
    for seed in range(30):
        generator = np.random.default_rng([seed, 8])
        open_hours = [hour for hour in range(72) if 9 <= (hour + first_hour) % 24 < 17]
        hours = np.repeat(open_hours, 40)
        values = 0.7 * generator.normal(size=72)[hours] + generator.normal(size=len(hours))
        customers = generator.integers(0, 60, len(hours))
        if outlier is not None:
            hours, values, customers = np.r_[-outlier, hours], np.r_[generator.normal(), values], np.r_[0, customers]
        looks = (alarm(values[hours <= look], hours[hours <= look], entities=customers[hours <= look]) for look in open_hours[3:])
        num += any(found.is_worse for found in looks)
    return num


@pytest.mark.parametrize(("first_hour", "outlier"), [(9, 480), (15, None)], ids=["one row of long ago", "a night between the rows"])
def test_a_gap_between_hourly_rows_is_no_batch_and_raises_no_more_false_alarms(first_hour: int, outlier: int | None) -> None:
    # Entities do not show the hours' shocks: clusters of entities would end about one of three such canaries.
    assert false_alarms(first_hour, outlier) <= 3


def test_batches_are_judged_by_entities_from_the_third_on() -> None:
    generator = np.random.default_rng(6)
    hours, customers = np.repeat([2, 26, 50], 100), generator.integers(0, 40, 300)
    values = generator.normal(-2, 1, 300)
    found = {num: alarm(values[: 100 * num], hours[: 100 * num], entities=customers[: 100 * num]) for num in (1, 2, 3)}
    assert [found[num].clusters for num in (1, 2, 3)] == ["time", "time", "entity"]
    assert [found[num].is_worse for num in (1, 2, 3)] == [False, False, True]
    # A batch that is loaded over the turn of an hour is one batch.
    assert alarm(values, hours + np.arange(300) % 2, entities=customers).clusters == "entity"


def test_blocks_without_rows_do_not_count() -> None:
    hours = np.repeat(np.r_[0:5, 60:66], 20)
    found = [alarm(np.random.default_rng(seed).normal(-5, 1, len(hours)), hours) for seed in range(5)]
    assert all(each.num_blocks <= 2 and each.e_value == 1.0 and not each.is_worse for each in found)


def test_rows_of_one_hour_and_equal_sums_are_no_evidence() -> None:
    assert alarm(np.full(50, -1.0), np.zeros(50)).e_value == 1.0
    assert not alarm(np.zeros(500), np.repeat(np.arange(50), 10)).is_worse


@pytest.mark.parametrize("lag1", [0.0, 0.55])
def test_hourly_looks_for_three_days_rarely_roll_back_an_equal_canary(lag1: float) -> None:
    # Above 6 of 40 the chance is below one in a hundred at 5 %; benchmarks/gate_errors.py has 2,000 of each.
    assert sum(gate_errors.canary_is_rolled_back(lag1, 0.0, seed) is not None for seed in range(40)) <= 6


def test_hourly_looks_find_a_worse_canary_within_three_days() -> None:
    found = [gate_errors.canary_is_rolled_back(0.0, -1.0, seed) for seed in range(10)]
    assert sum(hour is not None and 41 <= hour <= 72 for hour in found) >= 8
