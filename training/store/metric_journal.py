"""Metric points of a training while it trains, in an order that never changes: the source of live metrics.

Of one run: `metrics/<pipeline>/<run>/<number>.jsonl`, a batch of events each, named by the number of its first event. A trial of a study
has a journal of its own: `<run>` is then `<study>-<slot>`, because several runs may work on one study. A refit has `<run>~refit`. Numbers
count from 1 without gaps over all attempts. The first line of a batch has its attempt and its number, each other line is an event:

    {"began": …}                      an attempt began; it has a number, and no reader sees it
    [name, value, step, milliseconds] a point

A batch is created where nothing has its name, and begins where the one before ends. So an attempt that was taken for dead, and writes after
the next one began, finds its name taken, and stops. An attempt merges its own batches; the first keeps its name, so a name that was
taken stays taken, and numbers stay as they are.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from training.contracts import json_number
from training.errors import NightshiftError
from training.stage_table import REFIT, TRAININGS, TRIAL
from training.store.bucket import Bucket

logger = logging.getLogger(__name__)

PREFIX: Final = "metrics"
MERGED: Final = 64
"""Objects at the end of a journal that become one."""
MAX_MERGED_BYTES: Final = 256 * 1024
"""Of one object, unless it is one batch: a reader that follows the journal reads the last object again after each merge."""
_NAME: Final = re.compile(r"(\d{12})\.jsonl")

_TRIAL: Final = re.compile(r"([0-9a-f]{64})-\d{5}")
_OF_A_REFIT: Final = f"~{REFIT}"

RawPoint = tuple[str, float, int, int]
"""Name, value, step, milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class JournalPoint:
    """A value of a metric, with its place in the journal."""

    attempt: int
    """Of the training, from 1."""
    number: int
    """In the run's journal; rises, also from attempt to attempt."""
    name: str
    value: float | str
    """A value that is not finite is a word: `nan`, `inf`, `-inf`."""
    step: int
    logged_at_ms: int
    """Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that one object has."""

    attempt: int
    first: int
    """Number of the first event."""
    num_events: int
    points: tuple[JournalPoint, ...]

    @property
    def end(self) -> int:
        """Number of the event that follows the last."""
        return self.first + self.num_events


@dataclass(frozen=True, slots=True)
class JournalObject:
    """An object of a journal."""

    key: str
    first: int
    version: str
    """Changes when batches are merged into it."""
    modified: datetime


def trial_journal(study: str, slot: int) -> str:
    """Return the name of the journal of one trial, in place of a run's id.

    Args:
        study: digest of the study.
    """
    return f"{study}-{slot:05d}"


def journal_name(stage: str, run_id: str, parameters: Mapping[str, object]) -> str | None:
    """Return the name of the journal of a stage's work; None: it logs no metrics.

    Args:
        parameters: of the stage's request; a trial has `study` and `slot`.
    """
    if stage == TRIAL:
        return trial_journal(str(parameters["study"]), int(str(parameters["slot"])))
    if stage == REFIT:
        return run_id + _OF_A_REFIT
    return run_id if stage in TRAININGS else None


def owner_key(pipeline: str, name: str) -> str:
    """Return the key of the run or the study that has the journal of this name."""
    match = _TRIAL.fullmatch(name)
    return f"runs/{pipeline}/{name.removesuffix(_OF_A_REFIT)}" if match is None else f"studies/{pipeline}/{match[1]}"


