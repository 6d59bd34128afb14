"""The validation report: one self-contained HTML page, the same bytes for the same findings."""

from __future__ import annotations

from typing import Final

from training.data.label_delay import MAX_DAYS_SHOWN
from training.data.validation.results import Findings
from training.format import brief, local_moment
from training.pages.drift_charts import HEIGHT, WIDTH, compared_tables
from training.pages.night_charts import HEIGHT as NIGHT_HEIGHT
from training.pages.night_charts import WIDTH as NIGHT_WIDTH
from training.pages.night_charts import night_charts
from training.pages.templates import template_environment

STATUS_ORDER: Final = {"failed": 0, "warned": 1, "passed": 2}
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
    environment.filters["number"] = lambda value: brief(value)[:MAX_CHARS]
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
