"""Gates fail closed: a table of numbers and what they decide."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.contracts import canonical_json
from training.errors import DataError
from training.evaluation_record import EvaluationRecord
from training.registry.gates import Decision
from training.registry.gates import decide as decide_record
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Promote

NAN, INF = float("nan"), float("inf")
RANKING = load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml").evaluate
"""ndcg@10 at least 0.3, better by more than 0.5 % of the champion's, lower end of the interval above zero."""
ALL = Evaluate.model_validate(
    {
        "task": "binary",
        "primary": "auc",
        "metrics": {"revenue": "shop.metrics:revenue"},
        "minimum": {"auc": 0.6},
        "maximum": {"log_loss": 0.7},
        "slices": ["carrier", "origin"],
        "slice_drop": 0.02,
        "sensitive": ["origin"],
        "fairness": {"equal_opportunity": 0.1, "calibration": 0.05},
        "latency_ms": {"p50": 5, "p95": 10, "p99": 20},
        "checks": {"overlap": 0.2},
    }
)
"""Every gate there is."""
WITH_CANARY = Promote.model_validate({"model": "delays", "canary": {}})
BETTER = {"gain": 0.01, "low": 0.001, "high": 0.02, "probability": 0.99, "num_units": 900}
CHAMPION = {"version": "6", "model_uri": "file:///m", "weights_digest": "w", "as_of": "2026-03-01", "bounds": {}, "revision": 3}
GOOD: dict[str, Any] = {
    "format_version": 2,
    "version": "7",
    "champion": CHAMPION,
    "canary": {**CHAMPION, "version": "5"},
    "baseline": "champion",
    "metrics": {"auc": 0.71, "log_loss": 0.5, "revenue": 12.0},
    "champion_metrics": {"auc": 0.70, "log_loss": 0.51, "revenue": 11.0},
    "comparison": {**BETTER},
    "canary_comparison": {**BETTER},
    "slices": [
        {"columns": {"carrier": "UA"}, "support": 812, "is_small": False, "candidate": 0.71, "champion": 0.70},
        {"columns": {"origin": "JFK"}, "support": 400, "is_small": False, "candidate": 0.69, "champion": 0.70},
        {"columns": {"carrier": "UA", "origin": "LGA"}, "support": 7, "is_small": True, "candidate": 0.1, "champion": 0.9},
    ],
    "fairness": {
        "origin": {
            "equal_opportunity_gap": 0.05,
            "calibration_gap": 0.01,
            "values": [{"value": value, "support": 400, "is_small": False} for value in ("JFK", "LGA")],
        }
    },
    "latency": {"1": {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0}},
    "checks": {
        "leakage": {"feature": "distance", "value": 0.6},
        "overlap": {"entities": ["tail"], "share": 0.1, "num_test": 900},
        "drift": {"psi": 0.03},
        "constant": False,
    },
    "baselines": {
        "why_none": None,
        "best": "prior",
        "found": [{"name": "prior", "validation": 0.5, "coverage": 1.0, "metrics": {"auc": 0.5, "log_loss": 0.6, "revenue": 3.0}}],
        "comparison": {**BETTER, "gain": 0.21, "low": 0.2, "high": 0.22},
        "worse": [],
    },
    "num_rows": 900,
}
"""Passes every gate of `ALL`."""
GATES = (
    *("finite", "minimum", "maximum", "constant", "naive_baseline", "baseline", "improvement", "significance", "slices", "drift"),
    *("fairness", "fairness", "latency", "latency", "latency", "leakage", "overlap", "canary"),
)
NEEDED: tuple[tuple[str | int, ...], ...] = (
    *(("metrics", name) for name in ("auc", "log_loss", "revenue")),
    ("champion_metrics", "auc"),
    *(("comparison", name) for name in ("gain", "low", "high")),
    *(("canary_comparison", name) for name in ("low", "high")),
    *(("slices", index, name) for index in (0, 1) for name in ("candidate", "champion")),
    *(("fairness", "origin", name) for name in ("equal_opportunity_gap", "calibration_gap")),
    *(("latency", "1", f"{name}_ms") for name in ("p50", "p95", "p99")),
    *(("checks", *path) for path in (("leakage", "value"), ("overlap", "share"), ("drift", "psi"), ("constant",))),
)
"""Every number that some rule of `ALL` needs."""


def decide(evaluation: dict[str, Any], rules: Evaluate, **others: Any) -> Decision:
    return decide_record(EvaluationRecord.of(evaluation), rules, **others)


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """`GOOD` with another value at `path`."""
    evaluation = copy.deepcopy(GOOD)
    place: Any = evaluation
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return evaluation