class MetricJournal:
    """The points of one training: of a run, or of a trial."""

    def __init__(self, bucket: Bucket, pipeline: str, run_id: str) -> None:
        """Name the journal; nothing is read or written.

        Args:
            run_id: of a run, or `trial_journal`.
        """
        self.bucket = bucket
        self._folder = f"{PREFIX}/{pipeline}/{run_id}"

    def key(self, first: int) -> str:
        return f"{self._folder}/{first:012d}.jsonl"

    def places(self) -> list[JournalObject]:
        """Return the objects, by the number of their first event. Batches that were merged may be there twice."""
        found = []
        for entry in self.bucket.list(self._folder):
            match = _NAME.fullmatch(entry.key.rpartition("/")[2])
            if match is not None:
                found.append(JournalObject(entry.key, int(match[1]), f"{entry.version}-{entry.size_bytes}", entry.modified))
        return found

    def read(self, place: JournalObject) -> Batch | None:
        """Return what an object holds; None where it was merged into another one since it was listed."""
        data = self.bucket.find(place.key)
        return None if data is None else decode(data)

    def newest(self, before: int | None = None) -> tuple[int, int] | None:
        """Return the last attempt, and the number after the last event, of the objects with names below `before`; None: all of them.

        None where an object was merged since it was listed.

        Raises:
            NightshiftError: the storage does not answer.
        """
        attempt, end = 0, 1
        for place in reversed([place for place in self.places() if before is None or place.first < before]):
            batch = self.read(place)
            if batch is None:
                return None
            attempt, end = max(attempt, batch.attempt), max(end, batch.end)
            if batch.points:
                break
        return attempt, end

    def after(self, number: int) -> Iterator[JournalPoint]:
        """Yield the points whose number is above `number`, in order, those that are there now; objects are read one after another."""
        is_read = False
        while not is_read:
            is_read = True
            for batch in self._batches(number):
                if batch is None:
                    # Merged in the meantime: the list is old.
                    is_read = False
                    break
                yield from (point for point in batch.points if point.number > number)
                number = max(number, batch.end - 1)

    def _batches(self, number: int) -> Iterator[Batch | None]:
        places = self.places()
        for index in range(start_of(places, number), len(places)):
            found = [self.read(places[index])]
            # A beginning may be inside the object before it: taken back soon, or left by an attempt that was killed.
            while index and found[-1] is not None and not found[-1].points:
                index -= 1
                found.append(self.read(places[index]))
            yield from reversed(found)


def start_of(places: Sequence[JournalObject], number: int) -> int:
    """Return the index of the first object that may have points above `number`; the one before it may, where it has no point itself."""
    # A merged batch is longer than to the next name where those that it replaces are not deleted yet: reading those is enough.
    return max(bisect_right(places, number + 1, key=lambda place: place.first) - 1, 0)


class _Claim(NamedTuple):
    """The first object of an attempt, which counts once it is known that no other object has its number."""

    attempt: int
    first: int
    data: bytes


