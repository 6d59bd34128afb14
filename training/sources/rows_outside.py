"""Rows of the main table whose times are outside of the window. Counted and said, never in the manifest: a later run has others there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from training.contracts import Scalar, microseconds_of
from training.errors import DataError, shown
from training.sources.interface import SourceWindow
from training.sources.local_times import DAY_US, Microseconds
from training.spec.scalar_types import duration_text

PLACEHOLDERS: Final = ("1900-01-01", "1970-01-01", "9999-12-31")
"""Days that programs write for a missing time."""
NEAR_US: Final = 3_660 * DAY_US
"""A day with other times that near is among real ones, also of years or decades."""
CLOCK_ERROR: Final = timedelta(hours=1)
"""How far the clock of what writes rows may be ahead of this machine's."""
UNITS: Final = (
    (1 / 1_000, "milliseconds read as seconds"),
    (1_000, "seconds read as milliseconds"),
    (1e-6, "microseconds read as seconds"),
)
"""Factor that mends times since 1970, and what they then are."""

ARE: Final = {
    "before_window": "before the window",
    "after_window": "after the window",
    "after_now": "later than this machine's clock",
}
VERSIONS: Final = {
    "rows_updated_later": "rows are versions later than as_of",
    "rows_repeated": "rows are repeated as they are",
    "rows_replaced": "rows are replaced by a newer one of their key",
    "rows_deleted": "rows are deleted",
}


@dataclass(slots=True)
class TimeRange:
    """A number of rows with their oldest and newest time, in microseconds since 1970."""

    rows: int = 0
    oldest_us: int = 0
    newest_us: int = 0

    def add(self, us: Microseconds) -> None:
        if len(us):
            oldest, newest = int(us.min()), int(us.max())
            self.oldest_us = min(self.oldest_us, oldest) if self.rows else oldest
            self.newest_us = max(self.newest_us, newest) if self.rows else newest
            self.rows += len(us)