def without(path: tuple[str | int, ...]) -> dict[str, Any]:
    """`GOOD` without what is at `path`."""
    evaluation = copy.deepcopy(GOOD)
    place: Any = evaluation
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return evaluation


def judged(evaluation: dict[str, Any], *, severity: dict[str, str] | None = None, approval: str = "automatic", **rules: Any) -> Decision:
    spec = Evaluate.model_validate({**ALL.model_dump(mode="json"), **rules, "severity": severity or {}})
    return decide(evaluation, spec, approval=approval, promote=WITH_CANARY)


def is_refused(evaluation: dict[str, Any], severity: dict[str, str], approval: str = "automatic") -> bool:
    """Return whether the gates reject, or the file cannot be read at all."""
    try:
        return judged(evaluation, severity=severity, approval=approval).outcome == "rejected"
    except DataError as err:
        return err.code == "evaluation.damaged"


def failed(decision: Decision) -> list[str]:
    return [reason.gate for reason in decision.reasons if not reason.passed]


def prefixes(path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield from (path[:length] for length in range(1, len(path) + 1))


def test_metrics_that_are_not_finite_are_named_with_their_values() -> None:
    evaluation = changed(("metrics", "auc"), "nan")
    del evaluation["metrics"]["revenue"]
    reason = next(reason for reason in judged(evaluation).reasons if reason.gate == "finite")
    assert reason.numbers == {"auc": "'nan'", "revenue": None}


def test_better_candidate_is_accepted_with_every_gates_words_and_numbers() -> None:
    decision = judged(GOOD)
    assert decision.outcome == "accepted"
    assert tuple(reason.gate for reason in decision.reasons) == GATES
    by_gate = {reason.gate: reason for reason in decision.reasons}
    assert by_gate["improvement"].numbers == {"gain": 0.01, "champion": 0.7, "asked": 0.0}
    assert by_gate["slices"].numbers["columns"] == {"origin": "JFK"}
    assert by_gate["slices"].numbers["drop"] == pytest.approx(0.01)
    assert by_gate["latency"].words == "p99 of one prediction 3 ms, required <= 20 ms"
    assert by_gate["overlap"].severity == "warn"
    assert json.loads(canonical_json(decision.reasons_json()))[-1]["numbers"] == {"low": 0.001, "high": 0.02, "confidence": 0.95}
    assert "\n" not in decision.summary


def test_without_limits_only_what_every_model_must_be_is_judged() -> None:
    rules = Evaluate(task="binary", primary="auc")
    decision = decide(GOOD, rules, approval="automatic", promote=WITH_CANARY)
    assert [r.gate for r in decision.reasons] == [
        *("finite", "constant", "naive_baseline", "baseline", "improvement", "significance", "drift", "leakage", "canary"),
    ]


def test_first_candidate_is_judged_by_itself() -> None:
    alone = {**GOOD, "champion": None, "canary": None, "champion_metrics": {}, "comparison": None, "canary_comparison": None}
    first = {**alone, "baseline": "no champion", "checks": {**GOOD["checks"], "drift": None}}
    assert judged(first).outcome == "accepted"
    assert failed(judged({**first, "metrics": {**GOOD["metrics"], "auc": 0.59}})) == ["minimum"]
    assert failed(judged({**first, "latency": None})) == ["latency"] * 3
    assert failed(judged({**first, "champion": CHAMPION})) == ["baseline"]
    assert failed(judged({**GOOD, "champion": None})) == ["baseline"]


@pytest.mark.parametrize(
    ("path", "value", "gates"),
    [
        (("metrics", "auc"), 0.59, ["minimum"]),
        (("metrics", "log_loss"), 0.71, ["maximum"]),
        (("comparison", "gain"), 0.0, ["improvement"]),
        (("comparison", "gain"), -0.01, ["improvement"]),
        (("comparison", "low"), 0.0, ["significance"]),
        (("comparison", "low"), -0.001, ["significance"]),
        (("slices", 0, "candidate"), 0.679, ["slices"]),
        (("slices", 1, "champion"), 0.72, ["slices"]),
        (("slices", 2, "is_small"), False, ["slices"]),
        (("fairness", "origin", "equal_opportunity_gap"), 0.11, ["fairness"]),
        (("fairness", "origin", "calibration_gap"), 0.06, ["fairness"]),
        (("latency", "1", "p50_ms"), 5.1, ["latency"]),
        (("latency", "1", "p95_ms"), 10.1, ["latency"]),
        (("latency", "1", "p99_ms"), 20.1, ["latency"]),
        (("checks", "leakage", "value"), 0.98, ["leakage"]),
        (("checks", "constant"), True, ["constant"]),
        (("canary_comparison", "low"), 0.0, ["canary"]),
        (("baseline",), "it is later (as of 2026-03-02)", ["baseline"]),
    ],
)
def test_what_is_not_enough_rejects_by_its_own_gate(path: tuple[str | int, ...], value: Any, gates: list[str]) -> None:
    decision = judged(changed(path, value))
    assert decision.outcome == "rejected"
    assert failed(decision) == gates


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        (("metrics", "auc"), 0.6),
        (("metrics", "log_loss"), 0.7),
        (("fairness", "origin", "equal_opportunity_gap"), 0.1),
        (("latency", "1", "p95_ms"), 10),
        (("checks", "overlap", "share"), 0.2),
        (("checks", "drift", "psi"), 0.25),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_value_exactly_at_its_limit_passes(path: tuple[str | int, ...], limit: float) -> None:
    assert failed(judged(changed(path, limit))) == []


def test_reason_about_the_canary_names_its_version() -> None:
    [reason] = [reason for reason in judged(GOOD).reasons if reason.gate == "canary"]
    assert "the canary, version 5," in reason.words


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_formats_are_judged(version: int) -> None:
    assert failed(judged(changed(("format_version",), version))) == []


@pytest.mark.parametrize(
    ("path", "value", "gate"), [(("checks", "overlap", "share"), 0.21, "overlap"), (("checks", "drift", "psi"), 0.26, "drift")]
)
def test_overlap_and_drift_are_only_said_unless_the_spec_is_stricter(path: tuple[str, ...], value: float, gate: str) -> None:
    decision = judged(changed(path, value))
    assert decision.outcome == "accepted"
    assert failed(decision) == [gate]
    assert decision.summary.startswith("warning: ")
    assert judged(changed(path, value), severity={gate: "approve"}).outcome == "needs_approval"
    assert judged(changed(path, value), severity={gate: "fail"}).outcome == "rejected"


@pytest.mark.parametrize(
    ("path", "value", "gate"),
    [
        (("metrics", "auc"), 0.59, "minimum"),
        (("metrics", "log_loss"), 0.71, "minimum"),
        (("comparison", "gain"), -0.01, "improvement"),
        (("comparison", "low"), -0.01, "significance"),
        (("slices", 0, "candidate"), 0.6, "slices"),
        (("fairness", "origin", "calibration_gap"), 0.06, "fairness"),
        (("latency", "1", "p99_ms"), 21.0, "latency"),
        (("checks", "leakage", "value"), 0.99, "leakage"),
        (("checks", "overlap", "share"), 0.3, "overlap"),
        (("checks", "drift", "psi"), 0.3, "drift"),
    ],
)
def test_severity_says_what_a_gate_does_that_is_not_passed(path: tuple[str | int, ...], value: float, gate: str) -> None:
    outcomes = {severity: judged(changed(path, value), severity={gate: severity}).outcome for severity in ("warn", "approve", "fail")}
    assert outcomes == {"warn": "accepted", "approve": "needs_approval", "fail": "rejected"}
    assert judged(changed(path, value), severity={gate: "warn"}, approval="required").outcome == "needs_approval"


@pytest.mark.parametrize("severity", ["warn", "approve"])
@pytest.mark.parametrize("path", NEEDED, ids=lambda path: ".".join(map(str, path)))
def test_what_is_missing_or_not_finite_rejects_at_every_severity(path: tuple[str | int, ...], severity: str) -> None:
    names = ("minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift")
    lenient = dict.fromkeys(names, severity)
    for value in (NAN, INF, -INF, "nan", "0.5", None, [], 10**400, True if path[-1] != "constant" else 1):
        assert is_refused(changed(path, value), lenient), value
    for prefix in prefixes(path):
        if not isinstance(prefix[-1], int):
            assert judged(without(prefix), severity=lenient).outcome == "rejected", prefix
            assert is_refused(changed(prefix, None), lenient), prefix


@given(
    st.sampled_from(NEEDED), st.sampled_from([NAN, INF, -INF, "nan", "inf", None]), st.sampled_from(["automatic", "required"]), st.data()
)
def test_nothing_unknown_is_ever_accepted_or_put_to_a_person(path: tuple[str, ...], value: Any, approval: str, data: st.DataObject) -> None:
    names = ("minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift")
    severity = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(["warn", "approve", "fail"])))
    assert is_refused(changed(path, value), severity, approval)


