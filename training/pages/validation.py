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
    findings: Findings, *, pipeline: str, as_of: Instant, window: tuple[Instant, Instant], snapshot_digest: str, timezone: str = "UTC"
) -> bytes:
    """Return the page: verdict, every check with observed, allowed and status, rows per day, drift, column statistics.

    Args:
        as_of, window: shown on the clock of `timezone`, the pipeline's.
    """
    most = max(findings.rows_per_day.values(), default=0)
    values = {
        "pipeline": pipeline,
        "as_of": local_moment(as_of, timezone),
        "window": [local_moment(end, timezone) for end in window],
        "snapshot_digest": snapshot_digest,
        "counts": findings.counts,
        "checks": sorted(findings.checks, key=lambda check: STATUS_ORDER[check.status]),
        "days": [(day, rows, round(100 * rows / most, 1) if most else 0) for day, rows in findings.rows_per_day.items()],
        "statistics": findings.statistics,
        "runs": run_charts(findings.runs),
        "run_chart": (RUN_WIDTH, RUN_HEIGHT),
        "num_runs": len(findings.runs),
        "compared": compared_tables(findings.comparisons),
        "chart": (DRIFT_WIDTH, DRIFT_HEIGHT),
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
class Box:
    """A bar of a chart, in pixels."""

    x: float
    width: float
    before_y: float
    before_height: float
    now_y: float
    now_height: float
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartedColumn:
    """A row of the table of a comparison."""

    name: str
    drift: ColumnDrift
    boxes: tuple[Box, ...]


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
        ChartedColumn(name=name, drift=drift, boxes=_boxes(drift.bars) if place < MAX_DRIFT_CHARTS else ())
        for place, (name, drift) in enumerate(ordered)
    ]


def _boxes(bars: Sequence[Bar]) -> tuple[Box, ...]:
    highest = max((max(bar.before, bar.now) for bar in bars), default=0.0) or 1.0
    step = DRIFT_WIDTH / max(1, len(bars))
    heights = [(DRIFT_HEIGHT * bar.before / highest, DRIFT_HEIGHT * bar.now / highest) for bar in bars]
    return tuple(
        Box(
            x=round(place * step, 2),
            width=round(step * 0.9, 2),
            before_y=round(DRIFT_HEIGHT - before, 2),
            before_height=round(before, 2),
            now_y=round(DRIFT_HEIGHT - now, 2),
            now_height=round(now, 2),
            title=f"{bar.label}: {bar.before:.2%} before, {bar.now:.2%} now",
        )
        for place, (bar, (before, now)) in enumerate(zip(bars, heights, strict=True))
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBar:
    """A run in a chart, in pixels."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunChart:
    """A number over the runs."""

    name: str
    bars: tuple[RunBar, ...]
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
    highest = max((value for _, value in values), default=0.0) or 1.0
    step = RUN_WIDTH / max(1, len(values))
    bars = []
    for place, (at, value) in enumerate(values):
        height = round(RUN_HEIGHT * max(0.0, value) / highest, 2)
        x, y, width = round(place * step, 2), round(RUN_HEIGHT - height, 2), round(step * 0.85, 2)
        bars.append(RunBar(x=x, y=y, width=width, height=height, title=f"{at}: {words(value)}"))
    numbers = [value for _, value in values]
    return RunChart(name=name, bars=tuple(bars), newest=words(numbers[-1]), least=words(min(numbers)), most=words(max(numbers)))
