"""When a guard ends its process: by movements and awake time, with clock and processes that the test sets."""

from __future__ import annotations

import mmap
import os
import threading
import uuid
from collections.abc import Callable

import pytest

from training.process import liveness, liveness_guard, liveness_page
from training.process.awake import AwakeClock
from training.process.liveness_guard import FIRST_RANK_SECONDS, Guard, Rank, Seen

PID, OTHER_PID = 1_000, 1_001
LIMIT_SECONDS = 600.0


class Guarded:
    """A process with a guard; nothing of it is real but its page."""

    def __init__(
        self, patch: pytest.MonkeyPatch, environ: dict[str, str], *, attempt_id: str = "", clock: Callable[[], float] | None = None
    ) -> None:
        self.now = 0.0
        self.states = {PID: "R", OTHER_PID: "R"}
        self.asked: list[int] = []
        self.ended: list[Seen] = []
        self.page = mmap.mmap(-1, liveness_page.PAGE_BYTES)
        patch.setattr(liveness_guard, "state_of", lambda pid: self.states[pid])
        patch.setattr(liveness_guard, "parent_of", lambda pid: 1)
        patch.setattr(liveness_guard, "other_ranks", lambda pid: iter([Rank(OTHER_PID, "1")]))
        patch.setattr(liveness_guard, "phase_of", lambda pid: "in step")
        patch.setattr(liveness_guard, "stacks_of", lambda pid: self.asked.append(pid) or "File x")
        patch.setattr(Guard, "_end", lambda guard, seen, lapse: self.ended.append(seen))
        request_uri = f"stages/p/train/f/attempts/{attempt_id or uuid.uuid4().hex}/_REQUEST.json"
        self.guard = Guard(PID, self.page, request_uri, environ, clock=clock or (lambda: self.now))
        self.work = liveness._Watched(page=self.page, descriptors=(), guard=None, limits={"step": LIMIT_SECONDS})  # type: ignore[arg-type]
        self.work.phases.append(liveness._Phase("step", "epoch 1", 0))
        self.work.show()
        self.guard.look()

    def wait(self, seconds: float, *, moving: bool = False) -> bool:
        """Let time pass, look each second; return whether the process was ended."""
        until = self.now + seconds
        while self.now < until and not self.ended:
            self.now += 1.0
            if moving:
                self.work.move()
            self.guard.look()
        return bool(self.ended)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    return Guarded(monkeypatch, {})


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_watched", None)


def test_process_that_does_not_move_is_ended_at_its_limit_and_not_before(alone: Guarded) -> None:
    assert not alone.wait(LIMIT_SECONDS - 1)
    assert alone.asked == []
    assert alone.wait(1)
    assert alone.asked == [PID], "of one process, nobody else is asked"
    assert (alone.ended[0].kind, alone.ended[0].name, alone.ended[0].limit_seconds) == ("step", "epoch 1", LIMIT_SECONDS)


def test_process_that_moves_is_never_ended(alone: Guarded) -> None:
    assert not alone.wait(20 * LIMIT_SECONDS, moving=True)


def test_phase_without_a_limit_is_never_ended_and_the_next_one_has_its_whole_time(alone: Guarded) -> None:
    alone.work.phases.append(liveness._Phase("peers", "", 0))
    alone.work.show()
    assert not alone.wait(20 * LIMIT_SECONDS)
    alone.work.phases.pop()
    alone.work.show()
    assert not alone.wait(LIMIT_SECONDS - 1)
    assert alone.wait(2)