@dataclass(slots=True)
class RowsOutside:
    """The times of the rows that were read of the main table, and of those that are not in the window."""

    now: datetime
    """By the clock of this machine."""
    lead: timedelta = timedelta()
    """`data.source.decision_lead`: a row may be there this long before its time."""
    read: TimeRange = field(default_factory=TimeRange)
    before: TimeRange = field(default_factory=TimeRange)
    after: TimeRange = field(default_factory=TimeRange)
    future: TimeRange = field(default_factory=TimeRange)
    """Of `after`, those that the clock has not reached."""
    too_far: TimeRange = field(default_factory=TimeRange)
    """Of `future`, those that are further ahead than `lead`."""
    placeholders: Counter[str] = field(default_factory=Counter)
    near_placeholders: Counter[str] = field(default_factory=Counter)
    """Those of `placeholders`, and other rows and bounds of the window near them."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Of `data.source.newest_by`: rows that do not count, by a name of VERSIONS. None of them is in the other numbers."""

    def add(self, us: Microseconds, window: SourceWindow) -> None:
        """Count the times of a part, [rows]."""
        self.read.add(us)
        for bound, found, compare in ((window.start, self.before, np.less), (window.end, self.after, np.greater_equal)):
            outside = us[:0] if bound is None else us[compare(us, microseconds_of(bound))]
            found.add(outside)
            if bound is not None and len(outside):
                for day in PLACEHOLDERS:
                    midnight_us = microseconds_of(datetime.fromisoformat(f"{day}T00:00:00+00:00"))
                    distances_us = np.abs(outside - midnight_us)
                    # In any time zone.
                    self.placeholders[day] += int(np.count_nonzero(distances_us <= DAY_US))
                    is_bound_near = abs(microseconds_of(bound) - midnight_us) <= NEAR_US
                    self.near_placeholders[day] += int(np.count_nonzero(distances_us <= NEAR_US)) + is_bound_near
        if self.after.rows:
            self.future.add(us[us > microseconds_of(self.now + CLOCK_ERROR)])
            self.too_far.add(us[us > microseconds_of(self.now + CLOCK_ERROR + self.lead)])

    def check(self, window: SourceWindow, *, table: str, limit: float) -> None:
        """Raise where no row is in the window, or too many are later than the clock.

        Args:
            limit: `validate.future_rows`.

        Raises:
            DataError: `data.empty`, `data.future_rows`.
        """
        rows, times = self.read.rows, self.read
        if rows and self.before.rows + self.after.rows == rows:
            bounds = " to ".join("the begin" if bound is None else bound.isoformat() for bound in (window.start, window.end))
            message = f"none of the {rows:,} rows of table {shown(table)} is in the window, {bounds}: they are of {_span(times)}"
            raise DataError("data.empty", message, hint=_remedy(times, window))
        if self.too_far.rows > limit * rows:
            found = f"{self.too_far.rows:,} of {rows:,} rows of table {shown(table)} ({self.too_far.rows / rows:.1%})"
            clock = f"the clock of this machine, {instant_words(microseconds_of(self.now))}"
            ahead = f", by more than decision_lead ({duration_text(self.lead)})" if self.lead else ""
            message = f"{found} are later than {clock}{ahead}: {_span(self.too_far)}; allowed are {limit:.1%}"
            hint = (
                "a wrong year, day and month exchanged, or a local time called UTC? Correct the times; "
                "where rows lie ahead by nature, as bookings do, set validate.future_rows: 1"
            )
            raise DataError("data.future_rows", message, hint=hint)

    def scalars(self) -> dict[str, Scalar]:
        """Return what `outside_lines` says, as the scalars of a result; empty where no row is left out."""
        if not self.before.rows + self.after.rows:
            return dict(self.versions)
        found: dict[str, Scalar] = {**self.versions, "rows_read": self.read.rows}
        if self.before.rows:
            found |= {"rows_before_window": self.before.rows, "times_before_window": _span(self.before)}
        if self.after.rows:
            found |= {"rows_after_window": self.after.rows, "times_after_window": _span(self.after)}
        if self.future.rows:
            found |= {"rows_after_now": self.future.rows, "times_after_now": _span(self.future)}
        repeated = [f"{count:,} at {day}" for day, count in sorted(self.placeholders.items()) if 1 < count == self.near_placeholders[day]]
        return found | ({"placeholder_times": ", ".join(repeated)} if repeated else {})


def outside_lines(scalars: Mapping[str, Scalar]) -> Iterator[str]:
    """Yield what the scalars of `ingest` say of rows outside of the window, for people."""
    for name, words in ARE.items():
        if f"rows_{name}" in scalars:
            yield f"{scalars[f'rows_{name}']:,} of {scalars['rows_read']:,} rows are {words}: {scalars[f'times_{name}']}"
    for name, words in VERSIONS.items():
        if name in scalars:
            yield f"{scalars[name]:,} {words} (data.source.newest_by)"
    if "placeholder_times" in scalars:
        yield f"times that often stand for a missing one: {scalars['placeholder_times']}"


def is_warning(line: str) -> bool:
    """Whether a line of `outside_lines` is of rows later than the clock."""
    return ARE["after_now"] in line


def instant_words(us: int) -> str:
    """Return an instant as ISO 8601, to the second, also of a year beyond 9999."""
    return f"{np.datetime64(us // 1_000_000, 's')}Z"


def _span(times: TimeRange) -> str:
    ends = [instant_words(times.oldest_us), instant_words(times.newest_us)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _remedy(times: TimeRange, window: SourceWindow) -> str:
    start, end = (microseconds_of(bound or datetime.now(UTC)) for bound in (window.start, window.end))
    for factor, words in UNITS:
        if start - 365 * DAY_US <= times.oldest_us * factor and times.newest_us * factor < end + 365 * DAY_US:
            return f"{words}?"
    return "correct the times, data.source.window, or the time that the run is as of"
