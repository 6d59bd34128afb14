"""Gates that compare: improvement, slices, fairness, bounds beside a champion, and what older evaluations lack."""

from __future__ import annotations

import pytest

from tests.unit.training.registry.good_evaluation import ALL, BETTER, GOOD, RANKING, changed, decide, failed, judged
from training.registry.gates.judging import Decision
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Promote

NAN = float("nan")


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
        others = {
            "metrics": {"rmse": 2.9, "bias": 0.1},
            "champion_metrics": {"rmse": 3.0},
            "slices": [one],
            "baselines": {"why_none": "in this test"},
        }
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
    rates = {"true_positive_rate": None, "calibration_error": None}
    values = [{"value": "JFK", "support": 400, "is_small": False, **rates}, {"value": "LGA", "support": 7, "is_small": True, **rates}]
    origin = {"equal_opportunity_gap": None, "calibration_gap": None, "values": values}
    decision = judged({**GOOD, "fairness": {"origin": origin}})
    assert (decision.outcome, failed(decision)) == ("accepted", ["fairness", "fairness"])
    assert "warning: equal opportunity gap between values of origin: not judged, fewer than two values" in decision.summary
    assert judged({**GOOD, "fairness": {"origin": {**origin, "values": []}}}).outcome == "rejected"


def origins(*values: tuple[str, int | None, float | None, float | None]) -> dict[str, object]:
    """Return what was measured of the column `origin`: value, positive labels, share of them that is found, calibration error."""
    names = ("value", "num_positives", "true_positive_rate", "calibration_error")
    treated = [{"support": 90, "is_small": False, **dict(zip(names, entry, strict=True))} for entry in values]
    gaps = {}
    for name, measured in (("equal_opportunity_gap", "true_positive_rate"), ("calibration_gap", "calibration_error")):
        known = [entry[measured] for entry in treated if entry[measured] is not None]
        gaps[name] = max(known) - min(known) if len(known) > 1 else None
    return {"origin": {**gaps, "values": treated}}


@pytest.mark.parametrize(("severity", "outcome"), [("fail", "rejected"), ("approve", "needs_approval"), ("warn", "accepted")])
def test_fairness_gap_without_positive_labels_follows_the_severity_of_the_gate(severity: str, outcome: str) -> None:
    fairness = origins(("JFK", 40, 0.7, 0.02), ("LGA", 0, None, 0.02))
    decision = judged({**GOOD, "fairness": fairness}, severity={"fairness": severity})
    assert (decision.outcome, failed(decision)) == (outcome, ["fairness"])
    words = "not judged: equal opportunity gap between values of origin, as fewer than two have a positive label; without one"
    assert f"{words}: LGA (10.0 % of the rows)" in decision.summary


def test_value_without_a_positive_label_beside_two_with_one_is_a_warning() -> None:
    fairness = origins(("JFK", 40, 0.7, 0.02), ("EWR", 40, 0.72, 0.02), ("LGA", 0, None, 0.02))
    decision = judged({**GOOD, "fairness": fairness})
    assert (decision.outcome, failed(decision)) == ("accepted", ["fairness"])
    assert "where there is no positive label: LGA (10.0 % of the rows)" in decision.summary
    apart = origins(("JFK", 40, 0.9, 0.02), ("EWR", 40, 0.72, 0.02), ("LGA", 0, None, 0.02))
    assert judged({**GOOD, "fairness": apart}).outcome == "rejected"


@pytest.mark.parametrize("num_positives", [0, 40])
def test_prediction_that_is_no_number_rejects_a_fairness_gap_with_or_without_positive_labels(num_positives: int) -> None:
    fairness = origins(("JFK", 40, 0.7, 0.02), ("EWR", 40, 0.7, 0.02), ("LGA", num_positives, None, None))
    decision = judged({**GOOD, "fairness": fairness}, severity={"fairness": "warn"})
    assert decision.outcome == "rejected"
    assert "a prediction of the rows behind the equal opportunity gap between values of origin is missing or no number" in decision.summary


