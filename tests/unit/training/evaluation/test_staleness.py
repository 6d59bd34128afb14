"""What the advice on retraining rests on: drift since the champion's training rows, and what nights said of it."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

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


def first_line(shift: float, champion: dict[str, Any] | None) -> str:
    test = np.arange(NUM_ROWS - 400, NUM_ROWS)
    return advice_of(spec(), frame(shift), test, ["price", "rating"], champion=None if champion is None else Rival(**champion)).lines[0]


def test_a_column_that_has_moved_since_the_champion_learned_is_named_first() -> None:
    champion = {"bounds": {"train": ["2025-12-01T00:00:00+00:00", "2026-01-08T00:00:00+00:00"]}}
    assert ": price " in first_line(3.0, champion)
    assert "another population" in first_line(3.0, champion)
    assert "the data are as before" in first_line(0.0, champion)


def test_without_a_champion_or_its_rows_nothing_is_measured() -> None:
    long_ago = {"bounds": {"train": ["2025-01-01T00:00:00+00:00", "2025-02-01T00:00:00+00:00"]}}
    assert first_line(3.0, None).endswith("not measured.")
    assert first_line(3.0, long_ago).endswith("not measured.")


def test_nights_and_hours_reach_the_advice() -> None:
    nights = [Night(age_days=float(n), champion=0.7 - 0.01 * n, candidate=0.7, version="1") for n in range(1, 9)]
    advice = advice_of(spec(), frame(0.0), np.arange(400), [], nights=nights, process_hours=2.0)
    assert advice.decay is not None
    assert abs(advice.decay.per_day - 0.01) < 1e-9
