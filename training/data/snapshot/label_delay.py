"""Labels that come late: how many rows of the window have none yet at `as_of`, and where the test split ends because of them.

A row is left out until its label is known. Rows whose label comes quickly are kept and the others are not, so the newest days, and
with them the test split, hold a biased choice of rows unless the split ends where labels are complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final, TypedDict
from zoneinfo import ZoneInfo

import numpy as np

from training.contracts import EPOCH, microseconds_of
from training.data.split.by_time import SplitBounds, earlier
from training.errors import DataError
from training.spec import PipelineSpec
from training.spec.scalar_types import duration_text

if TYPE_CHECKING:
    from training.sources.local_times import Microseconds
    from training.sources.snapshot_files import LabelTimes

LABELS_COMPLETE: Final = "labels_complete"
AFTER_TEST: Final = "after the test split"
IN_A_GAP: Final = "between the splits"
ALL_SPLITS: Final = "all splits"
"""Of splits that are not made by time: which one a row is in is not known before `prepare`."""
META_KEY: Final = "unknown_labels"
"""In the meta of snapshots and datasets."""
DAY: Final = timedelta(days=1)
MAX_DAYS_SHOWN: Final = 14


class Counts(TypedDict):
    """Rows, and how many of them have no known label."""

    rows: int
    unknown: int


class UnknownLabels(Counts):
    """`unknown_labels` in the meta of snapshots and datasets; see `unknown_labels`."""

    first_unknown: str | None
    bounds: dict[str, list[str]]
    splits: dict[str, Counts]
    days: dict[str, Counts]


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRule:
    """`data.split`, and the time zone whose days are counted."""

    validation: timedelta
    test: timedelta
    end: timedelta | str
    """Where the test split ends: `window`, `labels_complete`, or this long before the window's end."""
    zone: tzinfo
    gap: timedelta = timedelta()
    """Before validation, and before test."""
    is_by_time: bool = True
    """False: each split has rows of the whole window; `validation`, `test` and `gap` are 0."""

    @classmethod
    def of(cls, spec: PipelineSpec) -> SplitRule:
        split, zone = spec.data.split, ZoneInfo(spec.timezone)
        if not isinstance(split.validation, timedelta) or not isinstance(split.test, timedelta):
            return cls(validation=timedelta(), test=timedelta(), end=split.end, zone=zone, is_by_time=False)
        return cls(validation=split.validation, test=split.test, end=split.end, zone=zone, gap=split.gap or timedelta())

    def bounds(self, start: datetime, end: datetime) -> SplitBounds:
        """Return the bounds of the splits of [start, end).

        Raises:
            DataError: `split.window`.
        """
        if not self.is_by_time:
            return SplitBounds.whole(start, end)
        return SplitBounds.of_window(start, end, validation=self.validation, test=self.test, gap=self.gap, zone=self.zone)


def split_bounds(rule: SplitRule, start: datetime, end: datetime, meta: UnknownLabels | None) -> SplitBounds:
    """Return the bounds of the splits of the window [start, end).

    With `labels_complete` the test split ends at the window's end, or so many whole days before it that every row before has a
    known label; where the splits are not whole days, at the first row without one.

    Args:
        meta: what `unknown_labels` returned; None: every label is known.

    Raises:
        DataError: `split.window`; `split.labels_incomplete`, labels are complete for too short a time.
    """
    if isinstance(rule.end, timedelta):
        end = earlier(end, rule.end, rule.zone)
    first = None if meta is None else meta["first_unknown"]
    if rule.end != LABELS_COMPLETE or first is None:
        return rule.bounds(start, end)
    complete = _complete_until(rule, start, end, datetime.fromisoformat(first))
    try:
        return rule.bounds(start, complete)
    except DataError as err:
        message = (
            f"labels are complete until {complete.isoformat()} (the label of a row of {first} is not known at as_of): "
            f"{_needed(rule)} nothing to train on of the window from {start.isoformat()}"
        )
        hint = "lengthen data.source.window, or end the test split a fixed time before the window's end: data.split.end: 14d"
        raise DataError("split.labels_incomplete", message, hint=hint) from err


def _needed(rule: SplitRule) -> str:
    if not rule.is_by_time:
        return "that leaves"
    gaps = f", with a gap of {duration_text(rule.gap)} before each," if rule.gap else ""
    return f"validation {duration_text(rule.validation)} and test {duration_text(rule.test)}{gaps} leave"


