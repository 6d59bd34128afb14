"""Workers that die anywhere: before or after any call to the store or to the cluster, alone and several at once."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from kubernetes.client import ApiClient

from nightshift.execution.kubernetes import remote_work
from tests.unit.plugins.execution.kubernetes.conftest import Killed, Night
from tests.unit.plugins.execution.kubernetes.kubernetes_api import SUCCEEDED, KubernetesApi, failed
from training.contracts import StageResult
from training.store import Bucket
from training.store.leases import Lease

pytestmark = pytest.mark.slow

Nights = Callable[..., Night]
POD = None
GANG = {"nodes": 2, "processes_per_node": 1}
PLACEMENTS = pytest.mark.parametrize("placement", [POD, GANG], ids=["pod", "gang"])
STORE_CALLS = ("get", "find", "put", "create", "create_own", "list")


class Fate:
    """Kills the worker of this thread when `is_due` says so, which it asks before and after each call to store or cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mine = threading.local()
        for owner, names in ((Bucket, STORE_CALLS), (ApiClient, ("call_api",))):
            for name in names:
                monkeypatch.setattr(owner, name, self._mortal(getattr(owner, name)))

    @contextmanager
    def of(self, is_due: Callable[[], bool]) -> Iterator[None]:
        self._mine.is_due = is_due
        try:
            yield
        finally:
            del self._mine.is_due

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def called(*arguments: Any, **more: Any) -> Any:
            self._look()
            answer = call(*arguments, **more)
            self._look()
            return answer

        return called

    def _look(self) -> None:
        # The double and the stage's process live on.
        if getattr(self._mine, "is_due", bool)():
            raise Killed


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch) -> Fate:
    monkeypatch.setattr(remote_work.time, "sleep", lambda seconds: None)
    return Fate(monkeypatch)


def at_point(number: int) -> Callable[[], bool]:
    points = iter(range(1, number + 1))
    return lambda: next(points, 0) == number


