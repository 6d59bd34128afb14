"""A bucket in memory whose every operation is a step, and a seeded scheduler that decides whose step is next, and who is killed.

What runs on it is the product's own code: objects, manifests, refs, work folders and the collector.
"""

from __future__ import annotations

import builtins
import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from training.store import Bucket, Store
from training.store.bucket import Listed, OnPage
from training.store.manifests import Manifests
from training.store.objects import Objects

START = datetime(2026, 1, 1, tzinfo=UTC)
HANG_SECONDS = 60


class Killed(BaseException):
    """The actor's process was killed: no handler of the product sees it."""


class World:
    """The bucket's content, its clock, and the actors. One actor runs at a time; a step is one operation of the bucket."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - the same interleaving in every run
        self.files: dict[str, tuple[bytes, datetime]] = {}
        self.now = START
        self.actors: list[Actor] = []
        self.current = threading.local()

    def start(self, name: str, work: Callable[[], Any]) -> Actor:
        actor = Actor(self, name, work)
        self.actors.append(actor)
        return actor

    @property
    def running(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.is_done]

    def step(self, *, is_deletion: bool = False) -> None:
        """Wait for this actor's next turn; on the scheduler's own thread there is nothing to wait for."""
        actor: Actor | None = getattr(self.current, "actor", None)
        if actor is not None:
            actor.deletes_since = self.now if is_deletion else None
            actor.pause()
        # No two changes have the same time.
        self.now += timedelta(milliseconds=1)


class Actor:
    """Some code of the product in a thread of its own, one step at a time."""

    def __init__(self, world: World, name: str, work: Callable[[], Any]) -> None:
        self.world, self.name, self._work = world, name, work
        self.began_at = world.now
        self.is_done = False
        self.deletes_since: datetime | None = None
        """Since when its next operation is a deletion."""
        self.error: BaseException | None = None
        self._is_killed = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._await()

    def _run(self) -> None:
        self.world.current.actor = self
        try:
            self.pause()
            self._work()
        except Killed:
            pass  # As the scenario wants it: the actor ends here, without an error.
        except BaseException as err:
            self.error = err
        finally:
            self.is_done = True
            self._paused.release()

    def pause(self) -> None:
        self._paused.release()
        self._go.acquire()
        if self._is_killed:
            raise Killed

    def turn(self) -> None:
        """Let the actor go on to its next operation."""
        self._go.release()
        self._await()

    def kill(self) -> None:
        self._is_killed = True
        self.turn()
        while not self.is_done:
            self.turn()

    def _await(self) -> None:
        assert self._paused.acquire(timeout=HANG_SECONDS), f"{self.name} neither steps nor ends"


class MemoryBucket(Bucket):
    """The operations of a bucket, each atomic, as S3 promises them."""

    def __init__(self, world: World) -> None:
        self.root_uri = "memory://bucket"
        self._world = world
        self.is_local = False

    def find(self, key: str) -> bytes | None:
        self._world.step()
        found = self._world.files.get(key)
        return None if found is None else found[0]

    def size_bytes(self, key: str) -> int | None:
        found = self.find(key)
        return None if found is None else len(found)

    def put(self, key: str, data: bytes) -> None:
        self._world.step()
        self._world.files[key] = (data, self._world.now)

    def create(self, key: str, data: bytes) -> bool:
        self._world.step()
        if key in self._world.files:
            return False
        self._world.files[key] = (data, self._world.now)
        return True

    def replace(self, key: str, content: bytes | Path) -> None:
        assert isinstance(content, bytes)
        self.put(key, content)

    def delete(self, key: str, *, prune: bool = False) -> None:
        self._world.step(is_deletion=True)
        self._world.files.pop(key, None)

    def list(self, prefix: str, *, after: str | None = None, seen: OnPage | None = None) -> list[Listed]:
        self._world.step()
        found = [
            Listed(key=key, size_bytes=len(data), version="", modified=modified)
            for key, (data, modified) in sorted(self._world.files.items())
            if key.startswith(f"{prefix}/") and (after is None or key > after)
        ]
        if seen is not None:
            seen(found)
        return found

    def folders(self, prefix: str) -> builtins.list[str]:
        return sorted({entry.key.removeprefix(f"{prefix}/").partition("/")[0] for entry in self.list(prefix)})

    def stream(self, key: str) -> Iterator[bytes]:
        yield self.get(key)

    def delete_leftovers(self, older_than_seconds: float, *, dry_run: bool = False) -> tuple[int, int]:
        return 0, 0


class MemoryStore(Store):
    """A store on such a bucket."""

    def __init__(self, world: World) -> None:
        self.bucket = MemoryBucket(world)
        self.root_uri = self.bucket.root_uri
        self.objects = Objects(self.bucket)
        self.manifests = Manifests(self.bucket, self.objects)
