"""Forecasts by what was known: gaps, clock changes, late labels and several entities, each against a plain loop over the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.evaluation.demand import demand, demand_spec
from training.evaluation.label_history import MAX_SEASONS, Floats, History, Ints

CHANGES = {
    "spring": datetime(2026, 4, 2, tzinfo=UTC),
    "autumn": datetime(2026, 10, 29, tzinfo=UTC),
    "none": datetime(2026, 2, 1, tzinfo=UTC),
}
"""End of fourteen days that a change of Berlin's clock lies in (29 March and 25 October 2026)."""


def series(end: str = "none", *, lead: str = "0s", delay: Callable[[Ints], Ints] | None = None, seed: int = 1) -> History:
    """Return fourteen days of two areas with one row in twenty missing."""
    frame = demand(end=CHANGES[end], days=14)
    generator = np.random.default_rng(seed)
    frame = frame[generator.random(len(frame)) > 0.05].sample(frac=1, random_state=seed).reset_index(drop=True)
    changes = [("decision_lead: 0s", f"decision_lead: {lead}")]
    if delay is not None:
        minutes = delay(np.arange(len(frame)))
        frame["known_at"] = frame["at"] + pd.to_timedelta(minutes, unit="min")
        changes.append(("{column: megawatts}", "{column: megawatts, known_at: known_at}"))
    labels = frame.pop("label").to_numpy()
    return History.of(demand_spec(*changes), frame, labels)


def looked_up(history: History, target: Ints, *, season: timedelta | None) -> Floats:
    """Return what `seasonal`, or without a season `last_value`, must return: row by row, as the definition says."""
    zone, found = ZoneInfo("Europe/Berlin"), []
    for row in target:
        same = np.flatnonzero((history.entity == history.entity[row]) & (history.event_us < history.event_us[row]))
        known = {int(history.event_us[other]): other for other in same if history.known_us[other] <= history.decision_us[row]}
        wanted = [max(known)] if known and season is None else []
        if season is not None:
            wall = datetime.fromtimestamp(history.event_us[row] / 1e6, UTC).astimezone(zone).replace(tzinfo=None)
            for count in range(1, 15):
                local = (wall - count * season).replace(tzinfo=zone)
                is_there = local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
                if is_there:
                    wanted.append(round(local.timestamp() * 1e6))
        found.append(next((history.labels[known[instant]] for instant in wanted if instant in known), np.nan))
    return np.array(found)


def late(minutes: int) -> Callable[[Ints], Ints]:
    return lambda rows: np.full(len(rows), minutes)


def uneven(rows: Ints) -> Ints:
    """Labels that become known in another order than they happen: after 0 to 3 days."""
    return np.random.default_rng(9).integers(0, 3 * 1440, len(rows))


@pytest.mark.parametrize("end", list(CHANGES))
@pytest.mark.parametrize(
    ("lead", "delay"), [("0s", None), ("6h", None), ("0s", late(30)), ("26h", late(90)), ("0s", uneven), ("2h", uneven)]
)
@pytest.mark.parametrize("season", [None, timedelta(days=1), timedelta(days=7)], ids=["last value", "1d", "7d"])
def test_forecast_is_what_the_definition_says_row_by_row(
    end: str, lead: str, delay: Callable[[Ints], Ints] | None, season: timedelta | None
) -> None:
    history = series(end, lead=lead, delay=delay)
    target = np.random.default_rng(0).choice(len(history.labels), 250, replace=False)
    found = history.last_value(target) if season is None else history.seasonal(target, season)
    np.testing.assert_array_equal(found, looked_up(history, target, season=season))
    assert np.isfinite(found).mean() > 0.3


