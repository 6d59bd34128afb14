"""The transform `datetime`: parts on the clock of a zone, against Python's own calendar, and how they reach the model."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from training.data.features.datetime_parts import PERIODS, part_of
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.features.transforms_file import serving_inputs
from training.errors import DataError

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
PARTS = tuple(PERIODS)


def expected(moment: datetime, part: str) -> int:
    """Return a part by the standard library."""
    return {
        "hour": moment.hour,
        "minute_of_day": moment.hour * 60 + moment.minute,
        "day_of_week": moment.weekday(),
        "day_of_month": moment.day,
        "month": moment.month,
        "day_of_year": moment.timetuple().tm_yday,
        "week": moment.isocalendar().week,
        "is_weekend": int(moment.weekday() >= 5),
    }[part]


def instants(number: int) -> list[datetime]:
    generator = random.Random(13)  # noqa: S311 - test data
    changes = [
        datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2024, 2, 29, 23, 59, tzinfo=UTC),
    ]
    near = [change + timedelta(minutes=30 * step) for change in changes for step in range(6)]
    start = datetime(1969, 1, 1, tzinfo=UTC)
    return near + [start + timedelta(minutes=generator.randrange(60 * 365 * 24 * 60)) for _ in range(number)]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_instants_are_those_of_the_clock_of_the_zone(zone: str, part: str) -> None:
    moments = instants(200)
    column = pd.Series(pd.to_datetime(moments, utc=True))
    found = part_of(column, "at", part, zone)
    assert found.tolist() == [expected(moment.astimezone(ZoneInfo(zone)), part) for moment in moments]
    # As Arrow's timestamps without a zone arrive: they count as UTC.
    assert part_of(column.dt.tz_localize(None), "at", part, zone).tolist() == found.tolist()


@pytest.mark.parametrize(
    ("zone", "last"),
    [
        ("Europe/Berlin", "9999-12-31T22:59:59.999999"),
        ("America/New_York", "9999-12-31T23:59:59.999999"),
    ],
)
def test_what_is_after_the_last_year_of_the_clock_counts_as_missing(zone: str, last: str) -> None:
    late = np.datetime64(last) + np.timedelta64(1, "us")
    column = pd.Series(np.array([last, late, "30000-01-01", "NaT", "2026-01-02"], dtype="datetime64[us]"))
    for part in PARTS:
        known = [expected(datetime.fromisoformat(f"{at}+00:00").astimezone(ZoneInfo(zone)), part) for at in (last, "2026-01-02T00:00")]
        assert part_of(column, "c", part, zone).tolist() == pytest.approx([known[0], *[math.nan] * 3, known[1]], nan_ok=True)
    with pytest.raises(DataError) as caught:
        fitted(column[1:3], zone=zone, parts=("hour",))
    assert caught.value.code == "data.all_missing"


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("hour", "minute_of_day")])
def test_parts_of_dates_do_not_depend_on_the_zone(part: str) -> None:
    days = [date(2026, 1, 1), date(2024, 12, 30), date(2025, 2, 28), None]
    found = part_of(pd.Series(days, dtype=object), "on", part, "America/New_York")
    assert found[:3].tolist() == [expected(datetime(day.year, day.month, day.day), part) for day in days if day]
    assert math.isnan(found[3])


def fitted(
    column: pd.Series[Any], *, serve: pd.Series[Any] | None = None, **settings: Any
) -> tuple[FittedTransforms, np.ndarray[Any, Any]]:
    plan = FeaturePlan(name="at", settings=EncoderSettings(kind="datetime", **settings))
    transforms = FittedTransforms.fit(pd.DataFrame({"at": column}), derived=[], features=[plan])
    again = FittedTransforms.from_json(transforms.to_json())
    assert again.to_json() == transforms.to_json()
    matrix = again.apply(pd.DataFrame({"at": column if serve is None else serve}), serving=True)
    return again, np.concatenate([matrix.floats.astype(np.float64), matrix.ints], axis=1)


HOURS = pd.Series(pd.to_datetime(["2026-03-01T00:00Z", "2026-03-01T06:00Z", "2026-03-01T12:00Z", None], utc=True))


def test_each_part_is_an_input_of_its_own_and_the_model_reads_the_column() -> None:
    transforms, cells = fitted(HOURS, parts=("hour", "day_of_week"), form="id")
    assert [(entry.name, entry.cardinality) for entry in transforms.layout] == [("at.hour", 25), ("at.day_of_week", 8)]
    assert cells.tolist() == [[1, 7], [7, 7], [13, 7], [0, 0]]
    assert transforms.inputs(serving=True) == serving_inputs(transforms.to_json()) == ("at",)


@pytest.mark.parametrize("part", PARTS)
def test_ids_of_a_part_are_one_for_each_of_its_values(part: str) -> None:
    minutes = pd.date_range("2024-01-01", "2024-01-02", freq="min", tz="UTC", inclusive="left")
    days = pd.date_range("2020-01-01", "2024-12-31", tz="UTC")
    transforms, cells = fitted(pd.Series([*minutes, *days]), parts=(part,), form="id")
    assert set(cells[:, 0].astype(int)) == set(range(1, transforms.layout[0].cardinality))


def test_cyclic_parts_put_the_last_value_next_to_the_first() -> None:
    day = pd.Series(pd.date_range("2026-03-01", periods=24, freq="h", tz="UTC"))
    transforms, cells = fitted(day, parts=("hour",), form="cyclic")
    assert [entry.name for entry in transforms.layout] == ["at.hour.sin", "at.hour.cos"]
    assert np.allclose((cells**2).sum(axis=1), 1, atol=1e-6)
    steps = np.linalg.norm(cells - np.roll(cells, 1, axis=0), axis=1)
    assert np.allclose(steps, steps[0], atol=1e-6), "also between hour 23 and hour 0"


@pytest.mark.parametrize(("fill", "last"), [(None, 6.0), ("mean", 6.0), ("keep", math.nan)])
def test_missing_instant_is_the_training_mean_or_stays_missing(fill: str | None, last: float) -> None:
    _, cells = fitted(HOURS, parts=("hour",), fill=fill)
    assert cells[:, 0].tolist() == pytest.approx([0, 6, 12, last], nan_ok=True)


def test_one_row_of_a_day_off_the_fitted_ones_is_scored_on_the_fitted_zone() -> None:
    _, cells = fitted(HOURS, parts=("hour",), zone="Europe/Berlin", serve=pd.Series(pd.to_datetime(["2027-07-01T22:30Z"], utc=True)))
    assert cells.tolist() == [[0.0]], "half past midnight in Berlin"


@pytest.mark.parametrize(
    ("column", "parts", "code"),
    [
        (pd.Series([1.0, 2.0]), ("hour",), "schema.type"),
        (pd.Series(["2026-01-01"]), ("month",), "schema.type"),
        (pd.Series([date(2026, 1, 1)], dtype=object), ("hour",), "schema.type"),
        (pd.Series(pd.to_datetime([None, None], utc=True)), ("hour",), "data.all_missing"),
    ],
)
def test_column_without_instants_is_refused(column: pd.Series[Any], parts: tuple[str, ...], code: str) -> None:
    with pytest.raises(DataError) as caught:
        fitted(column, parts=parts)
    assert caught.value.code == code


def test_frame_of_texts_that_is_scored_is_answered_with_what_parses_them() -> None:
    with pytest.raises(DataError, match=r"pandas\.to_datetime"):
        fitted(HOURS, parts=("hour",), serve=pd.Series(["2026-01-01T06:00:00Z"]))
