"""The evaluation's page: one self-contained HTML file that loads nothing from elsewhere, the same bytes for the same evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from training.contracts import Scalar
from training.evaluation.metrics.per_class import ByClass
from training.evaluation.record import EvaluationRecord, Leakage, Overlap, PredictionDrift
from training.format import breakable, brief, moment, number, percent, signed
from training.pages import evaluation_view as view
from training.pages.plots import history_plot
from training.pages.templates import FOLDER, rendered
from training.registry.gates.judging import CanaryDecision, Decision
from training.registry.ledger.reasons import Reason
from training.spec.sections.evaluation import Evaluate


@dataclass(frozen=True, kw_only=True)
class EvaluationPage:
    """The content of the page. A part that is None or empty is left out, with a note."""

    record: EvaluationRecord
    pipeline: str
    as_of: str
    rules: Evaluate
    decision: Decision | CanaryDecision | None = None
    plots: Mapping[str, str] = field(default_factory=dict)
    """Title to SVG text."""
    history: Sequence[Mapping[str, float]] = ()
    """`epoch`, `train_loss` and `validation_loss` of each epoch."""
    facts: Mapping[str, Scalar | view.Link] = field(default_factory=dict)
    """Lines."""
    classes: Sequence[ByClass] = ()
    """For classes with names."""


def render_report(page: EvaluationPage) -> bytes:
    """Return the page as UTF-8 HTML. Everything but the pictures of `plots` is taken for text and escaped."""
    record, rules = page.record, page.rules
    primary = rules.primary
    values = {
        "title": f"{page.pipeline}: evaluation as of {moment(page.as_of)}",
        "pipeline": page.pipeline,
        "as_of": page.as_of,
        "primary": primary,
        "record": record,
        "rules": rules,
        "decision": view.decision(page.decision),
        "alone": view.alone(record),
        "comparisons": view.comparisons(record, primary, rules),
        "metrics": view.metrics(record, rules, primary),
        "ranking_note": view.ranking_note(record),
        "baselines": view.baselines(record, primary),
        "slices": view.slices(record, rules, primary),
        "fairness": view.fairness(record, rules),
        "latency": view.latency(record, rules),
        "checks": _checks(record, rules, () if page.decision is None else page.decision.reasons),
        "importance": view.importance(record),
        "plots": {title: Markup(svg) for title, svg in page.plots.items()},  # noqa: S704 - drawn by training.pages.plots
        "history": Markup(history_plot(page.history)) if page.history else None,  # noqa: S704 - as above
        "labels": view.labels(record),
        "classes": page.classes,
        "positive": view.positive_class(record, rules),
        "facts": view.facts(page.facts),
        "style": Markup((FOLDER / "evaluation.css").read_text("utf-8")),  # noqa: S704 - our own file
        "script": Markup((FOLDER / "evaluation.js").read_text("utf-8")),  # noqa: S704 - our own file
    }
    filters = {"number": number, "brief": brief, "signed": signed, "percent": percent, "moment": moment, "breakable": breakable}
    return rendered("evaluation.html", values, **filters)


def _checks(record: EvaluationRecord, rules: Evaluate, reasons: Iterable[Reason]) -> list[view.Row]:
    """Return what is wrong with results that look good, each with the verdict of the gate of its name, if that one spoke."""
    found = record.checks
    if found is None or not found.model_fields_set:
        return []
    verdicts = {reason.gate: view.badge_of(reason) for reason in reasons}
    rows: list[view.Row] = [
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
