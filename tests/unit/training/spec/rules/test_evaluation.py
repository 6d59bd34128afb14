"""A gate that is configured and could never judge is refused, with the line and what turns it on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec, params_schema
from training.spec.reader.overrides import apply_overrides

R, F = "search_ranking", "flight_delay"
RANKED, FLOWN = "  slices: [category_id]\n  slice_support: 500\n", "  slices: [carrier, origin]\n  slice_support: 100\n"
REGRESSION = ("task: binary\n  primary: auc\n  minimum: {auc: 0.55}", "task: regression\n  primary: mae")
MULTICLASS = ("task: binary", "task: multiclass")

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]


@pytest.mark.parametrize(
    ("pipeline", "changes", "field", "code"),
    [
        (F, [(FLOWN, "  fairness: {equal_opportunity: 0.1}\n")], "evaluate.fairness.equal_opportunity", "field.conflict"),
        (F, [(FLOWN, "  fairness: {calibration: 0.1}\n")], "evaluate.fairness.calibration", "field.conflict"),
        (F, [(FLOWN, "  slice_drop: 0.1\n")], "evaluate.slice_drop", "field.conflict"),
        (F, [(FLOWN, "  slice_support: 50\n")], "evaluate.slice_support", "field.conflict"),
        (F, [(FLOWN, "  slice_pairs: false\n")], "evaluate.slice_pairs", "field.conflict"),
        (F, [REGRESSION, ("primary: mae", "primary: mae\n  threshold: 0.4")], "evaluate.threshold", "field.conflict"),
        (F, [MULTICLASS, ("confidence:", "threshold: 0.4\n  confidence:")], "evaluate.threshold", "field.conflict"),
        (R, [(RANKED, RANKED + "  threshold: 0.4\n")], "evaluate.threshold", "field.conflict"),
        (R, [(RANKED, RANKED + "  sensitive: [category_id]\n")], "evaluate.sensitive", "fairness.task"),
        (F, [REGRESSION, (FLOWN, "  sensitive: [origin]\n")], "evaluate.sensitive", "fairness.task"),
        (
            F,
            [MULTICLASS, (FLOWN, "  sensitive: [origin]\n  fairness: {equal_opportunity: 0.1}\n")],
            "evaluate.fairness.equal_opportunity",
            "fairness.task",
        ),
    ],
)
def test_key_of_evaluate_that_no_gate_reads_is_refused(
    refuse: Refuse, pipeline: str, changes: list[tuple[str, str]], field: str, code: str
) -> None:
    (problem,) = refuse(pipeline, *changes)
    assert (problem.field, problem.code) == (field, code)
    assert problem.line is not None
    assert "remove" in problem.hint or "instead" in problem.hint


@pytest.mark.parametrize("gate", ["maximum", "bias", "slices", "fairness", "latency", "overlap"])
@pytest.mark.parametrize("severity", ["approve", "warn", "fail"])
def test_severity_of_a_gate_that_is_off_is_refused(refuse: Refuse, gate: str, severity: str) -> None:
    (problem,) = refuse(F, (FLOWN, f"{FLOWN}  severity: {{{gate}: {severity}}}\n"))
    assert (problem.field, problem.code) == (f"evaluate.severity.{gate}", "gate.off")
    assert problem.message == f"severity of {gate} has no effect: the gate is off"


def test_all_gates_that_cannot_judge_are_reported_at_once(refuse: Refuse) -> None:
    changed = "  slice_drop: 0.1\n  slice_pairs: false\n  fairness: {calibration: 0.1}\n  severity: {latency: warn, overlap: fail}\n"
    found = refuse(F, (FLOWN, changed))
    assert [problem.field for problem in found] == [
        *("evaluate.slice_drop", "evaluate.slice_pairs", "evaluate.fairness.calibration"),
        *("evaluate.severity.latency", "evaluate.severity.overlap"),
    ]
    assert sorted({problem.line for problem in found if problem.line is not None})[0] > 100


@pytest.mark.parametrize(
    ("gate", "keys"),
    [
        ("maximum", "maximum: {log_loss: 0.7}"),
        ("minimum", "confidence: 0.95"),
        ("slices", "slice_drop: 0.1"),
        ("fairness", "sensitive: [origin]\n  fairness: {calibration: 0.1}"),
        ("latency", "latency_ms: {p95: 20}"),
        ("overlap", "checks: {overlap: 0.5}"),
        ("leakage", "confidence: 0.95"),
        ("drift", "confidence: 0.95"),
    ],
)
def test_severity_of_a_gate_that_is_on_is_accepted(accept: Accept, gate: str, keys: str) -> None:
    spec = accept(F, ("  confidence: 0.95\n", f"  {keys}\n  severity: {{{gate}: approve}}\n"))
    assert spec.evaluate.severity == {gate: "approve"}


@pytest.mark.parametrize(
    ("keys", "field", "code"),
    [
        ("primary: bias", "evaluate.primary", "metric.direction"),
        ('primary: rmse\n  metrics: {bias: "acme.metrics:bias"}', "evaluate.metrics.bias", "metric.clash"),
    ],
)
def test_bias_neither_decides_nor_is_the_name_of_an_own_metric(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch, keys: str, field: str, code: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    (problem,) = refuse(F, (REGRESSION[0], f"task: regression\n  {keys}"))
    assert (problem.field, problem.code) == (field, code)


def test_bias_has_bounds_on_both_sides_and_a_severity(accept: Accept) -> None:
    keys = "minimum: {bias: -2}\n  maximum: {bias: 2}\n  severity: {bias: approve}"
    assert accept(F, (REGRESSION[0], f"task: regression\n  primary: rmse\n  {keys}")).evaluate.maximum == {"bias": 2}


def test_overrides_of_one_run_do_not_trip_over_written_out_defaults(accept: Accept) -> None:
    spec = accept(F, (FLOWN, ""), ("  confidence: 0.95\n", ""))
    changed, _ = apply_overrides(spec, {"train": {"epochs": 3}})
    assert changed.train.epochs == 3
    assert params_schema(changed)


@pytest.mark.parametrize(
    ("pipeline", "changes", "field", "code"),
    [
        (F, [("confidence:", "baseline: {season: 1d}\n  confidence:")], "evaluate.baseline.season", "field.conflict"),
        (R, [("confidence:", "baseline: {season: 1d}\n  confidence:")], "evaluate.baseline.season", "field.conflict"),
        (F, [MULTICLASS, ("confidence:", 'baseline: {sql: "temp"}\n  confidence:')], "evaluate.baseline.sql", "field.conflict"),
        (F, [("confidence:", 'baseline: {enabled: false, sql: "temp"}\n  confidence:')], "evaluate.baseline.sql", "field.conflict"),
        (F, [("confidence:", 'baseline: {sql: "dep_delay / 60.0"}\n  confidence:')], "evaluate.baseline.sql", "leakage.time"),
        (F, [("confidence:", 'baseline: {sql: "ARR_DELAY"}\n  confidence:')], "evaluate.baseline.sql", "leakage.time"),
        (F, [("confidence:", 'baseline: {sql: "epoch(landed_at)"}\n  confidence:')], "evaluate.baseline.sql", "leakage.time"),
        (F, [("confidence:", 'baseline: {sql: "aircraft_age"}\n  confidence:')], "evaluate.baseline.sql", "column.unknown"),
        (F, [("confidence:", 'baseline: {sql: "visibb / 10"}\n  confidence:')], "evaluate.baseline.sql", "column.unknown"),
        (F, [("confidence:", 'baseline: {sql: "random()"}\n  confidence:')], "evaluate.baseline.sql", "sql.forbidden"),
        (F, [("confidence:", 'baseline: {sql: "(SELECT 1)"}\n  confidence:')], "evaluate.baseline.sql", "sql.forbidden"),
        (F, [("confidence:", 'baseline: {sql: "temp -- now"}\n  confidence:')], "evaluate.baseline.sql", "sql.forbidden"),
        (
            F,
            [("confidence:", "baseline: {enabled: false}\n  severity: {naive_baseline: fail}\n  confidence:")],
            "evaluate.severity.naive_baseline",
            "gate.off",
        ),
        (F, [("confidence:", "baseline: {seasons: 1d}\n  confidence:")], "evaluate.baseline.seasons", "spec.unknown_key"),
    ],
)
def test_baseline_that_cannot_be_computed_or_sees_the_future_is_refused(
    refuse: Refuse, pipeline: str, changes: list[tuple[str, str]], field: str, code: str
) -> None:
    (problem,) = refuse(pipeline, *changes)
    assert (problem.field, problem.code) == (field, code)
    assert problem.line is not None


def test_every_unknown_column_of_a_baseline_is_named_with_the_nearest_one(refuse: Refuse) -> None:
    sql = "CASE WHEN visibb < 3 THEN temp ELSE zz.y + coalesce(Zzz, 'visibx') END"
    problems = refuse(F, ("confidence:", f'baseline: {{sql: "{sql}"}}\n  confidence:'))
    assert [(problem.code, problem.field) for problem in problems] == [("column.unknown", "evaluate.baseline.sql")] * 2
    assert [problem.message.split("'")[1] for problem in problems] == ["visibb", "Zzz"]
    assert problems[0].hint == "did you mean visib?"


def test_baseline_of_columns_known_before_the_decision_is_accepted(accept: Accept) -> None:
    sql = "CASE WHEN visib < 3 THEN 0.5 ELSE 0.2 END"
    assert accept(F, ("confidence:", f'baseline: {{sql: "{sql}"}}\n  confidence:')).evaluate.baseline.sql == sql