@given(
    st.lists(st.tuples(st.sampled_from([path for path in NEEDED if path[-1] != "constant"]), st.floats(-2, 30)), max_size=4),
    st.sampled_from(["minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift"]),
    st.dictionaries(st.sampled_from(["minimum", "improvement", "slices", "latency"]), st.sampled_from(["warn", "approve", "fail"])),
    st.sampled_from(["automatic", "required"]),
)
def test_stricter_severity_never_decides_more_leniently(
    changes: list[tuple[tuple[str | int, ...], float]], gate: str, others: dict[str, str], approval: str
) -> None:
    evaluation = copy.deepcopy(GOOD)
    for path, value in changes:
        place: Any = evaluation
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    strictness = ["accepted", "needs_approval", "rejected"]
    found = [
        strictness.index(judged(evaluation, severity={**others, gate: severity}, approval=approval).outcome)
        for severity in ("warn", "approve", "fail")
    ]
    assert found == sorted(found)


def test_approval_is_never_taken_for_granted() -> None:
    decision = judged(GOOD, approval="required")
    assert decision.outcome == "needs_approval"
    assert decision.summary == "the spec asks for a person's approval (promote.approval), so nothing is promoted by itself"
    assert judged(GOOD, approval="whatever").outcome == "needs_approval"
    assert judged(changed(("metrics", "auc"), NAN), approval="required").outcome == "rejected"


