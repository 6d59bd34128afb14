"""Promotion as a stage: what each order decides, what its evidence holds, and that an attempt after a death finds what was done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.training.stages.evaluate_bench import AS_OF, EvaluateBench
from training.contracts import ExitCode, StageResult
from training.errors import UnavailableError
from training.evaluation import latency
from training.registry.ledger.decisions import answer_request, approved_findings
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.retraining import retraining_lines
from training.registry.ledger.version_weights import MLflowRegistration

pytestmark = pytest.mark.slow

DIGEST = "f" * 64
LATENCY = {str(batch): {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "rows_per_second": 9.0, "waited_share": 0.0} for batch in (1, 256)}
BLIND = {"    value: {transform: number}\n": ""}
NO_BETTER_THAN_NAIVE = {"primary: auc": "primary: auc, severity: {naive_baseline: warn}"}
"""A model that knows only noise would be refused as the first champion."""
CANARY = {"promote: {model: orders}": "promote: {model: orders, canary: {for: 2d, support: 100}}"}


@pytest.fixture(scope="module", autouse=True)
def _nobody_else(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No tracking server and no registry: what follows the ledger has tests of its own."""
    versions = iter(range(1, 100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('database')}/nightshift.db")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        patch.setattr(
            "training.registry.mlflow.versions.register_candidate",
            lambda *_args, **_named: MLflowRegistration(number=str(next(versions)), logged_model="m-7", artifact_digest=DIGEST),
        )
        patch.setattr("training.stages.promote.mirror", lambda ledger, _store, model, **_options: ledger.standing(model))
        patch.setattr("training.stages.promote.registration_now", lambda _store, _model, _origin, hint: hint)
        patch.setattr(latency, "measure", lambda *_args, **_named: LATENCY)
        yield


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> EvaluateBench:
    return EvaluateBench(tmp_path_factory.mktemp("promote"), "binary")


@pytest.fixture(scope="module")
def models(bench: EvaluateBench) -> dict[str, StageResult]:
    return {"blind": bench.train(BLIND, work="blind"), "good": bench.train(work="good")}


