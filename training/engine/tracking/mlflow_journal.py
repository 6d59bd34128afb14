"""What the store holds of MLflow's runs: how to make them, and which metrics of a training's journal they lack.

Of one MLflow run, `key` being a training's work folder or a study's prefix:

    <key>/tracking-run.json                  how to make the run, and a token that its tags carry; the first attempt's word stands
    <key>/tracking.json                      the run's id; `_RESULT.json` cannot get it later, so evaluate and promote read it here
    tracking/<key>/<attempt>-<journal>.json  what MLflow may lack of an attempt: points after one of its journal, and how it ended
    tracking/<key>/finished.json             how a study ended

All are records with a digest (`training.store.records`): a changed one would send points to the wrong run.
A file below `tracking/` is there before the attempt's first point, and is deleted after MLflow has all of them
(`training.engine.tracking.mlflow_delivery`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, TypeVar

from training.errors import StoreError
from training.store import Bucket, records
from training.store.metric_journal import JournalPoint, MetricJournal

logger = logging.getLogger(__name__)

PENDING: Final = "tracking"
MAX_BATCH: Final = 1000
"""Points of one request to MLflow."""
ID_TAG: Final = "nightshift.tracking_id"
STILL: Final = timedelta(hours=1)
"""An attempt whose journal has not changed for so long was killed: a training logs what it uses of its machine each 30 s."""

DESCRIPTION_HINT: Final = "delete it: metrics that still wait for MLflow are dropped, the training's result stays"
RUN_HINT: Final = "delete it: the MLflow run is found again by its tag"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDescription:
    """How to make an MLflow run, by whichever process reaches the server first."""

    experiment: str
    name: str
    tags: Mapping[str, str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    started_at_ms: int
    parent: str | None = None
    """Key of the run that this one is nested in."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How an attempt or a study ended, for the run's page."""

    status: str
    """`FINISHED` or `FAILED`."""
    ended_at_ms: int
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Those that no journal has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """What MLflow may lack of an attempt, or of a study."""

    after: int = 0
    """Number of an event of the attempt's journal: MLflow has all points up to it."""
    end: End | None = None
    """None: the attempt is under way, or was killed."""

    @classmethod
    def of(cls, value: Any) -> Backlog:
        """Return what a record holds."""
        return cls(after=value["after"], end=None if value["end"] is None else End(**value["end"]))


def backlog_name(attempt: int, journal: str) -> str:
    """Return the name of what MLflow may lack of an attempt, by its number in a journal of metrics and the journal's name."""
    return f"{attempt:06d}-{journal}"


class RunJournal:
    """What the store holds of one MLflow run."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket = bucket
        self.key = key
        self._folder = f"{PENDING}/{key}"

    def describe(self, description: RunDescription) -> None:
        """Settle how the run is made; a later description changes nothing."""
        key = f"{self.key}/tracking-run.json"
        self.bucket.create(key, records.encode(key, asdict(description)))

    def description(self) -> RunDescription | None:
        """Return the description of the run, None where no attempt has recorded one.

        Raises:
            StoreError: `record.damaged`.
        """
        return self._read(f"{self.key}/tracking-run.json", lambda value: RunDescription(**value), hint=DESCRIPTION_HINT)

    def run_id(self) -> str | None:
        """Return the MLflow run's id, None until it is made.

        Raises:
            StoreError: `record.damaged`.
        """
        return self._read(f"{self.key}/tracking.json", lambda value: str(value["run_id"]), hint=RUN_HINT)

    def settle(self, run_id: str) -> str:
        """Record the run's id; return the one that stands: the first."""
        key = f"{self.key}/tracking.json"
        self.bucket.create(key, records.encode(key, {"run_id": run_id}))
        return self.run_id() or run_id

    def note(self, name: str, backlog: Backlog) -> None:
        """Record what MLflow may lack, durably once this returns."""
        key = f"{self._folder}/{name}.json"
        self.bucket.replace(key, records.encode(key, asdict(backlog)))

    def forget(self, name: str) -> None:
        self.bucket.delete(f"{self._folder}/{name}.json")

    def backlogs(self) -> list[str]:
        """Return the names of what MLflow may lack."""
        return sorted(entry.key.removeprefix(f"{self._folder}/").removesuffix(".json") for entry in self.bucket.list(self._folder))

    def backlog(self, name: str) -> Backlog:
        """Return what MLflow may lack; all points of the attempt, with a warning, where the record is damaged."""
        try:
            return self._read(f"{self._folder}/{name}.json", Backlog.of, hint="") or Backlog()
        except StoreError as err:
            logger.warning("%s; how the attempt ended is unknown", err.message)
            return Backlog()

    def batches(self, name: str, after: int) -> Iterator[list[JournalPoint]]:
        """Yield the points of an attempt whose number is above `after`, `MAX_BATCH` at most at once; a study has none."""
        attempt = name.partition("-")[0]
        journal = self._metrics(name)
        points = (point for point in (() if journal is None else journal.after(after)) if point.attempt == int(attempt))
        while batch := list(islice(points, MAX_BATCH)):
            yield batch

    def is_under_way(self) -> bool:
        """Return whether an attempt may add points."""
        since = datetime.now(UTC) - STILL
        waiting = [self._metrics(name) for name in self.backlogs() if self.backlog(name).end is None]
        return any(place.modified > since for journal in waiting if journal is not None for place in journal.places())

    def _metrics(self, name: str) -> MetricJournal | None:
        journal = name.partition("-")[2]
        return MetricJournal(self.bucket, self.key.split("/")[1], journal) if journal else None

    def _read(self, key: str, parse: Callable[[Any], T], *, hint: str) -> T | None:
        data, uri = self.bucket.find(key), self.bucket.uri(key)
        if data is None:
            return None
        with records.readable(uri, hint=hint):
            return parse(records.decode(key, data, uri=uri, hint=hint))


def pending_journals(bucket: Bucket) -> list[RunJournal]:
    """Return the journals of runs of which MLflow may lack something."""
    keys = {entry.key.removeprefix(f"{PENDING}/").rpartition("/")[0] for entry in bucket.list(PENDING)}
    return [RunJournal(bucket, key) for key in sorted(keys)]
