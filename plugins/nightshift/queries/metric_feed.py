"""Points of trainings for many readers at once: the store is asked once for all readers of a process.

Nothing here is the source of a point. The cache holds batches of the journal, which never change under their version, so that a process
that is started again, and another one, show the same.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
import weakref
from asyncio import AbstractEventLoop, Task, get_running_loop
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from nightshift.queries.run_training import Training, training
from nightshift.queries.schemas import MetricPoint
from nightshift.queries.trial_training import TrialLook
from training.store import Bucket, Store
from training.store.metric_journal import JournalObject, JournalPoint, MetricJournal, decode, start_of

POLL_SECONDS: Final = 0.5
"""Age up to which a look at a training is used again."""
MAX_STORE_THREADS: Final = 4
"""Of a process: a store that does not answer must not take the threads of other routes."""
MAX_CACHED_POINTS: Final = 200_000
IDLE_SECONDS: Final = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cached:
    """A batch, as readers get it."""

    end: int
    numbers: tuple[int, ...]
    points: tuple[MetricPoint, ...]
    frames: tuple[bytes, ...]
    """The points as server-sent events."""


@dataclass(frozen=True, slots=True)
class JournalListing:
    """A training and the objects of its journal, as they were at one moment."""

    places: list[JournalObject]
    has_ended: bool
    """There are no points but those in `places`."""


@dataclass(slots=True)
class Found:
    """Points for one reader."""

    has_ended: bool
    """No point follows those that were there."""
    has_more: bool = False
    """More of them are there already."""
    points: list[MetricPoint] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)


class Feed:
    """The points of one training."""

    def __init__(self, feeds: Feeds, pipeline: str, state: Callable[[], Training]) -> None:
        """Begin to read.

        Args:
            state: returns the state of the training; in a thread.
        """
        self._feeds = feeds
        self._pipeline = pipeline
        self._state = state
        self._newest: Task[JournalListing] | None = None
        self._looked_at = 0.0
        self.used_at = time.monotonic()

    async def after(self, number: int, *, limit: int) -> Found:
        """Return points whose number is above `number`, in order, of the training as it was half a second ago at most.

        Args:
            limit: about how many at most; whole batches are returned.

        Raises:
            DeniedError: `run.unknown`, `trial.unknown`; UnavailableError: `airflow.database`, or the store does not answer.
        """
        look = await self._shared_look()
        found = Found(look.has_ended)
        start = start_of(look.places, number)
        while start and (batch := await self._feeds.batch(look.places[start])) is not None and not batch.points:
            start -= 1
        for place in look.places[start:]:
            if len(found.points) >= limit:
                found.has_more = True
                return found
            batch = await self._feeds.batch(place)
            if batch is None:
                # Merged into another object since it was listed.
                self._newest, found.has_more = None, True
                return found
            start = bisect_right(batch.numbers, number)
            found.points += batch.points[start:]
            found.frames += batch.frames[start:]
            number = max(number, batch.end - 1)
        return found

    async def _shared_look(self) -> JournalListing:
        """Look again once that is long ago; readers that come at the same time share one look, and its error."""
        now = self.used_at = time.monotonic()
        if self._newest is None or (self._newest.done() and now - self._looked_at >= POLL_SECONDS):
            self._looked_at = now
            self._newest = asyncio.create_task(self._feeds.in_thread(self._look))
        # A reader that goes away must not cancel what others wait for.
        return await asyncio.shield(self._newest)

    def _look(self) -> JournalListing:
        # The state first: of a training that has ended then, all points are in the list.
        state, places = self._state(), []
        for name in state.journals:
            if places := MetricJournal(self._feeds.bucket, self._pipeline, name).places():
                break
        return JournalListing(places, state.has_ended)


class Feeds:
    """The feeds of one event loop over one store."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._feeds: dict[str, Feed] = {}
        self._batches: OrderedDict[tuple[str, str], Task[Cached | None]] = OrderedDict()
        self._limiter = CapacityLimiter(MAX_STORE_THREADS)

    def of_run(self, pipeline: str, run_id: str, stage: str) -> Feed:
        """Return the feed of a run's `train` or `refit`."""
        return self._of(f"{pipeline}:{run_id}~{stage}", pipeline, lambda: functools.partial(training, pipeline, run_id, stage))

    def of_trial(self, pipeline: str, run_id: str, slot: int) -> Feed:
        """Return the feed of a trial of a study, by the run of the study and the trial's number in it."""
        return self._of(f"{pipeline}:{run_id}/{slot}", pipeline, lambda: TrialLook(Store(self.bucket.root_uri), pipeline, run_id, slot))

    def _of(self, key: str, pipeline: str, look: Callable[[], Callable[[], Training]]) -> Feed:
        now = time.monotonic()
        for idle in [each for each, feed in self._feeds.items() if now - feed.used_at > IDLE_SECONDS]:
            del self._feeds[idle]
        if key not in self._feeds:
            self._feeds[key] = Feed(self, pipeline, look())
        return self._feeds[key]

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run what blocks in one of few threads."""
        return await anyio.to_thread.run_sync(functools.partial(work, *arguments), limiter=self._limiter)

    async def batch(self, place: JournalObject) -> Cached | None:
        """Return a batch, from the cache where it has it; None where the object is gone."""
        key = (place.key, place.version)
        task = self._batches.get(key)
        if task is None or (task.done() and (task.exception() is not None or task.result() is None)):
            task = self._batches[key] = asyncio.create_task(self.in_thread(self._read, place))
            self._shrink()
        self._batches.move_to_end(key)
        return await asyncio.shield(task)

    def _read(self, place: JournalObject) -> Cached | None:
        data = self.bucket.find(place.key)
        if data is None:
            return None
        batch = decode(data)
        points = tuple(_record(point) for point in batch.points)
        return Cached(batch.end, tuple(point.number for point in batch.points), points, tuple(_frame(point) for point in points))

    def _shrink(self) -> None:
        done = [(key, task) for key, task in self._batches.items() if task.done()]
        total = 0
        for key, task in reversed(done):
            batch = None if task.exception() is not None else task.result()
            total += len(batch.points) if batch is not None else 0
            if batch is None or total > MAX_CACHED_POINTS:
                del self._batches[key]


_FEEDS: weakref.WeakKeyDictionary[AbstractEventLoop, dict[str, Feeds]] = weakref.WeakKeyDictionary()


def feeds_of(store_uri: str) -> Feeds:
    """Return the feeds of the running event loop over a store."""
    by_store = _FEEDS.setdefault(get_running_loop(), {})
    if store_uri not in by_store:
        by_store[store_uri] = Feeds(Bucket(store_uri))
    return by_store[store_uri]


def number_of(id: str | None) -> int:
    """Return the number in a point's id; 0 for none."""
    return 0 if id is None else int(id.rpartition("-")[2])


def _record(point: JournalPoint) -> MetricPoint:
    return MetricPoint(
        id=f"{point.attempt}-{point.number}",
        attempt=point.attempt,
        name=point.name,
        step=point.step,
        value=point.value,
        logged_at=datetime.fromtimestamp(point.logged_at_ms / 1000, UTC),
    )


def _frame(point: MetricPoint) -> bytes:
    return f"id: {point.id}\ndata: {json.dumps(point.model_dump(mode='json'))}\n\n".encode()