@pytest.fixture
def ledger(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    return Ledger()


def seat_of(ledger: Ledger, alias: str) -> dict[str, Any] | None:
    standing = ledger.standing("orders")
    holder = getattr(standing, alias)
    if holder is None:
        return None
    # Its rows lie before those of the test.
    long_ago = {split: ["2025-01-01T00:00:00+00:00", "2025-02-01T00:00:00+00:00"] for split in ("train", "validation")}
    bounds = {**long_ago, "test": ["2025-02-01T00:00:00+00:00", (AS_OF - timedelta(days=6)).isoformat()]}
    named = {name: getattr(holder, name) for name in ("version", "model_uri", "weights_digest")}
    return {**named, "as_of": "2026-01-01T02:00:00+00:00", "bounds": bounds, "revision": standing.revision}


def night(
    bench: EvaluateBench, ledger: Ledger, model: StageResult, work: str, replaced: dict[str, str] | None = None, **parameters: Any
) -> StageResult:
    """Evaluate a model against the standing, and decide."""
    seats = {alias: seat_of(ledger, alias) for alias in ("champion", "canary")}
    evaluation, _ = bench.evaluate(model, replaced, work=work, **seats)
    inputs = {
        "model": model.artifact_uri,
        "evaluation": evaluation.artifact_uri,
        "dataset": bench.dataset_uri,
        "snapshot": bench.snapshot_uri,
    }
    return bench.stage("promote", inputs, {"triggered_by": "ann", "report_uri": evaluation.reports["evaluation"], **parameters}, work=work)


def test_a_decision_has_what_its_run_cost_for_the_advice_on_retraining(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    costs = {"promote: {model: orders}": "promote: {model: orders}\ncosts: {hour: 4, currency: EUR}"}
    night(bench, ledger, models["good"], "priced", costs, process_hours=0.5)
    assert retraining_lines(ledger, "orders")[1] == "weekly: 52 runs, 104 EUR a year"


def test_a_first_model_is_champion_with_all_that_a_reader_needs(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    decided = night(bench, ledger, models["good"], "first")
    assert (decided.scalars["decision"], decided.scalars["action"], decided.scalars["semantic_version"]) == (
        "accepted",
        "promoted",
        "1.0.0",
    )
    (entry,) = ledger.history("orders")
    assert entry.evidence["triggered_by"] == "ann"
    assert entry.evidence["input_schema"] == {"channel": "string", "country": "string", "noise": "double", "value": "double"}
    assert entry.evidence["output_schema"] == {"label": "cancelled", "rule": None, "task": "binary"}
    assert entry.evidence["framework"].startswith("boosted_trees, xgboost-cpu 3.")
    assert entry.evidence["snapshot_digest"]
    assert entry.evidence["report_uri"].startswith("file://")
    champion = ledger.standing("orders").champion
    assert champion is not None
    assert champion.artifact_digest == DIGEST


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({}, []),
        ({"train.epochs": 5}, []),
        (
            {"evaluate.minimum.auc": 0.1, "evaluate.confidence": 0.9, "train.epochs": 5},
            ["the trigger of this run set evaluate.confidence 0.9, evaluate.minimum.auc 0.1"],
        ),
    ],
    ids=["none", "training", "thresholds"],
)
def test_decision_records_the_overrides_of_its_run(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger, overrides: dict[str, Any], words: list[str]
) -> None:
    night(bench, ledger, models["good"], f"overrides-{len(overrides)}", overrides=overrides)
    (entry,) = ledger.history("orders")
    assert entry.evidence["overrides"] == overrides
    assert [reason.words for reason in entry.reasons if reason.gate == "overrides"] == words


def test_the_champion_evaluated_again_after_an_edit_of_the_gates_is_recorded_as_accepted_and_moves_nothing(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    night(bench, ledger, models["good"], "champion")
    before = ledger.standing("orders")
    edited = {"primary: auc": "primary: auc, minimum: {auc: 0.55}"}
    again = night(bench, ledger, models["good"], "edited gates", edited)
    assert (again.scalars["decision"], again.scalars["action"]) == ("accepted", "recorded")
    assert str(again.scalars["reasons"]).startswith("the candidate is the champion: same weights, nothing moves")
    assert ledger.standing("orders") == before
    assert [entry.outcome for entry in ledger.history("orders")] == ["accepted", "accepted"]


def test_the_champion_that_does_not_pass_an_edited_gate_is_recorded_as_rejected_and_stays_champion(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    night(bench, ledger, models["good"], "kept champion")
    before = ledger.standing("orders")
    again = night(bench, ledger, models["good"], "higher minimum", {"primary: auc": "primary: auc, minimum: {auc: 0.999}"})
    assert (again.scalars["decision"], again.scalars["action"]) == ("rejected", "recorded")
    (failed, same) = [reason for reason in ledger.history("orders")[-1].reasons if reason.gate in ("minimum", "baseline")]
    assert (failed.gate, failed.passed) == ("minimum", False)
    assert str(same.words).startswith("the candidate is the champion (version ")
    assert ledger.standing("orders") == before


def test_a_better_model_becomes_canary_and_then_champion_when_its_time_has_come(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    night(bench, ledger, models["blind"], "worse", {**CANARY, **NO_BETTER_THAN_NAIVE})
    assert night(bench, ledger, models["good"], "better", CANARY).scalars["canary_version"] is not None
    seats = {alias: seat_of(ledger, alias) for alias in ("champion", "canary")}
    judged = bench.stage("canary", {"dataset": bench.dataset_uri}, seats, work="judged")
    since = ledger.standing("orders").canary
    assert since is not None
    began = datetime.fromisoformat(since.since)
    for days, decision, action in ((1, "waiting", "recorded"), (3, "accepted", "promoted")):
        order = {"kind": "canary", "now": (began + timedelta(days=days)).isoformat()}
        found = bench.stage("promote", {"evaluation": judged.artifact_uri}, {"order": order}, work=f"after {days}")
        assert (found.scalars["decision"], found.scalars["action"]) == (decision, action)
    # The same order once more, its first answer lost: what was done is found.
    again = bench.stage("promote", {"evaluation": judged.artifact_uri}, {"order": order}, work="again")
    assert again.scalars["key"] == found.scalars["key"]
    standing = ledger.standing("orders")
    assert standing.canary is None
    assert standing.champion is not None
    assert standing.champion.weights_digest == models["good"].scalars["weights_digest"]


def test_a_canary_in_simulated_time_is_judged_by_the_instants_of_nights_and_its_row_says_so(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    night(bench, ledger, models["blind"], "worse simulated", {**CANARY, **NO_BETTER_THAN_NAIVE})
    night(bench, ledger, models["good"], "better simulated", CANARY)
    seats = {alias: seat_of(ledger, alias) for alias in ("champion", "canary")}
    since = ledger.standing("orders").canary
    assert since is not None
    given = {**seats, "simulated": True, "canary_since": (AS_OF - timedelta(days=3)).isoformat()}
    judged = bench.stage("canary", {"dataset": bench.dataset_uri}, given, work="judged simulated")
    words = f"simulated time: as of {AS_OF.isoformat()}, canary as of {(AS_OF - timedelta(days=3)).isoformat()}"
    assert words in bench.store.reports.get(judged.reports["canary"]).decode()
    for days, decision in ((1, "waiting"), (3, "accepted")):
        now = (since.as_of + timedelta(days=days)).isoformat()
        parameters = {"order": {"kind": "canary", "now": now}, "simulated": True}
        found = bench.stage("promote", {"evaluation": judged.artifact_uri}, parameters, work=f"simulated after {days}")
        assert found.scalars["decision"] == decision
        assert f"simulated time: as of {now}, canary as of {since.as_of.isoformat()}; " in str(found.scalars["headline"])
    row = ledger.history("orders")[-1]
    assert (row.action, row.evidence["simulated"], row.reasons[0].gate) == ("promoted", True, "simulated")


@pytest.mark.parametrize(("is_approved", "decision"), [(True, "accepted"), (False, "rolled_back")])
def test_bound_that_a_person_approved_is_not_judged_again_by_the_canary(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger, is_approved: bool, decision: str
) -> None:
    strict = {**CANARY, "primary: auc": "primary: auc, minimum: {auc: 0.999}, severity: {minimum: approve}"}
    night(bench, ledger, models["blind"], f"champion {decision}", {**CANARY, **NO_BETTER_THAN_NAIVE})
    if is_approved:
        assert night(bench, ledger, models["good"], "asked", strict).scalars["decision"] == "needs_approval"
        (request,) = ledger.open_requests("orders")
        answer_request(ledger, request, "approved", by="eve", words="better than what we have")
    else:
        # The candidate reached the bound of its night; what arrives now does not reach the bound of today.
        night(bench, ledger, models["good"], "accepted", CANARY)
    standing = ledger.standing("orders")
    assert standing.canary is not None
    seats = {alias: seat_of(ledger, alias) for alias in ("champion", "canary")}
    bench.spec = bench.spec_of(strict)
    approved = approved_findings(ledger, standing)
    parameters = {**seats, "canary_since": (AS_OF - timedelta(days=3)).isoformat(), "canary_approved": approved}
    judged = bench.stage("canary", {"dataset": bench.dataset_uri}, parameters, work=f"judged {decision}")
    order = {"kind": "canary", "now": (datetime.fromisoformat(standing.canary.since) + timedelta(days=3)).isoformat()}
    found = bench.stage("promote", {"evaluation": judged.artifact_uri}, {"order": order}, work=f"settled {decision}")
    assert found.scalars["decision"] == decision
    page = bench.store.reports.get(judged.reports["canary"]).decode()
    assert ("eve approved a candidate that misses this bound" in page) == is_approved
    assert f"</span> {'Promoted' if is_approved else 'Rolled back'}</h2>" in page


def test_first_model_that_is_no_better_than_a_naive_baseline_is_rejected_and_the_report_says_so(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    decided = night(bench, ledger, models["blind"], "no better than naive")
    assert (decided.scalars["decision"], ledger.standing("orders").champion) == ("rejected", None)
    assert "best naive baseline prior 0.5" in str(decided.scalars["reasons"])


def test_a_decision_that_is_followed_later_has_the_number_that_mlflow_has_now(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    decided = night(bench, ledger, models["good"], "renumbered")
    again = MLflowRegistration(number="41", logged_model="m-41", artifact_digest=DIGEST)
    ledger.note_registration("orders", str(models["good"].scalars["weights_digest"]), again)
    order = {"kind": "follow", "key": decided.scalars["key"]}
    assert bench.stage("promote", {}, {"order": order}, work="followed").scalars["version"] == "41" != decided.scalars["version"]


def test_an_order_to_follow_an_unknown_decision_is_denied(bench: EvaluateBench, ledger: Ledger) -> None:
    ended, work_folder = bench.attempt("promote", {}, {"order": {"kind": "follow", "key": "k" * 64}}, "nobody's")
    assert ended is ExitCode.DENIED
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "decision.unknown"


def test_another_models_evaluation_promotes_nothing(bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger) -> None:
    evaluation, _ = bench.evaluate(models["good"], work="of the good one")
    inputs = {
        "model": models["blind"].artifact_uri,
        "evaluation": evaluation.artifact_uri,
        "dataset": bench.dataset_uri,
        "snapshot": bench.snapshot_uri,
    }
    ended, work_folder = bench.attempt("promote", inputs, {}, "mixed")
    assert ended is ExitCode.DENIED
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "evaluation.mismatch"
    assert ledger.history("orders") == []


@pytest.mark.parametrize("approval", ["automatic", "required"])
def test_a_stage_by_hand_promotes_no_model_of_a_night_that_has_not_come(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger, monkeypatch: pytest.MonkeyPatch, approval: str
) -> None:
    rules = {"promote: {model: orders}": f"promote: {{model: orders, approval: {approval}}}"}
    evaluation, _ = bench.evaluate(models["good"], rules, work=f"future {approval}")
    inputs = {
        "model": models["good"].artifact_uri,
        "evaluation": evaluation.artifact_uri,
        "dataset": bench.dataset_uri,
        "snapshot": bench.snapshot_uri,
    }
    monkeypatch.setattr("tests.unit.training.stages.evaluate_bench.AS_OF", datetime.now(UTC) + timedelta(days=1))
    ended, work_folder = bench.attempt("promote", inputs, {}, f"future {approval}")
    assert ended is ExitCode.DENIED
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "as_of.future"
    assert ledger.history("orders") == []


def test_candidate_measured_before_the_first_champion_requests_no_approval_later(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    rules = {"promote: {model: orders}": "promote: {model: orders, approval: required}"}
    evaluation, _ = bench.evaluate(models["good"], rules, work="against nobody")
    night(bench, ledger, models["blind"], "the champion meanwhile", NO_BETTER_THAN_NAIVE)
    bench.spec = bench.spec_of(rules)
    inputs = {
        "model": models["good"].artifact_uri,
        "evaluation": evaluation.artifact_uri,
        "dataset": bench.dataset_uri,
        "snapshot": bench.snapshot_uri,
    }
    ended, work_folder = bench.attempt("promote", inputs, {}, "against nobody")
    assert ended is ExitCode.DENIED
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "promotion.conflict"
    assert ledger.open_requests("orders") == []


def test_a_question_does_not_wait_for_mlflow_and_a_promotion_does(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **_options: Any) -> None:
        raise UnavailableError("mlflow.unavailable", "MLflow is away")

    asks = {"promote: {model: orders}": "promote: {model: orders, approval: required}"}
    evaluation, _ = bench.evaluate(models["good"], asks, work="asks")
    inputs = {
        "model": models["good"].artifact_uri,
        "evaluation": evaluation.artifact_uri,
        "dataset": bench.dataset_uri,
        "snapshot": bench.snapshot_uri,
    }
    monkeypatch.setattr("training.stages.promote.mirror", away)
    asked = bench.stage("promote", inputs, {}, work="asks")
    assert asked.scalars["decision"] == "needs_approval"
    other, _ = bench.evaluate(models["blind"], NO_BETTER_THAN_NAIVE, work="promotes")
    inputs |= {"model": models["blind"].artifact_uri, "evaluation": other.artifact_uri}
    ended, _ = bench.attempt("promote", inputs, {}, "promotes")
    assert ended is ExitCode.UNAVAILABLE


def test_reasons_of_an_approval_are_those_of_the_model_and_the_answer_and_not_the_rule_that_asked(
    bench: EvaluateBench, models: dict[str, StageResult], ledger: Ledger
) -> None:
    asks = {"promote: {model: orders}": "promote: {model: orders, approval: required}"}
    asked = night(bench, ledger, models["good"], "asked by a rule", asks)
    assert asked.scalars["decision"] == "needs_approval"
    assert "auc is " in str(asked.scalars["reasons"])
    (request,) = ledger.open_requests("orders")
    ending = answer_request(ledger, request, "approved", by="eve", words="approved by eve: fine")
    followed = bench.stage("promote", {}, {"order": {"kind": "follow", "key": ending.key}}, work="follows an answer")
    reasons = str(followed.scalars["reasons"])
    assert "auc is " in reasons
    assert reasons.endswith("approved by eve: fine")
