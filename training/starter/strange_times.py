"""Times that are probably wrong: those that stand for a missing one, and those that the clock has not reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from training.contracts import microseconds_of
from training.errors import DataError
from training.sources.local_times import DAY_US
from training.sources.rows_outside import CLOCK_ERROR, NEAR_US, PLACEHOLDERS, UNITS, instant_words
from training.starter.tables import FoundTable
from training.starter.time_columns import EventTime

NONE: Final = "false"


@dataclass(frozen=True, kw_only=True, slots=True)
class StrangeTimes:
    """Rows that the window of a drafted pipeline is not made for."""

    sql: str = NONE
    """True for such a row."""
    notes: Sequence[str] = ()


def strange_times(table: FoundTable, time: EventTime, now: datetime) -> StrangeTimes:
    """Return the rows with a time that is repeated, far from all others, at a day that stands for a missing time, and later ones than now.

    Raises:
        DataError: `data.future_rows`, no other row is left.
    """
    if time.is_constant:
        return StrangeTimes()
    at, until_us = f"epoch_us({time.instant})", microseconds_of(now + CLOCK_ERROR)
    conditions, notes = [], []
    late = f"{at} > {until_us}"
    wanted = [f"{what} FILTER ({late})" for what in ("count(*)", f"min({at})", f"max({at})")]
    distances = {day: f"abs({at} - {microseconds_of(datetime.fromisoformat(f'{day}T00:00:00+00:00'))})" for day in PLACEHOLDERS}
    wanted += [f"count(*) FILTER ({distance} <= {us})" for distance in distances.values() for us in (DAY_US, NEAR_US)]
    count, oldest, newest, *around = table.rows(f"SELECT {', '.join(wanted)} FROM rows")[0]  # noqa: S608
    for (day, distance), at_day, near in zip(distances.items(), around[::2], around[1::2], strict=True):
        if 1 < at_day == near < table.num_rows:
            conditions.append(f"{distance} <= {DAY_US}")
            notes.append(f"{at_day:,} rows have a time at {day}, which often stands for a missing one: they are outside of the window")
    span = f"{instant_words(oldest)} to {instant_words(newest)}" if count else ""
    if count:
        conditions.append(late)
        notes.append(
            f"{count:,} rows have times later than now, {span}: no run sees them, and above validate.future_rows (1 %) ingest fails"
        )
    sql = " OR ".join(conditions) or NONE
    if table.value(f"SELECT 1 FROM rows WHERE NOT ({sql}) LIMIT 1") is None:  # noqa: S608 - quoted
        units = (words for factor, words in UNITS if newest * factor <= until_us)
        hint = f"{next(units, 'a wrong year')}? Correct the times, or name another column"
        raise DataError(
            "data.future_rows", f"{table.path}: {count:,} rows have times later than now: {span}; no others are left", hint=hint
        )
    return StrangeTimes(sql=sql, notes=notes)
