"""The validation report: one self-contained HTML page, the same bytes for the same findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from training.contracts import Instant, instant_of
from training.data.snapshot.label_delay import MAX_DAYS_SHOWN
from training.format import brief, finite, local_moment
from training.pages.charts import BarGroup, small_bars
from training.pages.templates import rendered
from training.validation.drift.between_snapshots import Bar, ColumnDrift, SnapshotComparison
from training.validation.results import Findings

STATUS_ORDER: Final = {"failed": 0, "warned": 1, "passed": 2}
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00")
"""As the profile of a column writes one."""
MAX_CHARS: Final = 40
"""Of a cell: the least and the greatest text of a column may be long."""

DRIFT_WIDTH: Final = 264
DRIFT_HEIGHT: Final = 56
MAX_DRIFT_CHARTS: Final = 40
"""Of a table: those with the largest index."""
RUN_WIDTH: Final = 360
RUN_HEIGHT: Final = 48
MAX_RUN_COLUMNS: Final = 12
"""Of a table: those with the most missing values in any run."""


def render_report(
    findings: Findings,
    *,
    pipeline: str,
    as_of: Instant,
    window: tuple[Instant, Instant],
    snapshot_digest: str,
    timezone: str = "UTC",
    outside: Sequence[str] = (),
) -> bytes:
    """Return the page: verdict, every check with observed, allowed and status, rows per day, drift, column statistics.

    Args:
        as_of, window: shown on the clock of `timezone`, the pipeline's.
        outside: what `ingest` says of rows outside of the window.
    """
    most = max(findings.rows_per_day.values(), default=0)
    values = {
        "pipeline": pipeline,
        "as_of": local_moment(as_of, timezone),
        "window": [local_moment(end, timezone) for end in window],
        "snapshot_digest": snapshot_digest,
        "counts": findings.counts,
        "outside": outside,
        "checks": sorted(findings.checks, key=lambda check: STATUS_ORDER[check.status]),
        "days": [(day, rows, round(100 * rows / most, 1) if most else 0) for day, rows in findings.rows_per_day.items()],
        "statistics": findings.statistics,
        "runs": run_charts(findings.runs),
        "num_runs": len(findings.runs),
        "compared": compared_tables(findings.comparisons),
        "unknown": findings.unknown_labels,
        "unknown_days": [] if findings.unknown_labels is None else list(findings.unknown_labels["days"].items())[-MAX_DAYS_SHOWN:],
    }
    return rendered(
        "validation.html",
        values,
        moment=lambda instant: local_moment(instant, timezone),
        number=_cell,
        bound=lambda value: _bound(value, timezone),
        share=lambda value: _cell(value) if finite(value) is None else f"{value:.4f}",
    )


def _cell(value: Any) -> str:
    return brief(value)[:MAX_CHARS]


def _bound(value: Any, timezone: str) -> str:
    """Return the least or the greatest value of a column: an instant on the clock of the time zone, as far as its calendar goes."""
    if isinstance(value, str) and INSTANT.fullmatch(value):
        with suppress(OverflowError):  # `9999-12-31 23:59:59+00`, for "without an end", is in the year 10000 east of Greenwich.
            return local_moment(instant_of(value), timezone)
    return _cell(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartedColumn:
    """A row of the table of a comparison."""

    name: str
    drift: ColumnDrift
    chart: str
    """SVG; empty without bars, or where the table has too many columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedTable:
    """A table of a comparison."""

    heading: str
    as_of: Instant
    columns: tuple[ChartedColumn, ...]


def compared_tables(comparisons: Sequence[SnapshotComparison]) -> list[ComparedTable]:
    """Return the tables that were compared, the columns with the largest index first."""
    return [
        ComparedTable(heading=f"{table} against {comparison.words}", as_of=comparison.as_of, columns=tuple(_charted(columns)))
        for comparison in comparisons
        for table, columns in comparison.tables.items()
        if columns
    ]


def _charted(columns: Mapping[str, ColumnDrift]) -> list[ChartedColumn]:
    ordered = sorted(columns.items(), key=lambda item: (-item[1].psi, item[0]))
    return [
        ChartedColumn(name=name, drift=drift, chart=_distribution(name, drift.bars) if drift.bars and place < MAX_DRIFT_CHARTS else "")
        for place, (name, drift) in enumerate(ordered)
    ]


def _distribution(name: str, bars: Sequence[Bar]) -> str:
    groups = [
        BarGroup(title=f"{bar.label}: {bar.before:.2%} before, {bar.now:.2%} now", heights={"before": bar.before, "now": bar.now})
        for bar in bars
    ]
    return small_bars(f"distribution of {name}, earlier and now", groups, width=DRIFT_WIDTH, height=DRIFT_HEIGHT)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunChart:
    """A number over the runs."""

    name: str
    chart: str
    """SVG."""
    newest: str
    least: str
    most: str


def run_charts(runs: Sequence[Any]) -> dict[str, list[RunChart]]:
    """Return charts by table: rows, age of the newest row, and the share of values that are there, of columns that lack some.

    Args:
        runs: `Findings.runs`; one alone gives no chart.
    """
    if len(runs) < 2:
        return {}
    tables = runs[-1]["tables"]
    return {table: _charts(runs, table) for table in tables}


def _charts(runs: Sequence[Any], table: str) -> list[RunChart]:
    known = [(run["as_of"], run["tables"][table]) for run in runs if table in run["tables"]]
    charts = [_chart("rows", [(at, facts["rows"]) for at, facts in known], lambda rows: brief(int(rows)))]
    ages = [(at, facts["age_hours"]) for at, facts in known if facts["age_hours"] is not None]
    if ages:
        charts.append(_chart("age of the newest row", ages, lambda hours: f"{hours:.1f} h"))
    most: dict[str, float] = {}
    for _, facts in known:
        for column, missing in facts["missing"].items():
            most[column] = max(most.get(column, 0.0), missing / max(1, facts["rows"]))
    for column in sorted(most, key=lambda name: (-most[name], name))[:MAX_RUN_COLUMNS]:
        shares = [(at, 1 - facts["missing"].get(column, 0) / max(1, facts["rows"])) for at, facts in known]
        charts.append(_chart(f"{column}: share that is not missing", shares, lambda share: f"{share:.2%}"))
    return charts


def _chart(name: str, values: Sequence[tuple[str, float]], words: Callable[[float], str]) -> RunChart:
    groups = [BarGroup(title=f"{at}: {words(value)}", heights={"now": max(0.0, value)}) for at, value in values]
    chart = small_bars(f"{name} by run", groups, width=RUN_WIDTH, height=RUN_HEIGHT)
    numbers = [value for _, value in values]
    return RunChart(name=name, chart=chart, newest=words(numbers[-1]), least=words(min(numbers)), most=words(max(numbers)))
