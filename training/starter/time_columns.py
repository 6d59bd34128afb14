"""The event time of rows: a column, an SQL expression that the YAML derives, the begin of a partition, or one instant for all rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from training.errors import DataError, shown
from training.sql.expressions import literal, quoted
from training.starter.clock_reading import ClockReading, clock_reading
from training.starter.column_names import free
from training.starter.column_types import DAY, FINE_INSTANT, LOCAL, FoundColumn
from training.starter.tables import FoundTable

FORMATS: Final = (
    *("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y%m%d", "%b %d %Y", "%d %b %Y", "%d-%b-%Y", "%Y-%m", "%Y/%m"),
    *(f"{day} {clock}" for clock in ("%H:%M", "%H:%M:%S") for day in ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y-%m-%d")),
)
YEARS: Final = (1600, 2200)
EPOCHS: Final = {
    "seconds": (1, "to_timestamp({0})"),
    "milliseconds": (10**3, "timezone('UTC', epoch_ms(CAST({0} AS BIGINT)))"),
    "microseconds": (10**6, "timezone('UTC', make_timestamp(CAST({0} AS BIGINT)))"),
    "nanoseconds": (10**9, "timezone('UTC', make_timestamp(CAST({0} AS BIGINT) // 1000))"),
}
"""Numbers since 1970: how many are a second, and the instant."""
OLDEST: Final = datetime(1990, 1, 1, tzinfo=UTC)
"""Of times that are numbers: below it, and a year from now on, they are taken for something else."""
DAY_US: Final = 86_400_000_000
EPOCH_FORMAT: Final = "%s"


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTime:
    """The event time of a table's rows."""

    column: str
    """The column's identifier; empty: one instant for all rows."""
    name: str
    """In the YAML: the column itself, or a derived one."""
    sql: str
    """Of the derived one, as the YAML has it; empty: it is not derived."""
    reading: str = ""
    """How the derived one follows from the column, for people."""

    is_generated: bool = False
    """Whether it is the begin of the row's partition, which is not in the file."""
    clock_column: str = ""
    """With the times of day, where `column` has only days."""
    zone: str = ""
    """Where the clock is whose times `sql` gives; empty: it gives instants."""
    clock: ClockReading = field(default_factory=ClockReading)
    """Of times of a clock."""

    @property
    def is_constant(self) -> bool:
        return not self.column

    @property
    def instant(self) -> str:
        """The instant in SQL over the view of the rows."""
        if self.clock.instant:
            return quoted(self.clock.instant)
        return f"({self.instant_sql})" if self.sql else quoted(self.column)

    @property
    def instant_sql(self) -> str:
        """The instant in SQL over the columns of the file; empty: it is not derived."""
        return f"timezone({literal(self.zone)}, {self.sql})" if self.zone else self.sql


def event_time_of(table: FoundTable, name: str, *, zone: str, now: datetime, time_format: str) -> EventTime:
    """Return how a column is read as an instant.

    Args:
        name: of the column; empty: the begin of the row's partition, and without partitions the day before `now`, for all rows.
        zone: time zone of days, and of times without an offset.
        time_format: of texts, as strptime has it; empty: one of FORMATS that all rows have.

    Raises:
        DataError: `init.time`, there is no such column, it is no time, its format is not clear, or it has missing values.
    """
    if not name and table.partition_start:
        return EventTime(column=table.partition_start, name=table.partition_start, sql="", is_generated=True)
    if not name:
        day = now.astimezone(ZoneInfo(zone)).date() - timedelta(days=1)
        sql = f"timezone({literal(zone)}, make_timestamp({day.year}, {day.month}, {day.day}, 0, 0, 0))"
        return EventTime(column="", name=free("recorded_at", table.taken), sql=sql, reading=f"{day} 00:00 in {zone}")
    if table.find(name) is None and name.count(",") == 1:
        return _of_two_columns(table, *name.split(","), zone=zone, now=now, time_format=time_format)
    column = _usable(table, name)
    found = _reading(table, column, zone, time_format, now)
    if not found.sql:
        return EventTime(column=column.name, name=column.name, sql="")
    return _event_time(table, column, found, now)


def _usable(table: FoundTable, name: str) -> FoundColumn:
    column = table.find(name)
    if column is None:
        raise DataError("init.time", f"{table.path} has no usable column {shown(name)}{_reason(table, name)}", hint=_candidates(table))
    if column.num_missing:
        message = f"column {shown(name)} is empty in {column.num_missing:,} of {table.num_rows:,} rows"
        raise DataError("init.time", message, hint="each row needs its time: leave such rows out of the file, or use another column")
    return column


