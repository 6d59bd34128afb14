"""What an engine joins, and what must hold for every row of the result, whichever engine joined it.

For every row of the main table, the joined frame has what was known of the other tables when its prediction was made. A feature table
with an event time is joined point in time: the newest row of the same key whose
`event_time + available_after <= main event time - decision_lead`, and not older than `max_age` at that instant. One without is a
dimension: a plain left join, each key once. The frame is in the order of (event time, key).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.errors import DataError, shown

LABEL: Final = "label"
MAX_ROWS_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MainTable:
    """One row per prediction. Names are those of the frame, but for the sources of `columns`."""

    name: str
    paths: Sequence[Path]
    """Parquet files, together the table."""
    columns: Mapping[str, str]
    """Name in the files to name in the frame."""
    event_time: str
    key: Sequence[str]
    decision_lead: timedelta
    label_column: str
    label_rule: str | None = None
    """`> 15`: label 1 where the column is so; None: the column's own value."""
    label_is_text: bool = False
    """Whether the label is the name of a class."""
    label_known_at: str | None = None
    """Column with the instant from which the label is known."""
    start: datetime | None = None
    """Earlier rows are history, which windows look at, and not in the frame; None: there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedTable:
    """A table whose columns are added to the main one's."""

    name: str
    paths: Sequence[Path]
    on: Mapping[str, str]
    """Frame's column to this table's."""
    columns: Mapping[str, str]
    """What is added: name in the files to name in the frame."""
    event_time: str | None = None
    available_after: timedelta = field(default_factory=timedelta)
    max_age: timedelta | None = None

    @property
    def fact_time(self) -> str:
        """Column of the joined rows, before they are checked, with the event time of the fact that was joined."""
        return f"time of {self.name}"


class RowChecks:
    """Looks at joined rows, a batch at a time in the order of the frame, independent of the engine.

    No fact may be later than its row's decision, every label must be known, and no two rows may have one event time and key: their
    order would not be defined.
    """

    def __init__(self, main: MainTable, features: Sequence[JoinedTable]) -> None:
        self._main = main
        self._timed = [table for table in features if table.event_time is not None]
        self._late = {table.name: _Wrong() for table in self._timed}
        self._unlabelled, self._repeated = _Wrong(), _Wrong()
        self._last: pa.Table | None = None
        """The row before the batch: its event time and key."""
        self.num_rows = 0

    def checked(self, joined: pa.Table) -> pa.Table:
        """Look at the next rows; return them without the columns `JoinedTable.fact_time`."""
        event_time = _microseconds(joined, self._main.event_time)
        for table in self._timed:
            self._note(self._late[table.name], joined, self._late_rows(table, joined, event_time))
        rows = joined.drop_columns([table.fact_time for table in self._timed]).combine_chunks()
        self._note(self._unlabelled, rows, self._unlabelled_rows(rows))
        self._note(self._repeated, rows, self._repeated_rows(rows))
        self.num_rows += rows.num_rows
        return rows

    def finish(self) -> None:
        """Raise what was found in all rows.

        Raises:
            DataError: `leakage.time`, `data.nulls` (a label), `data.duplicate_key`.
        """
        for table in self._timed:
            self._refuse_late(table, self._late[table.name])
        self._refuse_unlabelled(self._unlabelled)
        self._refuse_repeated(self._repeated)

    def _refuse_late(self, table: JoinedTable, wrong: _Wrong) -> None:
        if wrong.count:
            message = f"{wrong.count} of {self.num_rows} rows have facts of {shown(table.name)} from after the decision: {wrong.text}"
            hint = "check event_time, available_after and decision_lead"
            raise DataError("leakage.time", message, hint=hint, details={"rows": wrong.count})

    def _refuse_unlabelled(self, wrong: _Wrong) -> None:
        if wrong.count:
            found = f"{wrong.count} of {self.num_rows} rows have none, limit 0: {wrong.text}"
            hint = "leave such rows out at the source, or name the label's known_at"
            raise DataError("data.nulls", f"label {shown(self._main.label_column)}: {found}", hint=hint)

    def _refuse_repeated(self, wrong: _Wrong) -> None:
        if wrong.count:
            message = f"{wrong.count} of {self.num_rows} rows repeat the key of another: {wrong.text}"
            raise DataError("data.duplicate_key", message, hint="one row per key; see the source for a day that was written twice")

    def _note(self, wrong: _Wrong, rows: pa.Table, numbers: NDArray[np.int64]) -> None:
        if not len(numbers):
            return
        wrong.count += len(numbers)
        chosen = rows.select(list(self._main.key)).take(pa.array(numbers[: MAX_ROWS_SHOWN - len(wrong.examples)])).to_pylist()
        wrong.examples += [", ".join(f"{name}={shown(value)}" for name, value in row.items()) for row in chosen]

    def _late_rows(self, table: JoinedTable, joined: pa.Table, event_time: NDArray[np.int64]) -> NDArray[np.int64]:
        known_at = _microseconds(joined, table.fact_time) + table.available_after // timedelta(microseconds=1)
        lead = self._main.decision_lead // timedelta(microseconds=1)
        return np.flatnonzero(np.asarray(pc.is_valid(joined[table.fact_time])) & (known_at > event_time - lead))

    def _unlabelled_rows(self, rows: pa.Table) -> NDArray[np.int64]:
        if self._main.label_is_text:
            missing: NDArray[np.bool_] = np.asarray(pc.equal(pc.fill_null(rows[LABEL], ""), ""))
        else:
            # A null becomes NaN here; both mean unknown.
            missing = ~np.isfinite(rows[LABEL].to_numpy(zero_copy_only=False))
        return np.flatnonzero(missing)

    def _repeated_rows(self, rows: pa.Table) -> NDArray[np.int64]:
        keys = rows.select([self._main.event_time, *self._main.key])
        both = keys if self._last is None else pa.concat_tables([self._last, keys])
        if rows.num_rows:
            self._last = keys.slice(rows.num_rows - 1)
        if both.num_rows < 2:
            return np.empty(0, dtype=np.int64)
        same = np.ones(both.num_rows - 1, dtype=bool)
        for column in both.combine_chunks().columns:
            values = column.combine_chunks()
            same &= np.asarray(pc.fill_null(pc.equal(values[1:], values[:-1]), False))
        # Of two equal rows the later one repeats the key.
        repeated: NDArray[np.int64] = np.flatnonzero(same) + 1 - (both.num_rows - rows.num_rows)
        return repeated


@dataclass(slots=True)
class _Wrong:
    """Rows that fail a check: how many, and the keys of the first ones."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "; ".join(self.examples)


def _microseconds(table: pa.Table, name: str) -> NDArray[np.int64]:
    column = table[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return np.asarray(pc.fill_null(column, 0))
