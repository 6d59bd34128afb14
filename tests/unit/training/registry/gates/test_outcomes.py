"""Synthetic models of known quality, overall and by slice, through the evaluation's own measures: what the gates make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from tests.unit.training.registry.good_evaluation import BLOCKS, PRIOR
from tests.unit.training.registry.good_evaluation import CHAMPION as CHAMPION_SEAT
from training.evaluation.leakage_checks import strongest_feature
from training.evaluation.measures import Measures
from training.evaluation.record import Blocks, Comparison, EvaluationRecord
from training.evaluation.rows import LabelledRows
from training.evaluation.slices import values_of
from training.registry.gates.judging import Decision, decide
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Promote

Floats = NDArray[np.float64]
NUM_ROWS, GROUP_ROWS, SEED = 6000, 10, 11
SMALL = 60
CANARY = Promote.model_validate({"model": "delays", "canary": {}})
SLICED = {"slices": ["carrier", "origin"], "slice_drop": 0.05}


def frame() -> pd.DataFrame:
    """Carriers AA and UA, origins JFK and LGA, evenly; the last 60 rows are of the carrier ZZ."""
    numbers = np.arange(NUM_ROWS)
    carrier = np.where(numbers >= NUM_ROWS - SMALL, "ZZ", np.where(numbers % 2 == 0, "AA", "UA"))
    origin = np.where(numbers // 2 % 2 == 0, "JFK", "LGA")
    distance = np.random.default_rng(SEED).normal(size=NUM_ROWS)
    return pd.DataFrame({"carrier": carrier, "origin": origin, "distance": distance})


FRAME = frame()
LABELS = (np.random.default_rng(SEED + 1).random(NUM_ROWS) < 0.3).astype(np.float64)
GROUPS = np.repeat(np.arange(NUM_ROWS // GROUP_ROWS), GROUP_ROWS)


def scores(strength: float, where: Mapping[tuple[str, ...], float] | None = None, *, shift: float = 0.0, seed: int = 2) -> Floats:
    """Return probabilities of a model that tells labels apart by `strength`, by another one in the rows with all the values of a key.

    Args:
        strength: distance of the classes' means, in standard deviations of the noise.
        where: values, of one column or two, to the strength there.
        shift: added to all scores where the origin is LGA.
        seed: of the model's own noise; 0.8 of the noise's variance is shared by all models.
    """
    strengths = np.full(NUM_ROWS, strength)
    for values, other in (where or {}).items():
        strengths[FRAME[["carrier", "origin"]].apply(lambda row, values=values: set(values) <= set(row), axis=1).to_numpy()] = other
    shared, own = (np.random.default_rng([SEED, number]).normal(size=NUM_ROWS) for number in (0, seed))
    found = strengths * LABELS + np.sqrt(0.8) * shared + np.sqrt(0.2) * own + shift * (FRAME["origin"] == "LGA").to_numpy() - strength / 2
    return np.asarray(1 / (1 + np.exp(-found)))


CHAMPION = scores(1.0, seed=1)


def by_rows(found: Comparison | None) -> Comparison | None:
    """As an evaluation has it whose rows are independent: the interval by blocks is no wider than the one by rows."""
    return found and found.model_copy(update={"blocks": Blocks.model_validate(BLOCKS), "decided_by": "rows"})


def decision(
    candidate: Floats,
    rules: Mapping[str, Any],
    *,
    champion: Floats | None = CHAMPION,
    canary: Floats | None = None,
    table: pd.DataFrame = FRAME,
    labels: Floats = LABELS,
    approval: str = "automatic",
) -> Decision:
    """Evaluate as a night does, and decide."""
    spec = Evaluate.model_validate({"task": "binary", "primary": "auc", **rules})
    values = {name: values_of(table[name]) for name in (*spec.slices, *spec.sensitive)}
    measures = Measures(spec, LabelledRows(values=values, labels=labels, groups=GROUPS if spec.task == "ranking" else None), seed=SEED)
    features = table[["distance"]]
    leakage = strongest_feature(spec.task, ["distance"], features[:3000], labels[:3000], features[3000:], labels[3000:])
    measured = measures.measured(candidate, champion)
    facts = EvaluationRecord(
        format_version=1,
        champion=None if champion is None else CHAMPION_SEAT,
        canary=None if canary is None else CHAMPION_SEAT,
        baseline="no champion" if champion is None else "champion",
        num_rows=NUM_ROWS,
        comparison=by_rows(measured.comparison),
        canary_comparison=None if canary is None else by_rows(measures.compare(candidate, canary)),
        baselines={"best": "prior", "found": [{**PRIOR, "metrics": measures.metrics(np.full(NUM_ROWS, LABELS.mean()))}]},
        checks=measures.checks(candidate, champion).model_copy(update={"leakage": leakage}),
    )
    record = EvaluationRecord.of_parts(measured, facts)
    return decide(EvaluationRecord.read(record.to_bytes()), spec, approval=approval, promote=CANARY)


def failed(found: Decision) -> set[str]:
    return {reason.gate for reason in found.reasons if not reason.passed}


def with_nan(values: Floats) -> Floats:
    broken = values.copy()
    broken[17] = np.nan
    return broken


BETTER, WORSE = scores(1.3), scores(0.8)
EQUAL = scores(1.0, seed=8)
"""As good as the champion, with a little luck on these rows."""
WORSE_IN_UA = scores(1.6, {("UA",): 0.7})
WORSE_IN_A_PAIR = scores(1.6, {("UA", "LGA"): 0.7})
WORSE_IN_FEW_ROWS = scores(1.3, {("ZZ",): 0.0})
RANKING = {"task": "ranking", "primary": "ndcg@10"}
PAIRLESS = {**SLICED, "slice_pairs": False}
TOUCHY = {"sensitive": ["origin"], "fairness": {"equal_opportunity": 0.1}}


def severity(gate: str, word: str) -> dict[str, Any]:
    return {"severity": {gate: word}}


@pytest.mark.parametrize(
    ("candidate", "rules", "outcome", "gates"),
    [
        pytest.param(BETTER, {}, "accepted", set(), id="better"),
        pytest.param(BETTER, {"improvement": {"relative": 0.01}}, "accepted", set(), id="better-by-enough"),
        pytest.param(BETTER, {"improvement": {"relative": 0.2}}, "rejected", {"improvement"}, id="better-by-too-little"),
        pytest.param(BETTER, {"minimum": {"auc": 0.99}}, "rejected", {"minimum"}, id="better-and-below-the-minimum"),
        pytest.param(BETTER, {"maximum": {"brier": 0.1}}, "rejected", {"maximum"}, id="better-and-above-the-maximum"),
        pytest.param(BETTER, {**SLICED}, "accepted", set(), id="better-in-every-slice"),
        pytest.param(EQUAL, {}, "rejected", {"significance"}, id="equal"),
        pytest.param(CHAMPION, {}, "rejected", {"improvement", "significance"}, id="the-champion-itself"),
        pytest.param(WORSE, {}, "rejected", {"improvement", "significance"}, id="worse"),
        pytest.param(WORSE, severity("significance", "warn"), "rejected", {"improvement", "significance"}, id="worse-one-gate-warns"),
        pytest.param(EQUAL, severity("significance", "approve"), "needs_approval", {"significance"}, id="equal-put-to-a-person"),
        pytest.param(WORSE_IN_UA, {}, "accepted", set(), id="worse-in-a-slice-nobody-asked-for"),
        pytest.param(WORSE_IN_UA, SLICED, "rejected", {"slices"}, id="worse-in-a-slice"),
        pytest.param(WORSE_IN_UA, {**SLICED, **severity("slices", "approve")}, "needs_approval", {"slices"}, id="worse-in-a-slice-asks"),
        pytest.param(WORSE_IN_UA, {**SLICED, **severity("slices", "warn")}, "accepted", {"slices"}, id="worse-in-a-slice-warns"),
        pytest.param(WORSE_IN_UA, {**SLICED, "slice_drop": 0.2}, "accepted", set(), id="worse-in-a-slice-by-little"),
        pytest.param(WORSE_IN_A_PAIR, SLICED, "rejected", {"slices"}, id="worse-in-a-pair-of-values"),
        pytest.param(WORSE_IN_A_PAIR, PAIRLESS, "accepted", set(), id="worse-in-a-pair-that-is-not-measured"),
        pytest.param(WORSE_IN_FEW_ROWS, SLICED, "accepted", set(), id="worse-in-few-rows"),
        pytest.param(WORSE_IN_FEW_ROWS, {**SLICED, "slice_support": 50}, "rejected", {"slices"}, id="worse-in-few-rows-that-count"),
        pytest.param(scores(1.3, shift=-1.0), TOUCHY, "rejected", {"fairness"}, id="better-and-unfair"),
        pytest.param(BETTER, TOUCHY, "accepted", set(), id="better-and-fair"),
        pytest.param(BETTER**3, {}, "accepted", {"drift"}, id="better-with-other-probabilities"),
        pytest.param(BETTER**3, severity("drift", "fail"), "rejected", {"drift"}, id="better-with-probabilities-too-far-off"),
        pytest.param(
            np.full(NUM_ROWS, 0.3), {}, "rejected", {"naive_baseline", "improvement", "significance", "constant", "drift"}, id="constant"
        ),
        pytest.param(BETTER, RANKING, "accepted", set(), id="better-ranking"),
        pytest.param(EQUAL, RANKING, "rejected", {"significance"}, id="equal-ranking"),
        pytest.param(WORSE, RANKING, "rejected", {"improvement", "significance"}, id="worse-ranking"),
    ],
)
def test_models_of_known_quality_get_what_they_deserve(candidate: Floats, rules: dict[str, Any], outcome: str, gates: set[str]) -> None:
    found = decision(candidate, rules)
    assert (found.outcome, failed(found)) == (outcome, gates)


@pytest.mark.parametrize("rules", [{}, SLICED, RANKING])
def test_one_score_that_is_no_number_is_enough_to_reject(rules: dict[str, Any]) -> None:
    names = ("minimum", "improvement", "significance", "slices", "fairness", "latency", "leakage", "overlap", "drift")
    lenient = {**rules, "severity": dict.fromkeys(names, "warn")}
    found = decision(with_nan(BETTER), lenient, approval="required")
    assert found.outcome == "rejected"
    assert "finite" in failed(found)


IN_LU = np.arange(NUM_ROWS) < 480
"""Rows of a country whose orders are never cancelled: 8 % of all."""
COUNTRIES = FRAME.assign(country=np.where(IN_LU, "LU", "DE"))
LABELS_BY_COUNTRY = np.where(IN_LU, 0.0, LABELS)
BY_COUNTRY = {"slices": ["carrier", "country"], "slice_drop": 0.05}


@pytest.mark.parametrize("effect", ["fail", "approve", "warn"])
def test_slice_of_one_class_is_named_with_its_share_and_stops_no_promotion(effect: str) -> None:
    rules = {**BY_COUNTRY, **severity("slices", effect)}
    found = decision(BETTER, rules, table=COUNTRIES, labels=LABELS_BY_COUNTRY)
    assert (found.outcome, failed(found)) == ("accepted", {"slices"})
    warned, judged = (reason for reason in found.reasons if reason.gate == "slices")
    assert (warned.verdict, judged.verdict) == ("warn", "pass")
    words = "not judged: slices whose labels allow no auc (one class only): country = LU (8.0 % of the rows)"
    assert warned.words.startswith(f"{words}, carrier = AA and country = LU (4.0 % of the rows)")
    assert warned.numbers["not_judged"] == 3
    assert warned.numbers["largest"][0] == {"where": "country = LU", "rows": 480, "share": 0.08}


def test_slices_beside_one_of_one_class_are_still_judged() -> None:
    found = decision(WORSE_IN_UA, BY_COUNTRY, table=COUNTRIES, labels=LABELS_BY_COUNTRY)
    assert found.outcome == "rejected"
    assert "carrier = UA" in found.summary


def test_slices_that_all_have_one_class_warn() -> None:
    by_label = FRAME.assign(carrier=np.where(LABELS > 0, "yes", "no"))
    found = decision(BETTER, {"slices": ["carrier"], "slice_drop": 0.05}, table=by_label)
    assert (found.outcome, failed(found)) == ("accepted", {"slices"})
    assert [reason.verdict for reason in found.reasons if reason.gate == "slices"] == ["warn"]


@pytest.mark.parametrize("broken", ["candidate", "champion"])
def test_prediction_that_is_no_number_rejects_in_a_slice_of_one_class_too(broken: str) -> None:
    candidate, champion = (
        with_nan(scores) if name == broken else scores for name, scores in (("candidate", BETTER), ("champion", CHAMPION))
    )
    rules = {"slices": ["country"], "slice_drop": 0.05, **severity("slices", "warn")}
    assert IN_LU[17]
    found = decision(candidate, rules, champion=champion, table=COUNTRIES, labels=LABELS_BY_COUNTRY)
    assert found.outcome == "rejected"
    reason = next(reason for reason in found.reasons if reason.gate == "slices")
    assert (reason.verdict, "country = LU is missing or no number" in reason.words) == ("FAIL", True)


def test_feature_that_is_the_label_rejects_by_name() -> None:
    found = decision(BETTER, {}, table=FRAME.assign(distance=LABELS))
    assert failed(found) == {"leakage"}
    assert found.summary.startswith(
        "distance alone ranks the labels by 1, required < 0.98; remove it where it is known only after the decision"
    )


@pytest.mark.parametrize(("given", "advice"), [("fail", True), ("approve", True), ("warn", False)])
def test_leakage_is_advised_a_severity_only_where_it_has_a_stricter_one(given: str, advice: bool) -> None:
    found = decision(BETTER, severity("leakage", given), table=FRAME.assign(distance=LABELS))
    words = next(reason.words for reason in found.reasons if reason.gate == "leakage")
    assert "remove it where it is known only after the decision" in words
    assert ("{leakage: warn}" in words) == advice


def test_candidate_takes_a_canarys_place_only_by_being_significantly_better() -> None:
    assert decision(BETTER, {}, canary=scores(1.0, seed=3)).outcome == "accepted"
    assert failed(decision(BETTER, {}, canary=scores(1.3, seed=3))) == {"canary"}
    assert failed(decision(BETTER, {}, canary=scores(1.6, seed=3))) == {"canary"}


def test_first_candidate_is_judged_without_any_champion() -> None:
    assert decision(WORSE, SLICED, champion=None).outcome == "accepted"
    assert failed(decision(WORSE, {"minimum": {"auc": 0.9}}, champion=None)) == {"minimum"}