def _complete_until(rule: SplitRule, start: datetime, end: datetime, first_unknown: datetime) -> datetime:
    if rule.validation % DAY or rule.test % DAY or rule.gap % DAY:
        return max(start, first_unknown)
    complete = end
    while complete > first_unknown and complete > start:
        complete = earlier(complete, DAY, rule.zone)
    return max(start, complete)


def unknown_labels(times: LabelTimes, rule: SplitRule, start: datetime, end: datetime) -> UnknownLabels:
    """Return how many rows have no known label, as JSON: the meta of a snapshot.

    Returns:
        `rows` and `unknown` of the window; `first_unknown`, the event time of the first row without a label, or None; `bounds` and
        `splits {split: {rows, unknown}}` by event time (a group whose rows lie on both sides of a border is counted on both), the rows
        after a test split that ends before the window among them, and those in a gap; of splits that are not made by time the rows of
        all together; both empty where the window cannot be divided;
        `days {YYYY-MM-DD: {rows, unknown}}` of the days with such rows.
    """
    both = np.concatenate([times.known_us, times.unknown_us])
    first = int(times.unknown_us.min()) if len(times.unknown_us) else None
    meta: UnknownLabels = {
        "rows": len(both),
        "unknown": len(times.unknown_us),
        "first_unknown": None if first is None else _instant(first).isoformat(),
        "bounds": {},
        "splits": {},
        "days": _by_day(both, times.unknown_us, rule.zone),
    }
    try:
        bounds = split_bounds(rule, start, end, meta)
    except DataError:
        # Prepare raises it, once the validation report has shown the days.
        return meta
    return {**meta, "bounds": bounds.to_json(), "splits": _by_split(both, times.unknown_us, bounds, end)}


def _by_split(both_us: Microseconds, unknown_us: Microseconds, bounds: SplitBounds, end: datetime) -> dict[str, Counts]:
    pieces = list(bounds.of_splits().items()) if bounds.is_by_time else [(ALL_SPLITS, (bounds.start, bounds.end))]
    known, unknown = np.sort(both_us), np.sort(unknown_us)

    def count(edges: list[int]) -> Counts:
        rows, late = (int(np.diff(np.searchsorted(us, edges))[0]) for us in (known, unknown))
        return {"rows": rows, "unknown": late}

    # The first split has what is before the window too: prepare refuses it.
    first = min(int(known[0]), microseconds_of(bounds.start)) if len(known) else microseconds_of(bounds.start)
    starts = [first, *(microseconds_of(start) for _, (start, _) in pieces[1:])]
    splits = {name: count([start, microseconds_of(stop)]) for start, (name, (_, stop)) in zip(starts, pieces, strict=True)}
    inside = count([first, microseconds_of(bounds.end)])
    if bounds.train_end is not None:
        found = list(splits.values())
        splits[IN_A_GAP] = {
            "rows": inside["rows"] - sum(counts["rows"] for counts in found),
            "unknown": inside["unknown"] - sum(counts["unknown"] for counts in found),
        }
    if bounds.end != end:
        splits[AFTER_TEST] = {"rows": len(known) - inside["rows"], "unknown": len(unknown) - inside["unknown"]}
    return splits


def split_lines(meta: UnknownLabels) -> list[str]:
    """Return one line per split, and one about the newest days, for the log."""
    lines = [f"{name}: {share_text(found)} have no known label at as_of" for name, found in meta["splits"].items()]
    days = list(meta["days"].items())[-MAX_DAYS_SHOWN:]
    if days:
        lines.append("newest days: " + ", ".join(f"{day} {found['unknown']:,} of {found['rows']:,}" for day, found in days))
    return lines


def share_text(found: Counts) -> str:
    """Return `172 of 383 rows (44.9 %)`."""
    share = f" ({100 * found['unknown'] / found['rows']:.1f} %)" if found["unknown"] else ""
    return f"{found['unknown']:,} of {found['rows']:,} rows{share}"


def _by_day(both_us: Microseconds, unknown_us: Microseconds, zone: tzinfo) -> dict[str, Counts]:
    """Return the counts of each local day that has a row without a label."""
    days: dict[str, Counts] = {}
    if not len(unknown_us):
        return days
    at = _instant(int(unknown_us.min())).astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    last = int(unknown_us.max())
    known, unknown = np.sort(both_us), np.sort(unknown_us)
    while microseconds_of(at) <= last:
        edges = [microseconds_of(at), microseconds_of(at + DAY)]
        rows, late = (int(np.diff(np.searchsorted(us, edges))[0]) for us in (known, unknown))
        if late:
            days[at.date().isoformat()] = {"rows": rows, "unknown": late}
        at += DAY
    return days


def _instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
