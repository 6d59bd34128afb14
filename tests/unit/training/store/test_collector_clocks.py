"""Collections under clocks that differ, a ledger that is away, and a storage that answers slowly."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.training.store.collected_store import LONG, NOW, NoDecisions, collector_of, keys, make
from training.errors import LeaseLostError, StoreError, UnavailableError
from training.store import Store
from training.store.garbage_collector import BEAT_SECONDS, DEAD_SECONDS, Collector
from training.store.scan_progress import INTERVAL_SECONDS


def test_collection_that_failed_because_the_ledger_is_away_can_be_repeated_at_once(local: Store) -> None:
    class Away(NoDecisions):
        def uris(self) -> tuple[str, ...]:
            raise UnavailableError("database.unavailable", "the ledger does not answer")

    with pytest.raises(UnavailableError):
        Collector(local, LONG, Away()).collect()
    collector_of(local, LONG).collect()


@pytest.mark.parametrize(("hours", "where"), [(40 * 24, "ahead"), (0.3, "ahead"), (-40 * 24, "behind")])
def test_collection_by_a_clock_that_differs_from_this_machines_is_refused_and_deletes_nothing(
    store: Store, hours: float, where: str
) -> None:
    """The storage's clock jumped: refs and runs that were written a moment ago look as old as the jump."""
    make(store)
    before = keys(store, "runs", "stages", "objects", "manifests", "refs")

    def now() -> datetime:
        return datetime.now(UTC) - timedelta(hours=hours)

    with pytest.raises(StoreError, match=r"retention\.clock.*this machine's.*15 minutes.*nothing was deleted") as caught:
        collector_of(store, NOW, now=now).collect()
    assert caught.value.code == "retention.clock"
    assert keys(store, "runs", "stages", "objects", "manifests", "refs") == before
    assert keys(store, "condemned", "collector/runs") == []
    collector_of(store, LONG).collect()


@pytest.mark.parametrize("minutes", [-14, 14])
def test_clocks_may_differ_by_a_quarter_of_an_hour(store: Store, minutes: int) -> None:
    collector_of(store, LONG, now=lambda: datetime.now(UTC) + timedelta(minutes=minutes)).collect()


@pytest.mark.slow
def test_look_that_takes_longer_than_a_dead_collector_is_waited_for_keeps_its_lease(store: Store) -> None:
    for number in range(30):
        make(store, f"weights {number}", f"{number:064x}")
    seconds = [0.0]

    def clock() -> float:
        # Each look at the clock is two minutes after the last one: the whole look takes far longer than 15 minutes.
        seconds[0] += 2 * BEAT_SECONDS
        return seconds[0]

    collector = collector_of(store, LONG, clock=clock)
    states = []
    real = collector._move
    collector._move = lambda state, **facts: (states.append(state), real(state, **facts))[1]  # type: ignore[assignment]
    collector.collect()
    assert seconds[0] > DEAD_SECONDS
    assert states[0] == "begun"
    assert states.count("alive") >= 30, "a sign of life for each record and page that is read"


def test_look_that_was_taken_for_dead_ends_before_it_deletes_anything(store: Store) -> None:
    make(store)
    seconds = iter(range(0, 10_000_000, int(BEAT_SECONDS)))
    collector = collector_of(store, NOW, clock=lambda: float(next(seconds)))
    real = collector._condemned.list

    def another(**options: Any) -> Any:
        assert collector._lease.move({"state": "begun", "nonce": "other"}, expected=collector._head)
        return real(**options)

    collector._condemned.list = another  # type: ignore[method-assign]
    before = keys(store, "stages", "runs")
    with pytest.raises(LeaseLostError, match="took this one for dead"):
        collector.collect()
    assert keys(store, "stages", "runs") == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_look_at_a_storage_that_answers_slowly_shows_progress(store: Store, monkeypatch: pytest.MonkeyPatch, dry_run: bool) -> None:
    assert INTERVAL_SECONDS <= 30
    make(store)
    lines: list[str] = []
    said = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if "0 objects of" not in line:
            said.set()

    real = store.bucket.list

    def slow(prefix: str, **options: Any) -> Any:
        found = real(prefix, **options)
        if prefix == "manifests":
            assert said.wait(60), "no line of progress while the listing takes long"
        return found

    monkeypatch.setattr(store.bucket, "list", slow)
    collector = collector_of(store, LONG, say=say)
    collector._interval_seconds = 0.01
    collector.collect(dry_run=dry_run)
    assert re.fullmatch(r"\d+ objects of [\d.]+ MB seen, \d+ records read, after \d+ s", lines[-1])
    assert [thread.name for thread in threading.enumerate() if thread.name == "progress"] == []
