"""Naive baselines by task: what each scores, which is best, and what an evaluation records of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.evaluation.demand import demand, demand_spec, splits_of
from training.errors import DataError, SpecError
from training.evaluation.baselines import Naive, Splits, best_of, naive_record, naive_scores, named_entries
from training.evaluation.label_history import Floats, History
from training.evaluation.record import EvaluationRecord, NaiveBaseline
from training.pages.evaluation import EvaluationPage, render_report
from training.spec import PipelineSpec

GENERATOR = np.random.default_rng(3)
TO_BINARY = ("task: regression, primary: mae", "task: binary, primary: log_loss")
TO_CLASSES = ("task: regression, primary: mae", "task: multiclass, primary: log_loss")
EVENTS = ("key: [area, at]", "key: [order_id]")
ORDERS = ("area: {type: string}", "area: {type: string}\n      order_id: {type: int64}")


def with_sql(sql: str) -> tuple[str, str]:
    return "primary: mae}", f'primary: mae, baseline: {{sql: "{sql}"}}}}'


def split(frame: pd.DataFrame) -> Splits:
    raw = frame.drop(columns="label")
    return Splits(frame=raw, columns=list(raw), labels=frame["label"].to_numpy(dtype=np.float64), **splits_of(frame))


def scored(spec: PipelineSpec, splits: Splits, rows: Any = None) -> dict[str, Naive]:
    history = History.of(spec, splits.frame, splits.labels)
    return {naive.name: naive for naive in naive_scores(spec, splits, history, splits.test if rows is None else rows)}


def record(spec: PipelineSpec, splits: Splits, candidate: Floats, **metrics: float) -> dict[str, Any]:
    return dict(naive_record(spec, splits, candidate, metrics).to_json())


@pytest.fixture(scope="module")
def series() -> Splits:
    return split(demand())


def events(labels: Floats | None = None) -> Splits:
    """One row an order: no series."""
    frame = demand(areas=("north",))
    frame["order_id"] = np.arange(len(frame))
    return split(frame if labels is None else frame.assign(label=labels))


def test_half_hourly_demand_has_the_seasonal_naive_of_a_day_and_a_week_besides_constants_and_the_last_value(series: Splits) -> None:
    found = scored(demand_spec(), series)
    assert list(found) == ["mean", "median", "last_value", "seasonal_1d", "seasonal_7d"]
    assert all(naive.coverage == 1.0 for naive in found.values())
    assert (found["mean"].scores == series.labels[series.training].mean()).all()
    assert (found["median"].scores == np.median(series.labels[series.training])).all()


def test_decision_a_day_ahead_makes_the_week_the_best_baseline_and_a_decision_at_once_the_last_value(series: Splits) -> None:
    """The figures of docs/promotion.md."""
    noise = series.labels[series.test] + 30 * GENERATOR.normal(size=len(series.test))
    at_once = record(demand_spec(), series, noise, mae=24.0)
    ahead = record(demand_spec(("decision_lead: 0s", "decision_lead: 1d")), series, noise, mae=24.0)
    assert (at_once["best"], ahead["best"]) == ("last_value", "seasonal_7d")
    for found in (at_once, ahead):
        mae = {entry["name"]: entry["metrics"]["mae"] for entry in found["found"]}
        assert mae["seasonal_7d"] < mae["seasonal_1d"] < mae["mean"]
    assert ahead["comparison"]["gain"] == pytest.approx(
        next(e["metrics"]["mae"] for e in ahead["found"] if e["name"] == "seasonal_7d") - np.abs(noise - series.labels[series.test]).mean()
    )
    assert ahead["comparison"]["low"] <= ahead["comparison"]["gain"] <= ahead["comparison"]["high"]


def test_named_season_replaces_the_ones_that_are_tried(series: Splits) -> None:
    spec = demand_spec(("primary: mae}", "primary: mae, baseline: {season: 14d}}"))
    assert [name for name in scored(spec, series) if "seasonal" in name] == ["seasonal_14d"]


def test_named_season_that_fits_no_row_is_a_warning_of_the_record(series: Splits) -> None:
    noise = series.labels[series.test] + 1.0
    for season, reason in (("45m", "not a longer multiple"), ("300d", "no value for any test row")):
        spec = demand_spec(("primary: mae}", f"primary: mae, baseline: {{season: {season}}}}}"), ("window: 60d", "window: 400d"))
        assert any(reason in warning for warning in record(spec, series, noise, mae=1.0)["warnings"])
    assert record(demand_spec(), series, noise, mae=1.0)["warnings"] == []


def test_report_shows_the_warnings_of_the_season_and_of_metrics_on_which_the_baseline_is_better(series: Splits) -> None:
    spec = demand_spec(("primary: mae}", "primary: mae, baseline: {season: 300d}}"), ("window: 60d", "window: 400d"))
    metrics = {"mae": 1.0, "rmse": 1e6}
    measured = EvaluationRecord(metrics=metrics, baselines=naive_record(spec, series, series.labels[series.test] + 1.0, metrics))
    page = EvaluationPage(record=measured, pipeline="demand", as_of="2026-02-01", rules=spec.evaluate)

    found = render_report(page).decode().split('<h2 id="baselines">')[1].split("</section>")[0]

    season = "evaluate.baseline.season 300d has no value for any test row: there is no seasonal baseline"
    assert f'<strong class="warn">Warning:</strong> {season}.' in found
    assert '<strong class="bad">Warning: the candidate is worse than it on rmse.</strong>' in found


def test_baselines_that_the_spec_names_are_kept_beside_the_best_one(series: Splits) -> None:
    noise = series.labels[series.test] + 1.0
    spec = demand_spec(("primary: mae}", 'primary: mae, baseline: {season: 14d, sql: "forecast"}}'))
    found = naive_record(spec, series, noise, {"mae": 1.0})
    named = {entry["name"]: entry["key"] for entry in named_entries(found, spec)}
    both = {"seasonal_14d": "evaluate.baseline.season", "sql": "evaluate.baseline.sql"}
    assert named == {name: key for name, key in both.items() if name != found.best}
    assert named
    assert named_entries(found.model_copy(update={"best": "seasonal_14d"}), spec)[0]["name"] == "sql"
    # Nothing is named: the ones that are tried by themselves are not repeated.
    assert named_entries(naive_record(demand_spec(), series, noise, {"mae": 1.0}), demand_spec()) == []


def test_orders_at_no_regular_time_have_constants_alone() -> None:
    assert list(scored(demand_spec(ORDERS, EVENTS), events())) == ["mean", "median"]


LAG = (
    "megawatts: {type: double, known: after}\n  label",
    ("megawatts: {type: double, known: after}\n  windows:\n    last: {kind: lag, column: megawatts, rows: 1, WINDOW}\n  label"),
)


def with_lag(window: str) -> tuple[str, str]:
    return LAG[0], LAG[1].replace("WINDOW", window)


def numbered(frame: pd.DataFrame) -> Splits:
    """Rows with a number, as a file of pandas or R has it."""
    return split(frame.assign(order_id=np.arange(len(frame))))


def test_window_over_the_label_brings_the_baselines_of_a_series_where_the_key_is_the_number_of_a_row(series: Splits) -> None:
    plain, rows = demand_spec(ORDERS, EVENTS), numbered(demand())
    assert list(scored(plain, rows)) == ["mean", "median"]
    by_area = scored(demand_spec(ORDERS, EVENTS, with_lag("by: [area], available_after: 30m")), rows)
    expected = scored(demand_spec(), series)
    assert list(by_area) == list(expected)
    for name, naive in expected.items():
        np.testing.assert_array_equal(by_area[name].scores, naive.scores)
    # Without a `by`, all rows are one series: a row's last value is the other area's too.
    together = scored(demand_spec(ORDERS, EVENTS, with_lag("by: [], available_after: 30m")), rows)
    assert np.abs(together["last_value"].scores - expected["last_value"].scores).mean() > 100


def test_window_over_the_label_brings_the_last_value_where_rows_have_no_step() -> None:
    frame = demand(areas=("north",))
    frame["at"] += pd.to_timedelta(GENERATOR.integers(0, 1790, len(frame)), unit="s")
    rows = numbered(frame)
    assert list(scored(demand_spec(ORDERS, EVENTS), rows)) == ["mean", "median"]
    found = scored(demand_spec(ORDERS, EVENTS, with_lag("by: [], available_after: 1s")), rows)
    assert list(found) == ["mean", "median", "last_value"]
    np.testing.assert_array_equal(found["last_value"].scores, rows.labels[rows.test - 1])


@pytest.mark.parametrize("key", [(), (ORDERS, EVENTS)], ids=["a series by its key", "a row number as the key"])
def test_last_value_is_the_one_that_the_window_says_was_known_at_the_decision(key: tuple[tuple[str, str], ...]) -> None:
    frame = demand(areas=("north",))
    rows = numbered(frame)
    later = scored(demand_spec(*key, with_lag("by: [area], available_after: 3h")), rows)["last_value"]
    np.testing.assert_array_equal(later.scores, rows.labels[rows.test - 6])
    frame["known_at"] = frame["at"] + pd.Timedelta(hours=2)
    frame.loc[frame.index % 2 == 1, "known_at"] = pd.NaT
    rows = numbered(frame)
    nullable = ("known_at: {type: timestamp, known: after}", "known_at: {type: timestamp, known: after, nullable: true}")
    announced = scored(demand_spec(*key, nullable, with_lag("by: [area], known_at: known_at")), rows)["last_value"]
    # A null instant is never: of the odd rows nothing is known.
    np.testing.assert_array_equal(announced.scores, rows.labels[rows.test - 4 - rows.test % 2])


def test_rows_without_a_value_of_the_season_count_by_the_last_value_and_then_by_the_mean() -> None:
    frame = demand(days=30)
    new = frame["area"].eq("south") & (frame["at"] < frame["at"].max() - pd.Timedelta(days=3))
    splits = split(frame[~new].reset_index(drop=True))
    week = scored(demand_spec(), splits)["seasonal_7d"]
    assert 0.5 < week.coverage < 1.0
    assert np.isfinite(week.scores).all()
    south = splits.frame["area"].to_numpy()[splits.test] == "south"
    first = np.flatnonzero(south)[0]
    history = History.of(demand_spec(), splits.frame, splits.labels)
    assert week.scores[first] == splits.labels[splits.training].mean()
    np.testing.assert_array_equal(week.scores[south][1:], history.last_value(splits.test)[south][1:])


def test_constant_is_fitted_on_labels_that_were_known_when_the_first_row_was_decided() -> None:
    frame = demand(areas=("north",))
    frame["known_at"] = frame["at"] + pd.Timedelta(days=10)
    frame.loc[frame.index[frame["known_at"] > frame["at"].max() - pd.Timedelta(days=20)], "label"] += 1e6
    splits = split(frame)
    spec = demand_spec(("{column: megawatts}", "{column: megawatts, known_at: known_at}"))
    for rows in (splits.validation, splits.test):
        first = splits.frame["at"].iloc[rows].min()
        known = splits.training[(splits.frame["known_at"].iloc[splits.training] <= first).to_numpy()]
        assert 0 < len(known) < len(splits.training)
        assert scored(spec, splits, rows)["mean"].scores[0] == splits.labels[known].mean()


def test_training_labels_that_were_unknown_in_time_give_no_baseline_and_a_reason() -> None:
    frame = demand(areas=("north",))
    frame["known_at"] = frame["at"] + pd.Timedelta(days=59)
    spec = demand_spec(("{column: megawatts}", "{column: megawatts, known_at: known_at}"))
    found = record(spec, split(frame), np.zeros(14 * 48))
    assert found["why_none"] == "no training label was known when the first validation row was decided"
    assert (found["best"], found["found"]) == (None, [])


def test_yes_or_no_has_the_share_of_positives_and_the_majority() -> None:
    splits = events((GENERATOR.random(60 * 48) < 0.2).astype(np.float64))
    spec = demand_spec(ORDERS, EVENTS, TO_BINARY)
    found = scored(spec, splits)
    share = splits.labels[splits.training].mean()
    assert found["prior"].scores == pytest.approx(np.full(len(splits.test), share))
    assert (found["majority_class"].scores == 0.0).all()
    stored = record(spec, splits, np.full(len(splits.test), 0.9), log_loss=9.0)
    assert stored["best"] == "prior"
    assert stored["found"][0]["metrics"]["auc"] == 0.5
    assert "log_loss" in stored["worse"]


def test_classes_have_their_shares_and_the_most_frequent_one() -> None:
    splits = events(GENERATOR.choice([0.0, 1.0, 2.0], size=60 * 48, p=[0.2, 0.5, 0.3]))
    found = scored(demand_spec(ORDERS, EVENTS, TO_CLASSES), splits)
    shares = np.bincount(splits.labels[splits.training].astype(int)) / len(splits.training)
    np.testing.assert_allclose(found["prior"].scores[0], shares)
    np.testing.assert_array_equal(found["majority_class"].scores[-1], [0.0, 1.0, 0.0])
    assert found["prior"].scores.shape == (len(splits.test), 3)


@pytest.mark.parametrize("sql", ["forecast", "coalesce(forecast, 0) * 1.0", "CASE WHEN temperature > 100 THEN 1 ELSE forecast END"])
def test_sql_baseline_is_an_expression_over_the_rows_columns_besides_the_others(series: Splits, sql: str) -> None:
    found = scored(demand_spec(with_sql(sql)), series)
    assert list(found)[-1] == "sql"
    assert len(found) == 6
    np.testing.assert_allclose(found["sql"].scores, series.frame["forecast"].to_numpy()[series.test])


def test_sql_baseline_without_a_value_counts_by_the_mean_and_says_of_how_many(series: Splits) -> None:
    found = scored(demand_spec(with_sql("CASE WHEN area = 'north' THEN forecast END")), series)["sql"]
    assert found.coverage == pytest.approx(0.5)
    south = series.frame["area"].to_numpy()[series.test] == "south"
    assert (found.scores[south] == series.labels[series.training].mean()).all()


def test_sql_baseline_that_is_a_constant_scores_every_row(series: Splits) -> None:
    assert (scored(demand_spec(with_sql("700.5")), series)["sql"].scores == 700.5).all()


@pytest.mark.parametrize("sql", ["no_such_column", "avg(forecast)", "lag(forecast) OVER (ORDER BY at)"])
def test_sql_baseline_that_is_no_expression_of_one_row_is_bad_data(series: Splits, sql: str) -> None:
    text = demand_spec().model_dump(mode="json", by_alias=True)
    text["evaluate"]["baseline"] = {"sql": sql}
    with pytest.raises(DataError, match=r"evaluate\.baseline\.sql") as caught:
        scored(PipelineSpec.model_validate(text), series)
    assert caught.value.code == "derive.expression"


def test_worse_than_the_best_baseline_is_listed_by_metric(series: Splits) -> None:
    good = series.labels[series.test] + GENERATOR.normal(size=len(series.test))
    metrics = {"mae": 0.8, "rmse": 1e3, "median_absolute_error": 0.5, "absolute_error_p90": 1.0, "absolute_error_p99": float("nan")}
    assert record(demand_spec(), series, good, **metrics)["worse"] == ["rmse"]


def test_metric_by_which_a_constant_does_well_says_nothing_against_a_baseline() -> None:
    splits = events((GENERATOR.random(60 * 48) < 0.2).astype(np.float64))
    found = record(demand_spec(ORDERS, EVENTS, TO_BINARY), splits, np.full(len(splits.test), 0.9), calibration_error=0.7, brier=0.7)
    assert found["worse"] == ["brier"]


def test_switched_off_nothing_is_computed_and_the_record_says_so(series: Splits) -> None:
    found = record(demand_spec(("primary: mae}", "primary: mae, baseline: {enabled: false}}")), series, np.zeros(1))
    assert found["why_none"] == "switched off (evaluate.baseline.enabled)"


def test_metric_of_ones_own_that_fails_on_a_baseline_is_no_number_and_ends_nothing(series: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.evaluation.measures.load_own_metrics", lambda places: {"broken": _failing} if places else {})
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    spec = demand_spec(("primary: mae}", 'primary: mae, metrics: {broken: "acme.metrics:broken"}}'))
    found = record(spec, series, series.labels[series.test], mae=0.0)
    assert found["best"] == "last_value"
    assert found["found"][0]["metrics"]["broken"] == "nan"


def _failing(*_: Any) -> float:
    raise DataError("metric.failed", "constant scores")


def test_best_is_chosen_by_validation_and_the_first_of_equals_wins() -> None:
    values = {"a": float("nan"), "b": 2.0, "c": 3.0, "d": 3.0}
    entries = [NaiveBaseline(name=name, about="", coverage=1.0, validation=value, metrics={}) for name, value in values.items()]
    assert best_of(entries, "auc") == entries[2]
    assert best_of(entries, "mae") == entries[1]
    assert best_of(entries[:1], "mae") is None


def test_season_that_is_not_shorter_than_the_window_is_refused() -> None:
    with pytest.raises(SpecError, match="is not shorter than") as caught:
        demand_spec(("primary: mae}", "primary: mae, baseline: {season: 60d}}"))
    (problem,) = caught.value.problems
    assert (problem.field, problem.code) == ("evaluate.baseline.season", "field.conflict")
    assert problem.line is not None