@pytest.mark.parametrize("champion", [CHAMPION, None])
@pytest.mark.parametrize("baseline", ["it is later (as of 2026-03-01)", "its train rows end after the test rows begin", None])
def test_no_approval_is_requested_for_an_older_model(baseline: Any, champion: Any) -> None:
    backwards = {**GOOD, "baseline": baseline, "champion": champion}
    lenient = dict.fromkeys(("minimum", "improvement", "significance", "slices", "drift"), "warn")
    decision = judged(backwards, severity=lenient, approval="required")
    assert decision.outcome == "rejected"
    assert "nothing is promoted backwards" in decision.summary


def test_improvement_is_a_share_of_the_champions_or_in_the_metrics_own_units() -> None:
    assert judged(GOOD, improvement={"relative": 0.014}).outcome == "accepted"
    assert failed(judged(GOOD, improvement={"relative": 0.0143})) == ["improvement"]
    assert judged(GOOD, improvement={"absolute": 0.0099}).outcome == "accepted"
    assert failed(judged(GOOD, improvement={"absolute": 0.01})) == ["improvement"]


def test_example_pipeline_asks_half_a_percent_of_the_champion() -> None:
    ranked = {**GOOD, "metrics": {"ndcg@10": 0.61}, "champion_metrics": {"ndcg@10": 0.60}, "canary": None}
    ranked["baselines"] = {"why_none": "in this test"}
    assert decide(ranked, RANKING, approval="automatic").outcome == "accepted"
    assert failed(decide({**ranked, "comparison": {**BETTER, "gain": 0.003}}, RANKING, approval="automatic")) == ["improvement"]


def test_slices_of_a_metric_that_is_better_when_lower_are_compared_the_other_way_round() -> None:
    rules = Evaluate(task="regression", primary="rmse", slices=("carrier",), slice_drop=0.5)

    def decision(candidate: float) -> Decision:
        one = {"columns": {"carrier": "UA"}, "support": 800, "is_small": False, "candidate": candidate, "champion": 3.0}
        others = {"metrics": {"rmse": 2.9}, "champion_metrics": {"rmse": 3.0}, "slices": [one], "baselines": {"why_none": "in this test"}}
        return decide({**GOOD, **others}, rules, approval="automatic")

    assert decision(1.0).outcome == "accepted"
    assert failed(decision(3.6)) == ["slices"]


def test_slices_without_support_are_a_warning_and_a_column_without_any_slice_rejects() -> None:
    small = [{**entry, "is_small": True, "candidate": 0.0} for entry in GOOD["slices"]]
    decision = judged({**GOOD, "slices": small})
    assert (decision.outcome, failed(decision)) == ("accepted", ["slices"])
    assert decision.summary.startswith("warning: not judged: none of 3 slices has slice_support = 100 rows")
    assert judged({**GOOD, "slices": small}, severity={"slices": "fail"}).outcome == "accepted"
    assert judged({**GOOD, "slices": GOOD["slices"][:1]}).outcome == "rejected"


def test_fairness_gap_between_values_without_support_is_a_warning() -> None:
    values = [{"value": "JFK", "support": 400, "is_small": False}, {"value": "LGA", "support": 7, "is_small": True}]
    origin = {"equal_opportunity_gap": None, "calibration_gap": None, "values": values}
    decision = judged({**GOOD, "fairness": {"origin": origin}})
    assert (decision.outcome, failed(decision)) == ("accepted", ["fairness", "fairness"])
    assert "warning: equal opportunity gap between values of origin: not judged, fewer than two values" in decision.summary
    assert judged({**GOOD, "fairness": {"origin": {**origin, "values": []}}}).outcome == "rejected"


