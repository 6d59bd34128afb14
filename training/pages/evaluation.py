"""The evaluation's page: one self-contained HTML file that loads nothing from elsewhere, the same bytes for the same evaluation."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jinja2 import Template
from markupsafe import Markup

from training.contracts import Scalar
from training.evaluation.metrics.per_class import ByClass
from training.evaluation_record import EvaluationRecord
from training.format import breakable, brief, moment, number, percent, signed
from training.pages import evaluation_view as view
from training.pages.checks_view import checks
from training.pages.evaluation_links import Link
from training.pages.plots import history_plot
from training.pages.templates import FOLDER, template_environment
from training.registry.gates import CanaryVerdict, Decision
from training.spec.sections.evaluation import Evaluate


@dataclass(frozen=True, kw_only=True)
class EvaluationPage:
    """The content of the page. A part that is None or empty is left out, with a note."""

    record: EvaluationRecord
    pipeline: str
    as_of: str
    rules: Evaluate
    decision: Decision | CanaryVerdict | None = None
    plots: Mapping[str, str] = field(default_factory=dict)
    """Title to SVG text."""
    history: Sequence[Mapping[str, float]] = ()
    """`epoch`, `train_loss` and `validation_loss` of each epoch."""
    facts: Mapping[str, Scalar | Link] = field(default_factory=dict)
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
        "checks": checks(record, rules, () if page.decision is None else page.decision.reasons),
        "importance": view.importance(record),
        "plots": {title: Markup(svg) for title, svg in page.plots.items()},  # noqa: S704 - drawn by training.pages.plots
        "history": Markup(history_plot(page.history)) if page.history else None,  # noqa: S704 - as above
        "labels": view.labels(record),
        "classes": page.classes,
        "positive": view.positive_class(record, rules),
        "facts": view.facts(page.facts),
    }
    return _template().render(values).encode("utf-8")


@functools.cache
def _template() -> Template:
    environment = template_environment()
    environment.filters.update(number=number, brief=brief, signed=signed, percent=percent, moment=moment, breakable=breakable)
    environment.globals.update(
        style=Markup((FOLDER / "evaluation.css").read_text("utf-8")),  # noqa: S704 - our own file
        script=Markup((FOLDER / "evaluation.js").read_text("utf-8")),  # noqa: S704 - our own file
    )
    return environment.get_template("evaluation.html")
