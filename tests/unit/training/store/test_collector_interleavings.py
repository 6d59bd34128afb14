"""Writers, readers and collectors in random interleavings, killed at any operation: what is committed is never missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.unit.training.store.collected_store import collector_of
from tests.unit.training.store.interleaving import Actor, MemoryStore, World
from training.contracts import RunIdentity, StageResult
from training.errors import LeaseError
from training.store.condemned import TAKEOVER_SECONDS, Condemned
from training.store.garbage_collector import BEAT_SECONDS, DEAD_SECONDS, Collector
from training.store.leases import COMMIT, Lease
from training.store.reachability import KeepRules, Marking, content_keys
from training.store.work_folder import WorkFolder

pytestmark = pytest.mark.usefixtures("files_are_objects")

RULES = KeepRules(runs=timedelta(days=2), attempts=timedelta(days=1), grace=timedelta(days=1))
NUM_CONTENTS = 6
"""Few, so that writers make again what the collector is about to delete."""
NUM_STEPS = 400
HELD_UP = timedelta(seconds=min(TAKEOVER_SECONDS, DEAD_SECONDS) - BEAT_SECONDS - 60)


class Scene:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.store = MemoryStore(self.world)
        self.serial = 0
        self.relied_on: dict[str, datetime] = {}
        """Key of a result that a writer relies on to when it asked for it."""

    def work_id(self) -> str:
        return f"{self.random.randrange(6):064x}"

    def writer(self, work_id: str, contents: list[int], run: str) -> Callable[[], None]:
        def work() -> None:
            work_folder = self.store.work_folder("p", "train", work_id)
            asked_at = self.world.now
            found = work_folder.result()
            if found is None:
                identity = RunIdentity(dag_id="p", run_id=run, task_id="train")
                lease = Lease.acquire(work_folder, owner=run, attempt_id=f"a-{run}")
                files = {f"f{number}": f"content {number}".encode() for number in contents}
                uri, manifest = self.store.manifests.put_files("model", files, {"work": work_id[-4:]})
                result = StageResult(
                    pipeline="p",
                    stage="train",
                    work_id=work_id,
                    artifact_uri=uri,
                    digest=manifest.digest,
                    run=identity,
                    attempt_id=f"a-{run}",
                    attempts=lease.epoch,
                    committed_at="",
                )
                lease.commit(COMMIT, {"artifact_uri": uri})
                work_folder.create_result(result)
                asked_at = self.world.now
                found = work_folder.result()
                assert found is not None
            self.relied_on[f"stages/p/train/{work_id}/_RESULT.json"] = asked_at
            # What a stage that reuses it does: its run leads to it from now on.
            self.store.run_ref("p", run, "model").move(found.artifact_uri, expected=0)
            self.read(found.artifact_uri)

        return work

    def read(self, uri: str) -> None:
        """Read an artifact that a ref leads to, whole."""
        manifest = self.store.manifests.get(uri)
        for entry in manifest.files.values():
            assert len(self.store.objects.get_bytes(entry.digest)) == entry.size_bytes

    def collector(self) -> Callable[[], None]:
        return collector_of(self.store, RULES, clock=self.seconds, now=lambda: self.world.now).collect

    def seconds(self) -> float:
        return self.world.now.timestamp()

    def check(self) -> None:
        """Whatever a record of the store leads to is there."""
        plain = self.world.files
        for key, since in self.relied_on.items():
            assert key in plain or self.world.now - since >= RULES.grace, f"{key} was relied on since {since}, and was deleted"
        for key, (data, _) in list(plain.items()):
            if not key.startswith(("runs/", "refs/")) and not key.endswith("_RESULT.json"):
                continue
            for reached in content_keys(_values(data)):
                assert reached in plain, f"{key} leads to {reached}, which was deleted"
                if reached.startswith("manifests/"):
                    for digest in _digests(plain[reached][0]):
                        assert self.store.objects.key(digest) in plain, f"{key} leads to object {digest}, which was deleted"

    def play(self, steps: int = NUM_STEPS) -> None:
        for _ in range(steps):
            self.one_step()
            self.check()
        self.finish()

    def one_step(self) -> None:
        world, chance = self.world, self.random.random()
        if chance < 0.10 and len(world.running) < 5:
            self.serial += 1
            contents = self.random.sample(range(NUM_CONTENTS), 2)
            world.start(f"writer {self.serial}", self.writer(self.work_id(), contents, f"r{self.serial}"))
        elif chance < 0.16 and len(world.running) < 5:
            self.serial += 1
            world.start(f"collector {self.serial}", self.collector())
        elif chance < 0.18 and world.running:
            self.random.choice(world.running).kill()
        elif chance < 0.24:
            self.pass_time()
        elif world.running:
            actor = self.random.choice(world.running)
            for _ in range(self.random.randrange(1, 12)):
                if not actor.is_done:
                    actor.turn()

    def pass_time(self) -> None:
        """Let hours or days pass, but none in which a stage would take longer than the grace period, or a collector be held up
        between its look at the clock and its deletion for longer than a dead one is waited for."""
        jump = self.random.choice([timedelta(minutes=20), timedelta(hours=6), timedelta(days=2), timedelta(days=6)])
        oldest = min((actor.began_at for actor in self.world.running if actor.name.startswith("writer")), default=self.world.now)
        left = RULES.grace - (self.world.now - oldest) - timedelta(minutes=1)
        held = [actor.deletes_since for actor in self.world.running if actor.deletes_since is not None]
        if self.world.running:
            jump = min([jump, left, *(since + HELD_UP - self.world.now for since in held)])
        if jump > timedelta(0):
            self.world.now += jump

    def finish(self) -> None:
        """Let all end; then collect until nothing changes: garbage is gone, what is reached is there."""
        while self.world.running:
            actor = self.random.choice(self.world.running)
            actor.turn()
        self.check()
        for actor in self.world.actors:
            assert actor.error is None or _is_expected(actor), f"{actor.name}: {actor.error!r}"
        self.world.now += RULES.runs + timedelta(days=1)
        keep = self.store.run_ref("p", "last", "model")
        uri, _ = self.store.manifests.put_files("model", {"f": b"content 0"}, {})
        for number in range(5):
            assert keep.move(uri, expected=number)
            collector_of(self.store, RULES, clock=self.seconds, now=lambda: self.world.now).collect()
            self.world.now += RULES.grace + timedelta(hours=1)
        left = {key for key in self.world.files if not key.startswith("collector/")}
        reached = {*content_keys(uri), self.store.objects.key(_digests(self.world.files[next(content_keys(uri))][0])[0])}
        assert left - reached == {f"runs/p/last/model/{number:010d}.json" for number in range(1, 6)}
        self.read(uri)


def _is_expected(actor: Actor) -> bool:
    """Another actor is at the same work, or a collection is under way."""
    return isinstance(actor.error, LeaseError)


def _values(data: bytes) -> Any:
    return json.loads(data)


def _digests(data: bytes) -> list[str]:
    return [entry["digest"] for entry in _values(data)["files"].values()]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that waits for a deletion waits by the world's clock: each look is a step, and a minute."""

    def init(self: Condemned, bucket: Any, **_: Any) -> None:
        world = bucket._world

        def sleep(_seconds: float) -> None:
            world.now += timedelta(minutes=1)

        self._bucket, self._clock, self._sleep = bucket, lambda: world.now.timestamp(), sleep

    monkeypatch.setattr(Condemned, "__init__", init)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_committed_is_never_missing_and_garbage_goes(seed: int) -> None:
    Scene(seed).play()