def test_all_that_is_done_before_the_spec_is_known_has_the_limit_of_the_start(alone: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    alone.work.limits, alone.work.is_starting = {"start": 7.0}, True
    monkeypatch.setattr(liveness, "_watched", alone.work)
    with liveness.phase("transfer", "read a request"):
        assert Seen.of(alone.page)[1:] == (7.0, "start", "read a request")
        liveness.limit({"transfer": 9.0})
        assert Seen.of(alone.page)[1:] == (9.0, "transfer", "read a request")


def test_transfer_in_one_call_has_a_second_more_for_each_mebibyte(alone: Guarded) -> None:
    alone.work.phases.append(liveness._Phase("step", "", 100 * 2**20))
    alone.work.show()
    assert not alone.wait(LIMIT_SECONDS + 99)
    assert alone.wait(2)


def test_sleep_of_the_machine_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    guarded = Guarded(monkeypatch, {}, clock=AwakeClock(clock=lambda: clock[0]))
    clock[0] += 10 * 3600.0
    assert not guarded.guard.look()
    for _ in range(int(LIMIT_SECONDS) - 4):
        clock[0] += 1.0
        assert not guarded.guard.look()
    clock[0] += 3.0
    assert guarded.guard.look()


def test_time_in_which_the_process_is_stopped_does_not_count(alone: Guarded) -> None:
    alone.wait(LIMIT_SECONDS - 1)
    alone.states[PID] = "T"
    assert not alone.wait(10 * LIMIT_SECONDS)
    alone.states[PID] = "S"
    assert not alone.wait(LIMIT_SECONDS - 1)
    assert alone.wait(2)


def test_rank_that_waits_for_one_that_is_stopped_is_not_ended_until_half_its_limit_after(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2"})
    guarded.states[OTHER_PID] = "T"
    assert not guarded.wait(10 * LIMIT_SECONDS)
    guarded.states[OTHER_PID] = "R"
    assert not guarded.wait(LIMIT_SECONDS / 2 - 2)
    assert guarded.wait(3)


def test_first_rank_of_several_is_ended_later_so_that_it_can_save_once_another_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, {"RANK": "0", "WORLD_SIZE": "2"})
    assert not guarded.wait(LIMIT_SECONDS + FIRST_RANK_SECONDS - 1)
    assert guarded.asked == [PID, OTHER_PID], "stacks are printed at the limit, once"
    assert guarded.wait(2)


def test_other_ranks_are_ended_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2"})
    assert guarded.wait(LIMIT_SECONDS + 1)
    assert guarded.asked == [PID, OTHER_PID]


def test_stacks_of_the_node_are_requested_by_one_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Guarded(monkeypatch, {"RANK": "0", "WORLD_SIZE": "2"}, attempt_id="a1")
    first.wait(LIMIT_SECONDS)
    second = Guarded(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2"}, attempt_id="a1")
    assert second.wait(LIMIT_SECONDS)
    assert (first.asked, second.asked) == ([PID, OTHER_PID], [PID])


def test_phases_are_those_of_the_working_thread_and_helpers_move_it_but_heartbeats_do_not(
    alone: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_watched", alone.work)

    def elsewhere(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def helper() -> None:
        with liveness.phase("transfer", "block"):
            pass

    def heartbeat() -> None:
        liveness.in_background()
        helper()
        liveness.moved()

    before = Seen.of(alone.page)
    elsewhere(heartbeat)
    assert Seen.of(alone.page) == before
    elsewhere(helper)
    assert Seen.of(alone.page) == before._replace(movements=before.movements + 2)
    with liveness.phase("validation", "epoch 1"):
        assert Seen.of(alone.page)[2:] == ("validation", "epoch 1")
        assert Seen.of(alone.page).limit_seconds == 0, "no limit was set for it"
    assert Seen.of(alone.page)[1:] == before[1:]


def test_phase_that_ends_late_leaves_the_present_one(alone: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_watched", alone.work)
    late = liveness.phase("transfer", "stream")
    late.__enter__()
    with liveness.phase("validation"):
        late.__exit__(None, None, None)
        assert Seen.of(alone.page).kind == "validation"
    assert Seen.of(alone.page).kind == "step"


def test_long_name_of_a_phase_is_cut(alone: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_watched", alone.work)
    with liveness.phase("transfer", "ä" * 1000):
        assert Seen.of(alone.page).name.startswith("ä" * 100)


def test_forked_child_moves_its_parent_and_leaves_its_phase_and_limits(alone: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_watched", alone.work)
    before = Seen.of(alone.page)
    child = os.fork()
    if child == 0:
        liveness.limit({})
        with liveness.phase("transfer", "key"):
            # As one that is killed in the middle.
            os._exit(0)
    os.waitpid(child, 0)
    after = Seen.of(alone.page)
    assert (after.kind, after.name, after.limit_seconds) == (before.kind, before.name, LIMIT_SECONDS)
    assert after.movements != before.movements