@pytest.mark.parametrize(("metric", "gate", "value", "champion"), [("auc", "minimum", 0.59, 0.50), ("log_loss", "maximum", 0.71, 0.95)])
def test_bound_that_rejects_a_surely_better_candidate_than_a_worse_champion_says_so(
    metric: str, gate: str, value: float, champion: float
) -> None:
    better = changed(("metrics", metric), value)
    better["champion_metrics"][metric] = champion
    rejected = judged(better)
    assert rejected.outcome == "rejected"
    assert f"the champion is further from it ({champion:g}), and the candidate is surely better than the champion" in rejected.summary
    assert f"(evaluate.severity: {{{gate}: approve}} would ask a person)" in rejected.summary
    asked = judged(better, severity={gate: "approve"})
    assert asked.outcome == "needs_approval"
    assert "would ask a person" not in asked.summary


def test_bound_says_nothing_of_the_champion_where_it_is_not_worse_or_the_gain_is_not_sure() -> None:
    below = changed(("metrics", "auc"), 0.59)
    unsure = {**below, "champion_metrics": {**GOOD["champion_metrics"], "auc": 0.5}, "comparison": {**BETTER, "low": -0.001}}
    for evaluation in (below, unsure):
        assert "champion" not in next(reason.words for reason in judged(evaluation).reasons if reason.gate == "minimum")


def test_maximum_has_a_severity_of_its_own() -> None:
    above = changed(("metrics", "log_loss"), 0.71)
    assert judged(above, severity={"minimum": "fail", "maximum": "warn"}).outcome == "accepted"
    assert judged(above, severity={"minimum": "warn", "maximum": "fail"}).outcome == "rejected"


def test_canary_judges_only_where_one_is_under_way_and_the_spec_has_canaries() -> None:
    worse = changed(("canary_comparison", "low"), -1.0)
    assert judged(worse).outcome == "rejected"
    assert judged({**worse, "canary": None}).outcome == "accepted"
    assert decide(worse, ALL, approval="automatic", promote=Promote(model="delays")).outcome == "accepted"
    assert decide(worse, ALL, approval="automatic").outcome == "accepted"


def test_evaluation_of_an_older_format_lacks_what_the_rules_ask_for() -> None:
    old = {name: GOOD[name] for name in ("version", "champion", "baseline", "champion_metrics", "comparison", "metrics")}
    decision = decide(old, Evaluate(task="binary", primary="auc"), approval="automatic")
    assert decision.outcome == "rejected"
    assert set(failed(decision)) == {"constant", "drift", "leakage", "naive_baseline"}
    assert "evaluate again" in decision.summary


def test_texts_have_no_feature_that_could_be_the_label() -> None:
    rules = Evaluate(task="language", primary="perplexity")
    evaluation = {**GOOD, "metrics": {"perplexity": 9.0}, "champion_metrics": {"perplexity": 9.5}}
    evaluation["checks"] = {**GOOD["checks"], "leakage": None}
    assert decide(evaluation, rules, approval="automatic").outcome == "accepted"


def test_summary_is_one_line_for_any_name_of_a_slice() -> None:
    hostile = changed(("slices", 0, "columns"), {"carrier": "U\nA\r\n<script>"})
    hostile["slices"][0]["candidate"] = 0.1
    assert judged(hostile).summary == "of 2 slices none may be worse by more than 0.02: carrier = U A <script> by +0.6"


@pytest.mark.parametrize(
    ("p95_ms", "waited_share", "outcome"),
    [
        (10.1, None, "rejected"),
        (10.1, 0.05, "rejected"),
        (10.1, 0.4, "accepted"),
        (20.0, 0.4, "accepted"),
        (20.1, 0.4, "rejected"),
        (None, 0.4, "rejected"),
    ],
)
def test_a_latency_above_its_limit_is_inconclusive_on_a_loaded_machine(
    p95_ms: float | None, waited_share: float | None, outcome: str
) -> None:
    measured = {"p50_ms": 1.0, "p95_ms": p95_ms, "p99_ms": 3.0, "waited_share": waited_share}
    decision = judged({**GOOD, "latency": {"1": measured}})
    assert decision.outcome == outcome
    words = [reason.words for reason in decision.reasons if reason.gate == "latency" and not reason.passed]
    assert len(words) == 1
    assert ("inconclusive, its calls waited 40% of their time for a CPU" in words[0]) == (outcome == "accepted")