def _of_two_columns(table: FoundTable, day: str, clock: str, *, zone: str, now: datetime, time_format: str) -> EventTime:
    """Return the event time of a column with days and another one with times of day."""
    days, clocks = _usable(table, day.strip()), _usable(table, clock.strip())
    text = f"CAST({quoted(days.name)} AS VARCHAR) || ' ' || CAST({quoted(clocks.name)} AS VARCHAR)"
    if not time_format and _iso_form(table, text) == "a local time":
        found = _of_iso(text, "a local time", zone)
    else:
        found = _of_format(table, f"{day},{clock}", f"({text})", zone, time_format)
    return replace(_event_time(table, days, found, now), clock_column=clocks.name)


def _event_time(table: FoundTable, column: FoundColumn, found: Reading, now: datetime) -> EventTime:
    clock = clock_reading(table, found.sql, found.zone, now) if found.zone else ClockReading()
    name = free(f"{column.name}_at", table.taken)
    return EventTime(column=column.name, name=name, sql=found.sql, reading=found.words, zone=found.zone, clock=clock)


@dataclass(frozen=True, slots=True)
class Reading:
    """How values are read."""

    sql: str = ""
    """An instant, or with `zone` the time of a clock; empty: the column is an instant."""
    words: str = ""
    zone: str = ""


def _reading(table: FoundTable, column: FoundColumn, zone: str, time_format: str, now: datetime) -> Reading:
    name, place = quoted(column.name), literal(zone)
    # As the YAML's expressions name it: a name that is a plain word needs no quotes there, and with them it is the same.
    if column.type == "timestamp" and not time_format:
        return Reading()
    if column.type == "date" and not time_format:
        return Reading(f"timezone({place}, CAST({name} AS TIMESTAMP))", f"a day in {zone}")
    if column.is_local_time and not time_format:
        return Reading(f"CAST({name} AS TIMESTAMP)", f"a local time in {zone}", zone)
    if column.type == "int64" and not time_format:
        low, high = table.rows(f"SELECT min({name}), max({name}) FROM rows")[0]  # noqa: S608 - quoted
        if YEARS[0] <= low <= high <= YEARS[1]:
            return Reading(f"timezone({place}, make_timestamp({name}, 1, 1, 0, 0, 0))", f"a year in {zone}")
    if column.is_number and time_format in ("", EPOCH_FORMAT) and (unit := _epoch_unit(table, name, time_format, now)):
        return Reading(EPOCHS[unit][1].format(name), f"{unit} since 1970")
    if column.type == "string" and not time_format and (form := _iso_form(table, name)):
        return _of_iso(name, form, zone)
    if column.type in ("string", "int64", "date"):
        text = name if column.type == "string" else f"CAST({name} AS VARCHAR)"
        return _of_format(table, column.source_name, text, zone, time_format)
    raise DataError("init.time", f"column {shown(column.source_name)} is of type {column.type}, not a time", hint=_candidates(table))


def _of_iso(text: str, form: str, zone: str) -> Reading:
    if form == "an instant":
        return Reading(f"CAST({text} AS TIMESTAMPTZ)", "an instant with its offset")
    if form == "a local time":
        return Reading(f"CAST({text} AS TIMESTAMP)", f"{form} in {zone}", zone)
    return Reading(f"timezone({literal(zone)}, CAST({text} AS TIMESTAMP))", f"{form} in {zone}")


def _epoch_unit(table: FoundTable, name: str, time_format: str, now: datetime) -> str:
    """Return what numbers count since 1970, by their size; nothing where they are no times of these years."""
    if time_format:
        return "seconds"
    low, high = table.rows(f"SELECT min({name}), max({name}) FROM rows")[0]  # noqa: S608 - quoted
    bounds = OLDEST.timestamp(), (now + timedelta(days=366)).timestamp()
    return next((unit for unit, (count, _sql) in EPOCHS.items() if bounds[0] * count <= low <= high <= bounds[1] * count), "")


def _of_format(table: FoundTable, name: str, text: str, zone: str, time_format: str) -> Reading:
    chosen = time_format or _format_of(table, name, text)
    _check_format(table, name, text, chosen)
    local = f"strptime({text}, {literal(chosen)})"
    if chosen.startswith("%Y/%m/%d"):
        # As ISO 8601, which every engine reads alike.
        local = f"CAST(replace({text}, '/', '-') AS TIMESTAMP)"
    if "%z" in chosen.lower():
        return Reading(local, chosen)
    if "%H" in chosen or "%I" in chosen:
        return Reading(local, f"{chosen} in {zone}", zone)
    return Reading(f"timezone({literal(zone)}, {local})", f"{chosen} in {zone}")