@pytest.mark.parametrize(("metric", "gate", "value", "champion"), [("auc", "minimum", 0.59, 0.50), ("log_loss", "maximum", 0.71, 0.95)])
def test_bound_that_rejects_a_significantly_better_candidate_than_a_worse_champion_says_so(
    metric: str, gate: str, value: float, champion: float
) -> None:
    better = changed(("metrics", metric), value)
    better["champion_metrics"][metric] = champion
    rejected = judged(better)
    assert rejected.outcome == "rejected"
    assert [reason.numbers["champion"] for reason in rejected.reasons if reason.gate == gate and not reason.passed] == [champion]
    assert (
        f"the champion is further from it ({champion:g}), and the candidate is significantly better than the champion" in rejected.summary
    )
    assert f"(evaluate.severity: {{{gate}: approve}} would ask a person)" in rejected.summary
    asked = judged(better, severity={gate: "approve"})
    assert asked.outcome == "needs_approval"
    assert "would ask a person" not in asked.summary


def test_bound_says_nothing_of_the_champion_where_it_is_not_worse_or_the_gain_is_not_sure() -> None:
    below = changed(("metrics", "auc"), 0.59)
    worse = {**below, "champion_metrics": {**GOOD["champion_metrics"], "auc": 0.5}}
    unsure = [{**worse, "comparison": {**BETTER, "low": low}} for low in (-0.001, 0.0, "nan")]
    equal = {**below, "champion_metrics": {**GOOD["champion_metrics"], "auc": 0.59}}
    for evaluation in (below, *unsure, equal):
        assert "champion" not in next(reason.words for reason in judged(evaluation).reasons if reason.gate == "minimum")


def test_maximum_inherits_the_severity_of_minimum_unless_it_has_its_own() -> None:
    above = changed(("metrics", "log_loss"), 0.71)
    assert judged(above, severity={}).outcome == "rejected"
    assert judged(above, severity={"minimum": "warn"}).outcome == "accepted"
    assert judged(above, severity={"minimum": "fail", "maximum": "warn"}).outcome == "accepted"
    assert judged(above, severity={"minimum": "warn", "maximum": "fail"}).outcome == "rejected"


def test_canary_judges_only_where_one_is_under_way_and_the_spec_has_canaries() -> None:
    worse = changed(("canary_comparison", "low"), -1.0)
    assert judged(worse).outcome == "rejected"
    assert judged({**worse, "canary": None}).outcome == "accepted"
    assert decide(worse, ALL, approval="automatic", promote=Promote(model="delays")).outcome == "accepted"
    assert decide(worse, ALL, approval="automatic").outcome == "accepted"


def test_canary_that_is_later_is_said_not_to_be_compared() -> None:
    decision = judged({**GOOD, "canary_comparison": None, "canary_baseline": "it is later (as of 2026-03-02)"})
    assert decision.outcome == "rejected"
    assert "is not compared: it is later (as of 2026-03-02)" in decision.summary


def test_evaluation_that_lacks_what_the_rules_ask_for_is_rejected() -> None:
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
        (10.1, NAN, "rejected"),
        (10.1, 0.1, "rejected"),
        (10.1, 0.11, "accepted"),
        (20.0, 0.4, "accepted"),
        (20.1, 0.4, "rejected"),
        (NAN, 0.4, "rejected"),
    ],
)
def test_a_latency_above_its_limit_is_inconclusive_on_a_loaded_machine(p95_ms: float, waited_share: float, outcome: str) -> None:
    measured = {"p50_ms": 1.0, "p95_ms": p95_ms, "p99_ms": 3.0, "rows_per_second": 900.0, "waited_share": waited_share}
    decision = judged({**GOOD, "latency": {"1": measured}})
    assert decision.outcome == outcome
    words = [reason.words for reason in decision.reasons if reason.gate == "latency" and not reason.passed]
    assert len(words) == 1
    assert (f"inconclusive, its calls waited {waited_share:.0%} of their time for a CPU" in words[0]) == (outcome == "accepted")
