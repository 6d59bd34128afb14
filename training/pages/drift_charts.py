"""The part of the validation report that shows the columns beside those of earlier snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from training.data.validation.snapshot_drift import Bar, ColumnDrift, Comparison

WIDTH: Final = 264
HEIGHT: Final = 56
MAX_CHARTS: Final = 40
"""Of a table: those with the largest index."""


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
    as_of: str
    columns: tuple[ChartedColumn, ...]


def compared_tables(comparisons: Sequence[Comparison]) -> list[ComparedTable]:
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
        ChartedColumn(name=name, drift=drift, boxes=_boxes(drift.bars) if place < MAX_CHARTS else ())
        for place, (name, drift) in enumerate(ordered)
    ]


def _boxes(bars: Sequence[Bar]) -> tuple[Box, ...]:
    highest = max((max(bar.before, bar.now) for bar in bars), default=0.0) or 1.0
    step = WIDTH / max(1, len(bars))
    heights = [(HEIGHT * bar.before / highest, HEIGHT * bar.now / highest) for bar in bars]
    return tuple(
        Box(
            x=round(place * step, 2),
            width=round(step * 0.9, 2),
            before_y=round(HEIGHT - before, 2),
            before_height=round(before, 2),
            now_y=round(HEIGHT - now, 2),
            now_height=round(now, 2),
            title=f"{bar.label}: {bar.before:.2%} before, {bar.now:.2%} now",
        )
        for place, (bar, (before, now)) in enumerate(zip(bars, heights, strict=True))
    )
