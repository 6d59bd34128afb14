"""What the page of an evaluation shows of its checks: leakage, overlap, drift, constant predictions."""

from __future__ import annotations

from collections.abc import Iterable

from training.evaluation_record import EvaluationRecord, Leakage, Overlap, PredictionDrift
from training.format import brief, number, percent
from training.pages.evaluation_view import Row, badge_of
from training.registry.reasons import Reason
from training.spec.sections.evaluation import Evaluate


def checks(record: EvaluationRecord, rules: Evaluate, reasons: Iterable[Reason]) -> list[Row]:
    """Return what is wrong with results that look good, each with the verdict of the gate of its name, if that one spoke."""
    found = record.checks
    if found is None or not found.model_fields_set:
        return []
    verdicts = {reason.gate: badge_of(reason) for reason in reasons}
    rows: list[Row] = [
        {"name": "leakage", "words": _leakage(found.leakage), "limit": f"below {brief(rules.checks.leakage)}"},
        {
            "name": "overlap",
            "words": _overlap(found.overlap),
            "limit": "no limit" if rules.checks.overlap is None else f"at most {percent(rules.checks.overlap)}",
        },
        {"name": "drift", "words": _drift(found.drift), "limit": f"at most {brief(rules.checks.drift)}"},
        {"name": "constant", "words": _constant(found.constant), "limit": "not constant"},
    ]
    return [{**row, "badge": verdicts.get(str(row["name"]))} for row in rows]


def _leakage(found: Leakage | None) -> str:
    if found is None:
        return "no feature alone could be measured against the label"
    return f"the strongest feature alone is {found.feature}: it ranks the labels with {brief(found.value)}"


def _overlap(found: Overlap | None) -> str:
    if found is None:
        return "not measured: no entities are known"
    names = ", ".join(found.entities)
    return f"{percent(found.share)} of {number(found.num_test)} test entities{f' ({names})' if names else ''} were trained on too"


def _drift(found: PredictionDrift | None) -> str:
    if found is None:
        return "not measured: there is no champion's prediction to compare with"
    return f"population stability index of the predictions against the champion's: {brief(found.psi)}"


def _constant(found: bool | None) -> str:
    if found is None:
        return "not measured"
    return "every prediction is the same" if found else "the predictions differ"
