"""One writer per work folder, and the fence."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.store.results import result_of
from training.errors import LeaseHeldError, LeaseLostError, UnavailableError
from training.process.running_time import AwakeClock
from training.store import Store, WorkFolder
from training.store.chains import Chain
from training.store.leases import COMMIT, HolderWatch, Lease, holder_of


@pytest.fixture
def work_folder(tmp_path: Path) -> WorkFolder:
    return Store(str(tmp_path)).work_folder("p", "train", "f" * 64)


def kinds(work_folder: WorkFolder) -> list[str]:
    return [entry.value["kind"] for entry in work_folder.chain().history()]


def test_second_owner_is_refused_while_the_first_holds(work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="one", attempt_id="a")
    with pytest.raises(LeaseHeldError, match="being worked on by one"):
        Lease.acquire(work_folder, owner="two", attempt_id="b")


def test_newer_attempt_of_the_same_task_takes_over_and_the_old_one_is_fenced(work_folder: WorkFolder) -> None:
    old = Lease.acquire(work_folder, owner="one", attempt_id="a")
    old.commit("checkpoint", {"step": 1})
    new = Lease.acquire(work_folder, owner="one", attempt_id="b")
    with pytest.raises(LeaseLostError, match=r"by one \(attempt b, epoch 2\)"):
        old.commit("checkpoint", {"step": 2})
    with pytest.raises(LeaseLostError):
        old.check()
    new.commit("checkpoint", {"step": 3})
    assert kinds(work_folder) == ["lease", "checkpoint", "lease", "checkpoint"]
    assert new.epoch == 2


def test_only_an_attempt_that_has_held_the_lease_before_is_a_restart(work_folder: WorkFolder) -> None:
    starts = [Lease.acquire(work_folder, owner="one", attempt_id=attempt) for attempt in ("a", "b", "a")]
    assert [lease.is_restart for lease in starts] == [False, False, True]


def test_fence_holds_even_if_the_old_writer_never_looked(work_folder: WorkFolder) -> None:
    old = Lease.acquire(work_folder, owner="one", attempt_id="a")
    new = Lease.acquire(work_folder, owner="one", attempt_id="b")
    new.commit(COMMIT, {})
    with pytest.raises(LeaseLostError):
        old.commit(COMMIT, {})


def test_record_of_a_later_version_is_the_end_of_the_lease_and_not_a_fault_of_the_storage(tmp_path: Path, work_folder: WorkFolder) -> None:
    lease = Lease.acquire(work_folder, owner="one", attempt_id="a")
    [entry] = tmp_path.rglob("0000000001.json")
    entry.with_name("0000000002.json").write_text('{"_record":{"digest":"","version":99}}\n')

    with pytest.raises(LeaseLostError, match="cannot be read, so this attempt stops"):
        lease.check()
    with pytest.raises(LeaseLostError, match="cannot be read"):
        lease.commit("checkpoint", {"step": 1})


def test_record_that_was_made_although_the_answer_was_lost_is_the_leases_own(
    work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease.acquire(work_folder, owner="one", attempt_id="a")
    move = Chain.move

    def lose_the_answer(ref: Chain, value: Any, *, expected: int) -> bool:
        assert move(ref, value, expected=expected)
        raise UnavailableError("storage.unavailable", "the answer did not come")

    with monkeypatch.context() as away:
        away.setattr(Chain, "move", lose_the_answer)
        with pytest.raises(UnavailableError):
            lease.commit("checkpoint", {"step": 1})

    # The same commit again finds its entry, another one goes after it, and a look finds nobody else.
    lease.commit("checkpoint", {"step": 1})
    lease.commit("checkpoint", {"step": 2})
    lease.check()
    lease.commit("checkpoint", {"step": 3})
    assert [entry.value["payload"]["step"] for entry in work_folder.chain().history()[1:]] == [1, 2, 3]


def test_record_of_another_epoch_ends_the_lease_although_its_take_over_is_not_seen(work_folder: WorkFolder) -> None:
    lease = Lease.acquire(work_folder, owner="one", attempt_id="a")
    assert work_folder.chain().move({"kind": "checkpoint", "epoch": 7, "attempt_id": "b", "payload": {}}, expected=1)

    with pytest.raises(LeaseLostError, match="by another writer"):
        lease.check()
    with pytest.raises(LeaseLostError, match="by another writer"):
        lease.commit("checkpoint", {"step": 1})


def test_storage_that_refuses_a_record_and_lists_none_is_an_error(work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease.acquire(work_folder, owner="one", attempt_id="a")
    monkeypatch.setattr(Chain, "move", lambda _ref, _value, *, expected: expected < 0)

    with pytest.raises(UnavailableError, match="refuses record 2 as existing, and does not list it"):
        lease.commit("checkpoint", {"step": 1})


def test_work_without_a_lease_has_no_holder(work_folder: WorkFolder) -> None:
    assert HolderWatch(work_folder, owner="one").poll() == (None, 0)


def test_lease_is_free_for_another_owner_once_the_result_follows_the_commit(work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="one", attempt_id="a").commit(COMMIT, {})
    watch = HolderWatch(work_folder, owner="two", clock=lambda: 0.0)
    holder, takeover_epoch = watch.poll()
    assert (holder is not None and holder.has_committed, takeover_epoch) == (True, 0), "its result is on the way"
    with pytest.raises(LeaseHeldError):
        Lease.acquire(work_folder, owner="two", attempt_id="b")
    assert work_folder.create_result(result_of("a"))
    assert watch.poll() == (None, 0)
    assert Lease.acquire(work_folder, owner="two", attempt_id="b").epoch == 2


def test_an_attempt_that_dies_between_its_commit_and_its_result_is_taken_over(work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="one", attempt_id="a").commit(COMMIT, {})
    now = [0.0]
    watch = HolderWatch(work_folder, owner="two", ttl_seconds=15, clock=lambda: now[0])
    assert watch.poll()[0] is not None
    now[0] += 15
    assert watch.poll() == (None, 1)
    assert Lease.acquire(work_folder, owner="two", attempt_id="b", takeover_epoch=1).epoch == 2


def test_an_attempt_that_is_taken_for_dead_after_its_commit_goes_on_to_its_result(work_folder: WorkFolder) -> None:
    first = Lease.acquire(work_folder, owner="one", attempt_id="a")
    first.commit(COMMIT, {})
    second = Lease.acquire(work_folder, owner="two", attempt_id="b", takeover_epoch=1)
    first.check()
    assert work_folder.create_result(result_of("a"))
    second.check()


def test_holder_counts_as_dead_only_after_its_heartbeat_stood_still_by_the_observers_clock(work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="one", attempt_id="a")
    now = [1000.0]
    watch = HolderWatch(work_folder, owner="two", ttl_seconds=15, clock=lambda: now[0])
    work_folder.write_heartbeat("a", {"beat": 0})
    assert watch.poll()[0] is not None
    now[0] += 14
    work_folder.write_heartbeat("a", {"beat": 1})
    assert watch.poll()[0] is not None
    now[0] += 14
    holder, takeover = watch.poll()
    assert holder is not None
    assert takeover == 0
    now[0] += 1
    assert watch.poll() == (None, 1)
    assert Lease.acquire(work_folder, owner="two", attempt_id="b", takeover_epoch=1).epoch == 2


def test_sleep_of_the_observer_makes_no_holder_dead_and_the_holder_continues(work_folder: WorkFolder) -> None:
    holder = Lease.acquire(work_folder, owner="one", attempt_id="a")
    work_folder.write_heartbeat("a", {"beat": 0})
    now = [1000.0]
    watch = HolderWatch(work_folder, owner="two", ttl_seconds=15, clock=AwakeClock(clock=lambda: now[0]))
    assert watch.poll()[0] is not None
    now[0] += 86_400
    assert watch.poll()[0] is not None
    holder.commit("checkpoint", {"step": 2})
    for _ in range(11):
        now[0] += 1
        assert watch.poll()[0] is not None
    now[0] += 1
    assert watch.poll() == (None, 1)


def test_takeover_of_an_epoch_that_is_no_longer_the_newest_is_refused(work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="one", attempt_id="a")
    Lease.acquire(work_folder, owner="one", attempt_id="b")
    with pytest.raises(LeaseHeldError):
        Lease.acquire(work_folder, owner="two", attempt_id="c", takeover_epoch=1)


def test_of_racing_owners_exactly_one_acquires(work_folder: WorkFolder) -> None:
    barrier, outcomes = threading.Barrier(8), []

    def race(number: int) -> None:
        barrier.wait()
        try:
            Lease.acquire(work_folder, owner=f"owner-{number}", attempt_id=f"a{number}")
            outcomes.append("won")
        except LeaseHeldError:
            outcomes.append("refused")

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["won"]
    holder = holder_of(work_folder.chain())
    assert holder is not None
    assert holder.epoch == 1


def test_commit_and_check_from_two_threads_never_look_like_a_foreign_writer(work_folder: WorkFolder) -> None:
    lease = Lease.acquire(work_folder, owner="one", attempt_id="a")
    done = threading.Event()
    lost: list[LeaseLostError] = []

    def check() -> None:
        while not done.is_set():
            try:
                lease.check()
            except LeaseLostError as err:
                lost.append(err)
                return

    thread = threading.Thread(target=check)
    thread.start()
    for step in range(200):
        lease.commit("checkpoint", {"step": step})
    done.set()
    thread.join()
    assert lost == []


def test_second_result_in_a_work_folder_is_refused(work_folder: WorkFolder) -> None:
    assert work_folder.create_result(result_of("a"))
    assert not work_folder.create_result(result_of("b"))
    stored = work_folder.result()
    assert stored is not None
    assert stored.attempt_id == "a"
