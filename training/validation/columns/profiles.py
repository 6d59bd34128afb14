"""What is kept of a snapshot's columns, so that a later one can be compared with it without its rows.

A profile is JSON, the same bytes for the same rows: of numbers the histogram of `histogram`, of texts and truth values the most
frequent values. Times and keys of one column have none: they are new in each snapshot. One of several columns of a key has one if
`validate.drift.columns` names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from training.contracts import Instant, JsonObject, instant_text
from training.validation.columns.histogram import KeyHistogram
from training.validation.columns.numbers import NumberCounts
from training.validation.columns.statistics import TIMES, ColumnProfile
from training.validation.columns.values import MAX_TEXT
from training.validation.snapshot_view import TableView

FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class ValueCounts:
    """Texts or truth values of a column."""

    rows: int
    num_missing: int
    num_distinct: int
    frequent: Mapping[str, int]
    """Value to rows: those of up to `MAX_TEXT` characters among the most frequent ones, the most frequent first."""

    @property
    def is_complete(self) -> bool:
        """Whether `frequent` has every value."""
        return len(self.frequent) == self.num_distinct


Counts = NumberCounts | ValueCounts
Tables = Mapping[str, Mapping[str, Counts]]
"""Table, column, counts."""


def counts_of(view: TableView, profiles: Mapping[str, ColumnProfile], named: Collection[str] = ()) -> dict[str, Counts]:
    """Return the counts of a table's columns, but of its key and its times.

    Args:
        named: columns that have counts also if they are one of several of the key.
    """
    key = set(view.contract.key)
    left_out = key - set(named) if len(key) > 1 else key
    found: dict[str, Counts] = {}
    for name, profile in profiles.items():
        if name in left_out or view.contract.types[name] in TIMES:
            continue
        if profile.numbers is not None:
            found[name] = profile.numbers.total.counts(profile.numbers.num_null)
        elif profile.values is not None:
            values = profile.values
            rows = ((counted.value, counted.rows) for counted in values.frequent)
            short = {value: count for value, count in rows if value is not None and len(value) <= MAX_TEXT}
            found[name] = ValueCounts(rows=values.num_rows, num_missing=values.num_null, num_distinct=values.num_distinct, frequent=short)
    return found


def to_json(tables: Tables, *, snapshot: str, as_of: Instant, runs: Sequence[JsonObject] = ()) -> JsonObject:
    """Return what `tables_of` reads.

    Args:
        snapshot: digest.
        as_of: of the run.
        runs: `all_checks.numbers_of_run` of this snapshot and those before, oldest first.
    """
    columns = {table: {name: _stored(counts) for name, counts in found.items()} for table, found in tables.items()}
    return {"format": FORMAT, "snapshot": snapshot, "as_of": instant_text(as_of), "tables": columns, "runs": list(runs)}


def tables_of(stored: Mapping[str, Any]) -> Tables | None:
    """Return the counts of a stored profile; None: a later version wrote it in another format."""
    if stored["format"] != FORMAT:
        return None
    return {table: {name: _counts(values) for name, values in columns.items()} for table, columns in stored["tables"].items()}


def _stored(counts: Counts) -> JsonObject:
    if isinstance(counts, NumberCounts):
        numbers = {"missing": counts.num_missing, "below": counts.num_below, "above": counts.num_above}
        return {"kind": "number", **numbers, "histogram": counts.histogram.to_json()}
    values = {"rows": counts.rows, "missing": counts.num_missing, "distinct": counts.num_distinct}
    # Pairs: canonical JSON sorts the keys of objects.
    return {"kind": "value", **values, "frequent": [[value, rows] for value, rows in counts.frequent.items()]}


def _counts(stored: Mapping[str, Any]) -> Counts:
    if stored["kind"] == "number":
        return NumberCounts(
            histogram=KeyHistogram.from_json(stored["histogram"]),
            num_missing=stored["missing"],
            num_below=stored["below"],
            num_above=stored["above"],
        )
    frequent = {value: rows for value, rows in stored["frequent"]}
    return ValueCounts(rows=stored["rows"], num_missing=stored["missing"], num_distinct=stored["distinct"], frequent=frequent)
