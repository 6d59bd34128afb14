"""The evaluation's page: one self-contained HTML file that loads nothing from elsewhere, the same bytes for the same evaluation."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from training.format import breakable, brief, moment, number, percent, signed
from training.pages import evaluation_view as view
from training.pages.plots import history_plot
from training.spec.sections.evaluation import Evaluate

FOLDER: Final = Path(__file__).resolve().parent


def render_report(page: Mapping[str, Any]) -> bytes:
    """Return the page as UTF-8 HTML. Everything but the pictures of `plots` is taken for text and escaped.

    Args:
        page: `evaluation` (the content of `metrics.json`), `pipeline`, `as_of` and `rules` (the spec's `evaluate`) are required.
            `decision`: {"outcome", "reasons": [{"gate", "passed", "severity", "words"}]}; `plots`: {title: SVG text};
            `history`: [{"epoch", "train_loss", "validation_loss"}]; `facts`: {name: value, or {"text", "url"}}; `advice`: [line]:
            each may be None or absent, and the page then says so.
            `classes`: what `by_class` returned, for classes with names.
            `primary`: the metric that decides; absent: the one of the rules.
    """
    evaluation: Mapping[str, Any] = page["evaluation"]
    rules: Evaluate = page["rules"]
    primary = str(page.get("primary") or rules.primary)
    reasons = (page.get("decision") or {}).get("reasons") or []
    history = page.get("history") or []
    values = {
        "title": f"{page['pipeline']}: evaluation as of {moment(page['as_of'])}",
        "pipeline": page["pipeline"],
        "as_of": page["as_of"],
        "primary": primary,
        "evaluation": evaluation,
        "rules": rules,
        "decision": view.decision(page.get("decision")),
        "alone": view.alone(evaluation),
        "comparisons": view.comparisons(evaluation, primary, rules),
        "metrics": view.metrics(evaluation, rules, primary),
        "ranking_note": view.ranking_note(evaluation),
        "baselines": view.baselines(evaluation, primary),
        "slices": view.slices(evaluation, rules, primary),
        "fairness": view.fairness(evaluation, rules),
        "latency": view.latency(evaluation, rules),
        "checks": view.checks(evaluation, rules, reasons),
        "importance": view.importance(evaluation),
        "plots": {title: Markup(svg) for title, svg in (page.get("plots") or {}).items()},  # noqa: S704 - drawn by training.pages.plots
        "history": Markup(history_plot(history)) if history else None,  # noqa: S704 - as above
        "advice": page.get("advice") or [],
        "labels": view.labels(evaluation),
        "classes": page.get("classes") or [],
        "positive": view.positive_class(evaluation, rules),
        "facts": view.facts(page.get("facts") or {}),
    }
    return _template().render(values).encode("utf-8")


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, brief=brief, signed=signed, percent=percent, moment=moment, breakable=breakable)
    environment.globals.update(
        style=Markup((FOLDER / "evaluation.css").read_text("utf-8")),  # noqa: S704 - our own file
        script=Markup((FOLDER / "evaluation.js").read_text("utf-8")),  # noqa: S704 - our own file
    )
    return environment.get_template("evaluation.html")
