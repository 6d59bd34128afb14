"""The evaluation's page: one self-contained HTML file, the same bytes for the same evaluation."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

FOLDER = Path(__file__).resolve().parent


def render_report(values: Mapping[str, Any]) -> bytes:
    """Return the page; the template names what `values` must hold. Everything but the plots is escaped."""
    return _template().render(number=number, **values).encode("utf-8")


def number(value: object) -> str:
    """Return a metric as people read it, an em dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.5f}" if isinstance(value, float) and math.isfinite(value) else str(value)


@functools.cache
def _template() -> Template:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("report.html")