def test_next_worker_continues_after_a_kill_at_any_step(
    api: KubernetesApi, night: Nights, fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death at each of the points that there are, of a gang: from nothing to a first launch, and from a lost launch to a second one."""
    points = itertools.count(1)
    for point in points:
        work = fresh(night(GANG), point, monkeypatch)
        if not die_once(work, fate, at_point(point)):
            wind_up(api, work, "jobs")
            break
        assert work.advance(work.task(try_number=2)).number == 1
        wind_up(api, work, "jobs")
    for later, number in enumerate(points, start=1):
        work = fresh(night(GANG), number, monkeypatch)
        first = work.advance()
        work.begin()
        api.remove(first.name, "jobs")
        if not die_once(work, fate, at_point(later)):
            break
        assert work.advance(work.task(try_number=2)).number == 2
        wind_up(api, work, "jobs")
    assert point > 20
    assert later > 20
    assert max(api.creates.values()) == 1
    assert api.alive_together == 1


def die_once(work: Night, fate: Fate, is_due: Callable[[], bool]) -> bool:
    try:
        with fate.of(is_due):
            work.advance()
    except Killed:
        return True
    return False


def wind_up(api: KubernetesApi, work: Night, plural: str) -> None:
    """The launch that is there does its work."""
    assert len(api.names(plural)) == 1
    request = work.request()
    work.begin(request)
    made = work.commit(request)
    assert work.advance() == made
    assert api.objects == {}


def fresh(work: Night, number: int, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Make it a work of its own."""
    monkeypatch.setattr("tests.unit.plugins.execution.kubernetes.conftest.WORK_ID", f"{number:08x}" * 8)
    return work


@PLACEMENTS
@pytest.mark.parametrize("rounds", [10, pytest.param(50, marks=pytest.mark.long)])
def test_many_rounds_of_killed_workers_submit_nothing_twice(
    api: KubernetesApi, night: Nights, placement: dict[str, Any], fate: Fate, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Each round is a work of its own. Workers die at random, again and again, some launches are lost; the last one commits."""
    plural = "jobs" if placement else "pods"
    for seed in range(rounds):
        chance = random.Random(seed)  # noqa: S311 - the same kills in every run
        work = fresh(night(placement, infrastructure=50), seed, monkeypatch)
        result = survive(api, work, chance, fate, plural)
        assert result.work_id == f"{seed:08x}" * 8
        assert api.objects == {}, f"seed {seed}"
    assert max(api.creates.values()) == 1, "one create for each launch, ever"
    assert api.alive_together == 1, "never two launches of one work at once"


def survive(api: KubernetesApi, work: Night, chance: random.Random, fate: Fate, plural: str) -> StageResult:
    lost = 0
    for try_number in range(1, 400):
        try:
            with fate.of(lambda: chance.random() < 0.05):
                found = work.advance(work.task(try_number=try_number))
        except Killed:
            continue
        if isinstance(found, StageResult):
            return found
        request = work.request()
        if chance.random() < 0.3:
            continue
        if not any(entry.value.get("attempt_id") == request.attempt_id for entry in work.work_folder.chain().history()):
            work.begin(request)
        if lost < 3 and chance.random() < 0.5:
            lost += 1
            api.remove(found.name, plural)
            continue
        work.commit(request)
        # Some workers see the pod's end, some find it gone.
        if chance.random() < 0.5:
            api.remove(found.name, plural)
    raise AssertionError("no result after 400 tries")


class Processes:
    """The stage's processes: each begins when its pod is made, and is over before anybody looks."""

    def __init__(self, api: KubernetesApi, work: Night, chance: random.Random) -> None:
        self._api = api
        self._work = work
        self._chance = chance
        self.begun: list[str] = []
        self.late = 0

    def run(self, plural: str, made: dict[str, Any]) -> None:
        """As the stage's runner does: what is done, or known to have ended, is not begun again."""
        work_folder = self._work.work_folder
        request = work_folder.request(made["metadata"]["labels"]["nightshift.io/attempt"])
        if work_folder.result() is not None or work_folder.ended(request.attempt_id) is not None:
            self.late += 1
            made["status"] = failed(75)
            return
        Lease.acquire(work_folder, owner=request.run.owner, attempt_id=request.attempt_id, takeover_epoch=request.takeover_epoch)
        self.begun.append(request.attempt_id)
        if len(self.begun) < 4 and self._chance.random() < 0.6:
            made["status"] = failed(137)
            return
        self._work.commit(request)
        made["status"] = SUCCEEDED


@pytest.mark.parametrize("rounds", [4, pytest.param(12, marks=pytest.mark.long)])
def test_several_mortal_workers_at_once_begin_each_launch_once_and_leave_nothing(
    api: KubernetesApi, night: Nights, fate: Fate, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    for seed in range(rounds):
        chance = random.Random(seed)  # noqa: S311 - threads take turns as they like; the deaths are these
        work = fresh(night(POD, infrastructure=50), seed, monkeypatch)
        processes = Processes(api, work, chance)
        api.on_create = processes.run
        found = together([run_until_done(work, fate, random.Random(f"{seed}/{number}"), number) for number in range(3)])  # noqa: S311
        assert found == [work.work_folder.result()] * 3
        assert len(set(processes.begun)) == len(processes.begun), f"seed {seed}: a launch was begun twice"
        assert len(processes.begun) <= len(work.work_folder.launches().history())
        assert api.objects == {}, f"seed {seed}"


def run_until_done(work: Night, fate: Fate, chance: random.Random, number: int) -> Callable[[], Any]:
    """Return what one task does: tried again after each death, it watches until there is a result."""

    def run() -> Any:
        watched, task = 0, work.task(run_id=f"r{number}")
        for try_number in range(1, 500):
            try:
                with fate.of(lambda: chance.random() < 0.02):
                    found = task.advance(watched=watched)
            except Killed:
                watched, task = 0, work.task(run_id=f"r{number}", try_number=try_number + 1)
                continue
            if isinstance(found, StageResult):
                return found
            watched = found.number
        raise AssertionError("no result after 500 tries")

    return run


def together(jobs: list[Callable[[], Any]]) -> list[Any]:
    found: list[Any] = [None] * len(jobs)

    def run(number: int) -> None:
        found[number] = jobs[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
