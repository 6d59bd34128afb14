"""The part of the validation report that shows volume, freshness and completeness of the last nights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from training.format import brief

WIDTH: Final = 360
HEIGHT: Final = 48
MAX_COLUMNS: Final = 12
"""Of a table: those with the most missing values in any night."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NightBar:
    """A night in a chart, in pixels."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NightChart:
    """A number over the nights."""

    name: str
    bars: tuple[NightBar, ...]
    newest: str
    least: str
    most: str


def night_charts(nights: Sequence[Any]) -> dict[str, list[NightChart]]:
    """Return charts by table: rows, age of the newest row, and the share of values that are there, of columns that lack some.

    Args:
        nights: `Findings.nights`; one alone gives no chart.
    """
    if len(nights) < 2:
        return {}
    tables = nights[-1]["tables"]
    return {table: _charts(nights, table) for table in tables}


def _charts(nights: Sequence[Any], table: str) -> list[NightChart]:
    known = [(night["as_of"], night["tables"][table]) for night in nights if table in night["tables"]]
    charts = [_chart("rows", [(at, facts["rows"]) for at, facts in known], lambda rows: brief(int(rows)))]
    ages = [(at, facts["age_hours"]) for at, facts in known if facts["age_hours"] is not None]
    if ages:
        charts.append(_chart("age of the newest row", ages, lambda hours: f"{hours:.1f} h"))
    most: dict[str, float] = {}
    for _, facts in known:
        for column, missing in facts["missing"].items():
            most[column] = max(most.get(column, 0.0), missing / max(1, facts["rows"]))
    for column in sorted(most, key=lambda name: (-most[name], name))[:MAX_COLUMNS]:
        shares = [(at, 1 - facts["missing"].get(column, 0) / max(1, facts["rows"])) for at, facts in known]
        charts.append(_chart(f"{column}: share that is not missing", shares, lambda share: f"{share:.2%}"))
    return charts


def _chart(name: str, values: Sequence[tuple[str, float]], words: Callable[[float], str]) -> NightChart:
    highest = max((value for _, value in values), default=0.0) or 1.0
    step = WIDTH / max(1, len(values))
    bars = []
    for place, (at, value) in enumerate(values):
        height = round(HEIGHT * max(0.0, value) / highest, 2)
        x, y, width = round(place * step, 2), round(HEIGHT - height, 2), round(step * 0.85, 2)
        bars.append(NightBar(x=x, y=y, width=width, height=height, title=f"{at}: {words(value)}"))
    numbers = [value for _, value in values]
    return NightChart(name=name, bars=tuple(bars), newest=words(numbers[-1]), least=words(min(numbers)), most=words(max(numbers)))