@pytest.mark.parametrize("season", [None, timedelta(days=1), timedelta(hours=12)], ids=["last value", "1d", "12h"])
def test_changing_what_is_not_known_at_the_decision_changes_no_forecast(season: timedelta | None) -> None:
    """The property that a baseline must have, of every row: whatever labels come later, it forecasts the same."""
    history = series(lead="3h", delay=uneven)
    rows = np.arange(len(history.labels))

    def forecast(some: History, target: Ints) -> Floats:
        return some.last_value(target) if season is None else some.seasonal(target, season)

    usual = forecast(history, rows)
    for instant in np.quantile(history.decision_us, [0.3, 0.6, 0.9]):
        unknown = history.known_us > instant
        other = replace(history, labels=np.where(unknown, 1e9, history.labels))
        decided = rows[history.decision_us <= instant]
        np.testing.assert_array_equal(forecast(other, decided), usual[decided])


def test_entity_never_gets_another_ones_value() -> None:
    history = series()
    marked = replace(history, labels=history.entity.astype(np.float64))
    rows = np.arange(len(history.labels))
    for found in (marked.last_value(rows), marked.seasonal(rows, timedelta(days=1))):
        known = np.isfinite(found)
        np.testing.assert_array_equal(found[known], history.entity[known])


def test_first_row_of_an_entity_has_no_value() -> None:
    history = series()
    first = np.array([np.flatnonzero(history.entity == entity)[history.event_us[history.entity == entity].argmin()] for entity in (0, 1)])
    assert np.isnan(history.last_value(first)).all()
    assert np.isnan(history.seasonal(first, timedelta(days=1))).all()


def test_season_of_hours_is_counted_in_hours_also_where_the_clock_changes() -> None:
    history = series("spring")
    row = int(np.flatnonzero(history.event_us == history.event_us.max())[0])
    found = history.seasonal(np.array([row]), timedelta(hours=84))
    before = np.flatnonzero((history.entity == history.entity[row]) & (history.event_us == history.event_us[row] - 84 * 3600 * 10**6))
    assert len(before) == 1
    assert found[0] == history.labels[before[0]]


@pytest.mark.parametrize("end", list(CHANGES))
def test_half_hours_with_gaps_are_a_series(end: str) -> None:
    assert series(end).step_us == 30 * 60 * 10**6


@pytest.mark.parametrize("end", list(CHANGES))
def test_local_days_are_a_series_where_the_clock_changes(end: str) -> None:
    days = pd.date_range(end=CHANGES[end].date(), periods=40, freq="D", tz="Europe/Berlin").tz_convert("UTC")
    frame = pd.DataFrame({"area": "north", "at": days, "known_at": days})
    assert History.of(demand_spec(), frame, np.zeros(40)).step_us == 86_400 * 10**6


def irregular(rows_of_an_area: int) -> pd.DataFrame:
    generator = np.random.default_rng(2)
    number = 3000
    times = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(np.sort(generator.integers(0, 30 * 86_400, number)), unit="s")
    return pd.DataFrame({"area": np.arange(number) // rows_of_an_area, "at": times, "known_at": times})


@pytest.mark.parametrize("rows_of_an_area", [1, 2, 30, 3000])
def test_orders_at_any_time_are_no_series(rows_of_an_area: int) -> None:
    frame = irregular(rows_of_an_area)
    assert History.of(demand_spec(), frame, np.zeros(len(frame))).step_us is None


def test_season_of_a_second_that_no_row_has_ends_after_a_bounded_number_of_seasons(monkeypatch: pytest.MonkeyPatch) -> None:
    history = series()
    target = np.flatnonzero(history.event_us > np.quantile(history.event_us, 0.9))
    looks: list[int] = []
    back = History._back

    def counted(self: History, instants: Ints, duration_us: int) -> Ints:
        looks.append(duration_us)
        assert len(looks) <= MAX_SEASONS
        return back(self, instants, duration_us)

    monkeypatch.setattr(History, "_back", counted)
    assert np.isnan(history.seasonal(target, timedelta(seconds=1))).all()
    assert len(looks) == MAX_SEASONS
