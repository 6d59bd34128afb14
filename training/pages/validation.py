"""The validation report: one self-contained HTML page, the same bytes for the same findings."""

from __future__ import annotations

import re
from typing import Any, Final

from training.data.label_delay import MAX_DAYS_SHOWN
from training.data.validation.results import Findings
from training.format import brief, finite, local_moment
from training.pages.drift_charts import HEIGHT, WIDTH, compared_tables
from training.pages.night_charts import HEIGHT as NIGHT_HEIGHT
from training.pages.night_charts import WIDTH as NIGHT_WIDTH
from training.pages.night_charts import night_charts
from training.pages.templates import template_environment

STATUS_ORDER: Final = {"failed": 0, "warned": 1, "passed": 2}
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00")
"""As the profile of a column writes one."""
MAX_CHARS: Final = 40
"""Of a cell: the least and the greatest text of a column may be long."""


def render_report(
    findings: Findings, *, pipeline: str, as_of: str, window: tuple[str, str], snapshot_digest: str, timezone: str = "UTC"
) -> bytes:
    """Return the page: verdict, every check with observed, allowed and status, rows per day, drift, column statistics.

    Args:
        as_of, window: ISO 8601; shown on the clock of `timezone`, the pipeline's.
    """
    environment = template_environment()
    environment.filters["moment"] = lambda text: local_moment(text, timezone)
    environment.filters["number"] = _cell
    environment.filters["bound"] = lambda value: _bound(value, timezone)
    environment.filters["share"] = lambda value: _cell(value) if finite(value) is None else f"{value:.4f}"
    most = max(findings.rows_per_day.values(), default=0)
    page = environment.get_template("validation.html").render(
        pipeline=pipeline,
        as_of=local_moment(as_of, timezone),
        window=[local_moment(end, timezone) for end in window],
        snapshot_digest=snapshot_digest,
        counts=findings.counts,
        checks=sorted(findings.checks, key=lambda check: STATUS_ORDER[check.status]),
        days=[(day, rows, round(100 * rows / most, 1) if most else 0) for day, rows in findings.rows_per_day.items()],
        statistics=findings.statistics,
        nights=night_charts(findings.nights),
        night_chart=(NIGHT_WIDTH, NIGHT_HEIGHT),
        num_nights=len(findings.nights),
        compared=compared_tables(findings.comparisons),
        chart=(WIDTH, HEIGHT),
        unknown=findings.unknown_labels,
        unknown_days=[] if findings.unknown_labels is None else list(findings.unknown_labels["days"].items())[-MAX_DAYS_SHOWN:],
    )
    return page.encode("utf-8")


def _cell(value: Any) -> str:
    return brief(value)[:MAX_CHARS]


def _bound(value: Any, timezone: str) -> str:
    """Return the least or the greatest value of a column: an instant on the clock of the time zone."""
    return local_moment(value, timezone) if isinstance(value, str) and INSTANT.fullmatch(value) else _cell(value)
