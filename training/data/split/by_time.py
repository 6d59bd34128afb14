"""Train, validation and test by time: the newest rows the test's, as row numbers of the frame instead of copies.

The other kinds of splits are `training.data.split.kinds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import slices_of
from training.errors import DataError, shown

SPLITS: Final = ("train", "validation", "test")
Parts = NDArray[np.int8]
"""[n] number of each row's split in `SPLITS`, or `NO_SPLIT`."""
NO_SPLIT: Final = -1
"""Of a row in a gap."""
MIN_ROWS: Final = {"train": 2, "validation": 1, "test": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitBounds:
    """Instants between which the splits lie, each from its start (inclusive) to its end (exclusive)."""

    start: datetime
    validation: datetime
    test: datetime
    end: datetime
    train_end: datetime | None = None
    """Where the gap before validation begins; None: there is no gap."""
    validation_end: datetime | None = None
    """Where the gap before test begins; None: there is no gap."""
    is_by_time: bool = True
    """False: each split may have rows of the whole time from `start` to `end`."""

    @classmethod
    def of_window(
        cls,
        start: datetime,
        end: datetime,
        *,
        validation: timedelta,
        test: timedelta,
        gap: timedelta = timedelta(),
        zone: tzinfo = UTC,
    ) -> SplitBounds:
        """Cut a window: the last `test` for testing, `validation` before it, the rest for training, a `gap` before either.

        Whole days are counted by the calendar of `zone`: a day on which the clock changes is one day.

        Raises:
            DataError: `split.window`, nothing is left for training.
        """
        test_start = earlier(end, test, zone)
        validation_end = earlier(test_start, gap, zone) if gap else test_start
        validation_start = earlier(validation_end, validation, zone)
        train_end = earlier(validation_start, gap, zone) if gap else validation_start
        if start >= train_end:
            gaps = f", with a gap of {gap} before each," if gap else ""
            message = f"validation {validation} and test {test}{gaps} leave nothing of the window {start.isoformat()} to {end.isoformat()}"
            raise DataError("split.window", message, hint="lengthen data.source.window")
        if not gap:
            return cls(start=start, validation=validation_start, test=test_start, end=end)
        return cls(start=start, train_end=train_end, validation=validation_start, validation_end=validation_end, test=test_start, end=end)

    @classmethod
    def whole(cls, start: datetime, end: datetime) -> SplitBounds:
        """Return the bounds of splits that are not made by time: each from `start` to `end`.

        Raises:
            DataError: `split.window`, there is no time between.
        """
        if start >= end:
            message = f"nothing is left of the window: it begins at {start.isoformat()}, the splits end at {end.isoformat()}"
            raise DataError("split.window", message, hint="lengthen data.source.window, or set an earlier data.split.end")
        return cls(start=start, validation=start, test=start, end=end, is_by_time=False)

    def to_json(self) -> dict[str, list[str]]:
        """Return `{split: [start, end]}`, ISO 8601."""
        return {name: [first.isoformat(), end.isoformat()] for name, (first, end) in self.of_splits().items()}

    def of_splits(self) -> dict[str, tuple[datetime, datetime]]:
        """Return `{split: (start, end)}`."""
        if not self.is_by_time:
            return dict.fromkeys(SPLITS, (self.start, self.end))
        train_end, validation_end = self.train_end or self.validation, self.validation_end or self.test
        return {"train": (self.start, train_end), "validation": (self.validation, validation_end), "test": (self.test, self.end)}


def time_parts(decisive_us: NDArray[np.int64], bounds: SplitBounds) -> Iterator[Parts]:
    """Yield where the rows go, some rows at a time; a row in a gap is in no split.

    Args:
        decisive_us: [n] what `decisive_times` returned.
    """
    spans = [(_microseconds(first), _microseconds(end)) for first, end in bounds.of_splits().values()]
    for part in slices_of(len(decisive_us)):
        times = decisive_us[part]
        parts = np.full(len(times), NO_SPLIT, dtype=np.int8)
        for number, (first, end) in enumerate(spans):
            parts[(times >= first) & (times < end)] = number
        yield parts


def decisive_times(event_time: NDArray[np.datetime64], bounds: SplitBounds, groups: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Return [n]: microseconds since 1970, UTC, of the event that decides where each row goes.

    Args:
        event_time: [n] UTC.
        bounds: see `SplitBounds`.
        groups: [n] dense numbers; a group goes where its first event does, as a whole.

    Raises:
        DataError: `split.outside`, a row is outside of the window.
    """
    event_us = event_time.astype("datetime64[us]", copy=False).view(np.int64)
    decisive = _decisive(event_us, groups)
    num_outside = int(((event_us < _microseconds(bounds.start)) | (decisive >= _microseconds(bounds.end))).sum())
    if num_outside:
        window = f"{bounds.start.isoformat()} to {bounds.end.isoformat()}"
        raise DataError("split.outside", f"{num_outside} of {len(event_us)} rows lie outside of the window {window}")
    return decisive


def check_sizes(rows: Mapping[str, NDArray[np.int64]], num_rows: int, *, hint: str) -> None:
    """Refuse splits that are too small to train, choose or measure on.

    Args:
        rows: of each split.
        num_rows: of all rows that were divided.
        hint: what to do.

    Raises:
        DataError: `data.too_small`.
    """
    counts = ", ".join(f"{name} {len(numbers)}" for name, numbers in rows.items())
    for name, numbers in rows.items():
        if len(numbers) < MIN_ROWS[name]:
            message = f"split {name!r} has {len(numbers)} rows of {num_rows}, at least {MIN_ROWS[name]} are needed ({counts})"
            raise DataError("data.too_small", message, hint=hint)


def is_before(event_time: NDArray[np.datetime64], end: datetime, *, groups: NDArray[np.int32] | None) -> NDArray[np.bool_]:
    """Return [n]: whether a row, or its group's first one, is earlier than `end`; arguments as `decisive_times`."""
    return np.asarray(_decisive(event_time.astype("datetime64[us]", copy=False).view(np.int64), groups) < _microseconds(end))


def _decisive(event_us: NDArray[np.int64], groups: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Return [n]: the time that decides where a row goes, of the first row of its group where there are groups."""
    if groups is None or not len(groups):
        return event_us
    firsts = np.full(int(groups.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(firsts, groups, event_us)
    return firsts[groups]


def check_labels(label: NDArray[np.float64], rows: Mapping[str, NDArray[np.int64]], *, task: str, names: Sequence[str] = ()) -> None:
    """Refuse labels that nothing can be learned from or measured on.

    Args:
        label: [n].
        rows: of each split.
        task: of the spec; numbers to be estimated may be 0 and 1 by chance.
        names: of the classes, where they have names.

    Raises:
        DataError: `label.single_class`, all rows have one label; `label.missing_in_split`, the labels are 0 and 1, and a
            split has only one of them, or there are several classes and the training rows have only one.
    """
    least, most = label.min(), label.max()
    if least == most:
        raise DataError("label.single_class", f"all {len(label)} rows have the label {_value(least, names)}", hint="check data.label")
    if task == "regression":
        return
    is_yes_or_no = all(np.isin(label[part], (0.0, 1.0)).all() for part in slices_of(len(label)))
    if not is_yes_or_no and task != "multiclass":
        return
    for name, numbers in rows.items() if is_yes_or_no else [("train", rows["train"])]:
        first = label[numbers[0]]
        if all((label[numbers[part]] == first).all() for part in slices_of(len(numbers))):
            message = f"split {shown(name)}: all {len(numbers)} rows have the label {_value(first, names)}"
            raise DataError("label.missing_in_split", message, hint="lengthen this split, or check the label's source for these days")


def _value(label: np.float64, names: Sequence[str]) -> str:
    return shown(names[int(label)]) if names else f"{label:g}"


def earlier(instant: datetime, duration: timedelta, zone: tzinfo) -> datetime:
    """Return the instant that lies `duration` before, in UTC; whole days are counted by the calendar of `zone`."""
    if duration % timedelta(days=1):
        return instant.astimezone(UTC) - duration
    # Arithmetic on an aware datetime keeps the wall clock.
    return (instant.astimezone(zone) - duration).astimezone(UTC)


def _microseconds(instant: datetime) -> int:
    return int(np.datetime64(int(instant.timestamp() * 1_000_000), "us").astype(np.int64))