def _iso_form(table: FoundTable, name: str) -> str:
    """Return what texts in the form of ISO 8601 are, else nothing. Parquet files have some; of other files, such columns are times."""
    casts = {"an instant": (FINE_INSTANT, "TIMESTAMPTZ"), "a local time": (LOCAL, "TIMESTAMP"), "a day": (DAY, "DATE")}
    parts = [
        f"count(*) FILTER (regexp_full_match({name}, {literal(form)}) AND TRY_CAST({name} AS {kind}) IS NOT NULL)"
        for form, kind in casts.values()
    ]
    counts = table.rows(f"SELECT {', '.join(parts)} FROM rows")[0]  # noqa: S608 - quoted
    return next((words for words, count in zip(casts, counts, strict=True) if count == table.num_rows), "")


def _format_of(table: FoundTable, name: str, text: str) -> str:
    counts = table.rows(
        f"SELECT {', '.join(f'count(try_strptime({text}, {literal(each)}))' for each in FORMATS)} FROM rows"  # noqa: S608 - quoted
    )[0]
    found = [each for each, count in zip(FORMATS, counts, strict=True) if count == table.num_rows]
    if len(found) > 1:
        message = f"the times in column {shown(name)} have the formats {' and '.join(found)}, both in all rows"
        raise DataError("init.time", message, hint=f"say which: --time-format '{found[0]}'")
    if not found:
        # The first value that is unlike most others: a stray NA, where nearly all are times.
        best = FORMATS[max(range(len(FORMATS)), key=counts.__getitem__)]
        example = table.value(f"SELECT {text} FROM rows WHERE try_strptime({text}, {literal(best)}) IS NULL LIMIT 1")  # noqa: S608 - quoted
        others = f", {max(counts):,} of {table.num_rows:,} have the format {best}" if max(counts) else ""
        message = f"column {shown(name)}: {shown(example)} is not a time in a known format{others}"
        raise DataError("init.time", message, hint="repair the values, state the format (--time-format '%d.%m.%y'), or name another column")
    return found[0]


def _check_format(table: FoundTable, name: str, text: str, chosen: str) -> None:
    query = f"SELECT {text} FROM rows WHERE try_strptime({text}, {literal(chosen)}) IS NULL LIMIT 1"  # noqa: S608 - quoted
    wrong = table.value(query)
    if wrong is not None:
        message = f"column {shown(name)}: {shown(wrong)} does not have the format {chosen}"
        raise DataError("init.time", message, hint="correct --time-format, or the value")


def _reason(table: FoundTable, name: str) -> str:
    return f": {table.left_out[name]}" if name in table.left_out else ""


def times_of(table: FoundTable) -> list[str]:
    """Return the columns that surely are times, as the file names them."""
    return [each.source_name for each in table.columns.values() if each.type in ("timestamp", "date") or each.is_local_time]


def is_text_time(table: FoundTable, column: FoundColumn) -> bool:
    """Return whether a column has texts that are all times, in a form of FORMATS or of ISO 8601; the first ones decide for most columns."""
    if column.type != "string":
        return False
    name = quoted(column.name)
    at = f"coalesce(try_strptime({name}, [{', '.join(map(literal, FORMATS))}]), TRY_CAST({name} AS TIMESTAMP))"
    query = f"SELECT coalesce(bool_and(coalesce(year({at}) BETWEEN {YEARS[0]} AND {YEARS[1]}, false)), false) FROM "  # noqa: S608 - quoted
    given = f"(SELECT {name} FROM rows WHERE {name} IS NOT NULL"  # noqa: S608 - quoted
    return bool(table.value(f"{query}{given} LIMIT 100)") and table.value(f"{query}{given})"))


def likely_times(table: FoundTable) -> list[str]:
    """Return the columns that `--time` may name: those that surely are times, and texts that look like them; as the file names them."""
    texts = [each.source_name for each in table.columns.values() if not each.num_missing and is_text_time(table, each)]
    return [*times_of(table), *texts]


def later_times(table: FoundTable, time: EventTime) -> list[str]:
    """Return the columns whose times are never before the event, and sometimes after it; a day and a local time may be a day off.

    Days and local times of Parquet are not named: no declaration reads them as instants that may be missing.
    """
    found = []
    for column in table.columns.values():
        if time.is_constant or column.name in (time.column, time.clock_column) or column.source_name not in times_of(table):
            continue
        is_instant = column.type == "timestamp"
        if not is_instant and table.files.kind == "parquet":
            continue
        at = quoted(column.name) if is_instant else f"CAST({quoted(column.name)} AS TIMESTAMP)"
        after = f"epoch_us({at}) - epoch_us({time.instant})"
        least, most = table.rows(f"SELECT min({after}), max({after}) FROM rows")[0]  # noqa: S608 - quoted
        if least is not None and least >= (0 if is_instant else -DAY_US) and most > DAY_US:
            found.append(column.name)
    return found


def _candidates(table: FoundTable) -> str:
    likely = likely_times(table)
    if likely:
        return f"columns with times: {', '.join(likely[:10])}"
    return f"{table.listed()}; without --time all rows have one instant"
