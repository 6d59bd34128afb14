"""What the advice on retraining rests on: drift since the champion's training rows, and what nights said of it."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from training.evaluation.cadence import Night
from training.evaluation.staleness import advice_of
from training.evaluation_record import Rival
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec

START = datetime(2026, 1, 1)
NUM_ROWS = 2000


def spec() -> PipelineSpec:
    return load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")


def frame(shift: float) -> pd.DataFrame:
    """Rows of ten days, `price` moved by `shift` in the last two; `rating` as ever."""
    generator = np.random.default_rng(0)
    price = generator.normal(size=NUM_ROWS)
    price[-400:] += shift
    times = [START + timedelta(days=10) * number / NUM_ROWS for number in range(NUM_ROWS)]
    return pd.DataFrame({"shown_at": times, "price": price, "rating": generator.normal(size=NUM_ROWS)})


def advice(shift: float, test: Any, columns: list[str], **known: Any) -> Any:
    rows = frame(shift)
    event_us = rows["shown_at"].to_numpy(dtype="datetime64[us]").view(np.int64)
    return advice_of(spec(), lambda name, numbers: rows[name].iloc[numbers], event_us, test, columns, **known)


def first_line(shift: float, champion: dict[str, Any] | None) -> str:
    test = np.arange(NUM_ROWS - 400, NUM_ROWS)
    found = advice(shift, test, ["price", "rating"], champion=None if champion is None else Rival(**champion))
    return str(found.lines[0])


def test_a_column_that_has_moved_since_the_champion_learned_is_named_first() -> None:
    champion = {"bounds": {"train": ["2025-12-01T00:00:00+00:00", "2026-01-08T00:00:00+00:00"]}}
    assert ": price " in first_line(3.0, champion)
    assert "another population" in first_line(3.0, champion)
    assert "the data are as before" in first_line(0.0, champion)


def test_of_many_rows_some_are_looked_at_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    champion = {"bounds": {"train": ["2025-12-01T00:00:00+00:00", "2026-01-08T00:00:00+00:00"]}}
    read: list[int] = []
    rows = frame(3.0)

    def column_of(name: str, numbers: Any) -> Any:
        read.append(len(numbers))
        return rows[name].iloc[numbers]

    monkeypatch.setattr("training.evaluation.staleness.MAX_ROWS", 500)
    event_us = rows["shown_at"].to_numpy(dtype="datetime64[us]").view(np.int64)
    test = np.arange(NUM_ROWS - 400, NUM_ROWS)
    found = advice_of(spec(), column_of, event_us, test, ["price", "rating"], champion=Rival(**champion))
    assert ": price " in found.lines[0]
    # Of the 500 rows that are looked at, those of the first seven of ten days; and all test rows.
    assert set(read) == {350, 400}


def test_without_a_champion_or_its_rows_nothing_is_measured() -> None:
    long_ago = {"bounds": {"train": ["2025-01-01T00:00:00+00:00", "2025-02-01T00:00:00+00:00"]}}
    assert first_line(3.0, None).endswith("not measured.")
    assert first_line(3.0, long_ago).endswith("not measured.")


def test_nights_and_hours_reach_the_advice() -> None:
    nights = [Night(age_days=float(n), champion=0.7 - 0.01 * n, candidate=0.7, weights_digest="w1") for n in range(1, 9)]
    found = advice(0.0, np.arange(400), [], nights=nights, process_hours=2.0)
    assert found.decay is not None
    assert abs(found.decay.per_day - 0.01) < 1e-9
