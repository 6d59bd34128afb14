"""Series: rows that follow each other in one step of time, alone or by the values of up to two columns."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from training.sql.expressions import literal, quoted
from training.starter.keys import KEY_TYPES, is_unique
from training.starter.tables import FoundTable
from training.starter.time_columns import EventTime

ROWS_OF_AN_ENTITY: Final = 10
"""On average; fewer make no series."""
ON_GRID: Final = 0.9
"""Share of the gaps that are whole multiples of the step."""
MAX_TRIALS: Final = 40
CLOCKS: Final = ("utc", "wall", "months")
"""In which a step can be constant: instants, local days where the clock changes, months on one day of the month."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """How the rows of a table follow each other."""

    entities: Sequence[str]
    """Columns that name the series of a row; with the time they identify it. Empty: all rows are one series."""
    step: timedelta
    """From a row to the next one; of months, which differ, that of the shortest."""


def series_of(table: FoundTable, time: EventTime, *, zone: str, excluded: Collection[str]) -> Series | None:
    """Return the series that the rows are, None where no step is found: orders at any time are none.

    Args:
        zone: time zone of days and months.
        excluded: columns that name no series.
    """
    for entities in itertools.islice(_entities(table, time, excluded), MAX_TRIALS):
        if is_unique(table, [*map(quoted, entities), time.instant]):
            step = _step(table, time, entities, zone)
            if step is not None:
                return Series(entities=entities, step=step)
    return None


def _entities(table: FoundTable, time: EventTime, excluded: Collection[str]) -> Iterator[list[str]]:
    limit = table.num_rows / ROWS_OF_AN_ENTITY
    if limit < 1:
        return
    yield []
    usable = [
        column
        for column in table.columns.values()
        if column.type in KEY_TYPES and not column.num_missing and column.name not in (time.column, *excluded)
    ]
    names = [column.name for column in usable if 1 < column.num_values <= limit]
    yield from ([name] for name in names)
    for pair in itertools.combinations(names, 2):
        distinct = f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(map(quoted, pair))} FROM rows)"  # noqa: S608 - quoted
        if table.value(distinct) <= limit:
            yield [*pair]


def _step(table: FoundTable, time: EventTime, entities: Sequence[str], zone: str) -> timedelta | None:
    """Return the median gap if nearly all gaps are whole multiples of it, on one of the clocks."""
    names = "".join(f", {quoted(name)} AS e{number}" for number, name in enumerate(entities))
    by = "PARTITION BY " + ", ".join(f"e{number}" for number in range(len(entities))) if entities else ""
    gaps = f"""
        WITH moments AS (SELECT {time.instant} AS moment, timezone({literal(zone)}, moment) AS local{names} FROM rows),
        pairs AS (
            SELECT moment, local, lag(moment) OVER w AS moment_before, lag(local) OVER w AS before
            FROM moments WINDOW w AS ({by} ORDER BY moment)
        ),
        gaps AS (
            SELECT epoch_us(moment) - epoch_us(moment_before) AS utc, epoch_us(local) - epoch_us(before) AS wall,
                CASE WHEN CAST(local AS TIME) = CAST(before AS TIME) AND (day(local) = day(before) OR (
                    CAST(local AS DATE) = last_day(local) AND CAST(before AS DATE) = last_day(before)
                )) THEN 12 * (year(local) - year(before)) + month(local) - month(before) END AS months
            FROM pairs WHERE before IS NOT NULL
        )
    """  # noqa: S608 - quoted
    for clock in CLOCKS:
        query = f"""{gaps}
            SELECT count(*) FILTER ({clock} % step = 0), count(*), min(utc) FILTER ({clock} = step)
            FROM gaps, (SELECT quantile_disc({clock}, 0.5) FILTER ({clock} > 0) AS step FROM gaps)
        """  # noqa: S608 - quoted
        on_grid, num_gaps, shortest_us = table.rows(query)[0]
        if shortest_us is not None and on_grid >= ON_GRID * num_gaps:
            return timedelta(microseconds=shortest_us)
    return None