class JournalWriter:
    """Adds the points of one attempt."""

    def __init__(self, journal: MetricJournal, attempt_id: str) -> None:
        self._journal = journal
        self._attempt_id = attempt_id
        self.attempt = 0
        """Of the training, from 1; 0 before it has begun."""
        self.last = 0
        """Number of the newest event that this attempt wrote."""
        self._claim: _Claim | None = None
        """It may have been created although the answer was an error: it is looked at again."""
        self._unsent: tuple[bytes, int] | None = None
        """A batch whose creation may have succeeded although its answer was an error: it is repeated as it was."""
        self._tail: list[tuple[int, bytes]] = []
        """Number of the first event, and content, of the last objects that may be merged."""
        self._merged: list[int] = []
        """Names of objects whose events another one has, too. They go before more is merged: a reader goes on from the nearest name."""
        self.is_superseded = False
        """A later attempt writes: this one has nothing more to say."""

    def begin(self) -> None:
        """Have the attempt in the journal, durably once this returns; a no-op where it is.

        Raises:
            NightshiftError: the storage does not take it now.
        """
        while not self.attempt:
            claim = self._claim = self._claim or self._next()
            if claim is None:
                continue
            if not _create(self._journal, claim.first, claim.data):
                self._claim = None
            elif claim.attempt > 1 and self._is_inside(claim.first):
                # The earlier attempt lives: after the listing it took this name, and merged the object into another one.
                self._journal.bucket.delete(self._journal.key(claim.first))
                self._claim = None
            else:
                self.attempt, self.last = claim.attempt, claim.first
                self._tail.append((claim.first, claim.data))

    def _next(self) -> _Claim | None:
        """Return what this attempt would begin with; None where the last object was merged since it was listed."""
        found = self._journal.newest()
        if found is None:
            return None
        attempt, end = found
        return _Claim(attempt + 1, end, encode(attempt + 1, end, [{"began": self._attempt_id}]))

    def _is_inside(self, first: int) -> bool:
        found = None
        while found is None:
            found = self._journal.newest(first)
        return found[1] > first

    def append(self, points: Sequence[RawPoint]) -> int:
        """Add points, durably once this returns; return how many of them, from the start.

        Raises:
            NightshiftError: the storage does not take them now; call it again with the same points, and others behind them.
        """
        self.begin()
        if self._unsent is None and points and not self.is_superseded:
            self._unsent = encode(self.attempt, self.last + 1, [_event(point) for point in points]), len(points)
        if self._unsent is None:
            return 0
        data, num_events = self._unsent
        self.is_superseded = not _create(self._journal, self.last + 1, data)
        self._unsent = None
        if self.is_superseded:
            return 0
        self._tail.append((self.last + 1, data))
        self.last += num_events
        self._merge(MERGED)
        return num_events

    def close(self) -> None:
        """Merge the last objects of the attempt."""
        self._merge(2)

    def _merge(self, at_least: int) -> None:
        while sum(len(data) for _, data in self._tail) > MAX_MERGED_BYTES:
            del self._tail[0]
        if len(self._tail) < at_least or self.is_superseded:
            return
        (first, _), *others = self._tail
        merged = b"\n".join([_head(self.attempt, first), *(line for _, data in self._tail for line in data.splitlines()[1:])])
        try:
            self._delete_merged()
            self._journal.bucket.replace(self._journal.key(first), merged)
            self._tail, self._merged = [(first, merged)], [number for number, _ in others]
            self._delete_merged()
        except NightshiftError as err:
            logger.info("batches of metrics are merged later: %s", err)

    def _delete_merged(self) -> None:
        while self._merged:
            self._journal.bucket.delete(self._journal.key(self._merged[0]))
            del self._merged[0]


def _create(journal: MetricJournal, first: int, data: bytes) -> bool:
    key = journal.key(first)
    return journal.bucket.create(key, data) or journal.bucket.find(key) == data


def _event(point: RawPoint) -> list[object]:
    name, value, step, at = point
    return [name, json_number(float(value)), int(step), int(at)]


def _head(attempt: int, first: int) -> bytes:
    return json.dumps({"attempt": attempt, "first": first}).encode()


def encode(attempt: int, first: int, events: Sequence[object]) -> bytes:
    """Return a batch as an object holds it."""
    return b"\n".join([_head(attempt, first), *(json.dumps(event).encode() for event in events)])


def decode(data: bytes) -> Batch:
    """Return the batch of an object; a line that is damaged is left out, with a warning, and its number stays unused."""
    head, *lines = data.splitlines()
    known = json.loads(head)
    attempt, first = int(known["attempt"]), int(known["first"])
    points = [found for number, line in enumerate(lines, first) if (found := _point(line, attempt, number)) is not None]
    return Batch(attempt, first, len(lines), tuple(points))


def _point(line: bytes, attempt: int, number: int) -> JournalPoint | None:
    try:
        event: Any = json.loads(line)
        if isinstance(event, dict):
            return None
        name, value, step, at = event
        return JournalPoint(attempt, number, str(name), value if isinstance(value, str) else float(value), int(step), int(at))
    except (ValueError, TypeError) as err:
        logger.warning("event %d of a metrics journal is damaged and left out: %s", number, err)
        return None
