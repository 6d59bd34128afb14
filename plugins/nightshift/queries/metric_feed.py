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
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from nightshift.queries.records import MetricPoint
from nightshift.queries.trainings import Training, training
from nightshift.queries.trials import TrialLook
from training.store import Bucket, Store, metric_journal
from training.store.metric_journal import MetricJournal, Place, wanted

POLL_SECONDS: Final = 0.5
"""Age up to which a list of the journal's objects, and the state of the training, are used again."""
MAX_STORE_THREADS: Final = 4
"""Of a process: a store that does not answer must not take the threads of other routes."""
MAX_CACHED_POINTS: Final = 200_000
IDLE_SECONDS: Final = 60.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Cached:
    """A batch, as readers get it."""

    end: int
    numbers: tuple[int, ...]
    points: tuple[MetricPoint, ...]
    frames: tuple[bytes, ...]
    """The points as server-sent events."""


class Shared:
    """A value that is read again once it is old; readers that come at the same time share one reading."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Found]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._task: Task[Any] | None = None
        self._read_at = -seconds

    def expire(self) -> None:
        """Have the next reader begin another reading, also where one is under way."""
        self._task = None

    async def get(self) -> Any:
        """Return the value; a failed reading fails for all that waited for it, and is repeated by the next."""
        now = time.monotonic()
        if self._task is None or (self._task.done() and (now - self._read_at >= self._seconds or self._task.exception() is not None)):
            self._read_at = now
            self._task = asyncio.create_task(self._read())
        # A reader that goes away must not cancel what others wait for.
        return await asyncio.shield(self._task)


class Feed:
    """The points of one training."""

    def __init__(self, feeds: Feeds, pipeline: str, look: Callable[[], Training]) -> None:
        """Begin to read.

        Args:
            look: returns the state of the training; in a thread.
        """
        self._feeds = feeds
        self._pipeline = pipeline
        self._places: dict[str, Shared] = {}
        self._state = Shared(functools.partial(feeds.in_thread, look), POLL_SECONDS)
        self.used_at = time.monotonic()

    async def state(self) -> Training:
        """Return the state of the training, at most half a second old.

        Raises:
            DeniedError: `run.unknown`, `trial.unknown`; UnavailableError: `airflow.database`, or the store does not answer.
        """
        self.used_at = time.monotonic()
        found: Training = await self._state.get()
        return found

    async def after(self, number: int, state: Training, *, limit: int) -> tuple[list[MetricPoint], list[bytes], bool]:
        """Return points whose number is above `number`, in order, as records and as events; and whether more of them are there already.

        Args:
            state: from before this call: if the training had ended then, points that are not found here do not exist.
            limit: about how many at most; whole batches are returned.

        Raises:
            NightshiftError: the store does not answer.
        """
        points: list[MetricPoint] = []
        frames: list[bytes] = []
        reached, journal = number, await self._journal(state)
        if journal is None:
            return points, frames, False
        for place in wanted(await self._listed(journal, is_fresh=state.has_ended), number):
            if len(points) >= limit:
                return points, frames, True
            batch = await self._feeds.batch(journal, place)
            if batch is None:
                # Merged into another object since it was listed.
                self._places[journal.key(0)].expire()
                return points, frames, True
            start = next((index for index, each in enumerate(batch.numbers) if each > reached), len(batch.numbers))
            points += batch.points[start:]
            frames += batch.frames[start:]
            reached = max(reached, batch.end - 1)
        return points, frames, False

    async def _journal(self, state: Training) -> MetricJournal | None:
        """Return the first journal that there is; where there is none, the one where it will be."""
        journals = [MetricJournal(self._feeds.bucket, self._pipeline, name) for name in state.journals]
        for journal in journals[:-1]:
            if await self._listed(journal, is_fresh=False):
                return journal
        return journals[-1] if journals else None

    async def _listed(self, journal: MetricJournal, *, is_fresh: bool) -> list[Place]:
        key = journal.key(0)
        if key not in self._places:
            self._places[key] = Shared(functools.partial(self._feeds.in_thread, journal.places), POLL_SECONDS)
        elif is_fresh:
            # A list of before the end may lack the last points.
            self._places[key].expire()
        found: list[Place] = await self._places[key].get()
        return found


class Feeds:
    """The feeds of one event loop over one store."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._feeds: dict[str, Feed] = {}
        self._batches: OrderedDict[tuple[str, str], Task[Cached | None]] = OrderedDict()
        self._limiter = CapacityLimiter(MAX_STORE_THREADS)

    def of_run(self, pipeline: str, run_id: str) -> Feed:
        """Return the feed of a run's training."""
        return self._of(f"{pipeline}:{run_id}", pipeline, lambda: functools.partial(training, pipeline, run_id))

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

    async def in_thread(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """Run what blocks in one of few threads."""
        return await anyio.to_thread.run_sync(functools.partial(work, *arguments), limiter=self._limiter)

    async def batch(self, journal: MetricJournal, place: Place) -> Cached | None:
        """Return a batch, from the cache where it has it; None where the object is gone."""
        key = (place.key, place.version)
        task = self._batches.get(key)
        if task is None or (task.done() and (task.exception() is not None or task.result() is None)):
            task = self._batches[key] = asyncio.create_task(self.in_thread(_read, journal, place))
            self._shrink()
        self._batches.move_to_end(key)
        return await asyncio.shield(task)

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


def _read(journal: MetricJournal, place: Place) -> Cached | None:
    batch = journal.read(place)
    if batch is None:
        return None
    points = tuple(_record(point) for point in batch.points)
    frames = tuple(_frame(point) for point in points)
    return Cached(batch.end, tuple(point.number for point in batch.points), points, frames)


def _record(point: metric_journal.JournalPoint) -> MetricPoint:
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