def no_claim_of_objects(patch: pytest.MonkeyPatch) -> None:
    """Writers rely on objects that are there without looking for marks."""
    claim = Condemned.claim
    patch.setattr(Condemned, "claim", lambda self, key: False if key.startswith("objects/") else claim(self, key))


def no_claim_of_results(patch: pytest.MonkeyPatch) -> None:
    """A result is reused without looking whether its work folder is about to be dropped."""
    patch.setattr(WorkFolder, "claim", lambda _: False)


def no_agreement(patch: pytest.MonkeyPatch) -> None:
    """The collector deletes what was marked, whether or not a writer has claimed it."""
    patch.setattr(Condemned, "take", lambda _, mark: mark)
    patch.setattr(Condemned, "state", lambda *_: "condemned")


def no_grace(patch: pytest.MonkeyPatch) -> None:
    """What was marked by the last collection is deleted by this one, however soon it comes."""
    patch.setattr(Collector, "_is_due", lambda *_: True)


def objects_first(patch: pytest.MonkeyPatch) -> None:
    """An expired work folder does not hold its artifacts, so they may go before it, and its result is reused without a look at them."""
    work_folder = Marking._work_folder

    def skip_expired(self: Marking, unit: Any) -> None:
        if unit.newest < self._oldest:
            self._found.expired_work_folders.append(unit)
        else:
            work_folder(self, unit)

    patch.setattr(Marking, "_work_folder", skip_expired)
    patch.setattr(WorkFolder, "has_artifact", lambda *_: True)


SABOTAGES = [no_claim_of_objects, no_claim_of_results, no_agreement, no_grace, objects_first]


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_each_part_of_the_protocol_is_needed(sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(AssertionError, match=r"was deleted|does not exist"):
        play_all(range(100))


def play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        Scene(seed).play()
