"""The store on S3: every conditional write has one winner, who knows it, although answers are lost."""

import pytest

from tests.unit.training.store.results import result_of
from tests.unit.training.store.s3_proxy import CONFLICT, FaultProxy, answers, race
from training.errors import DataError, LeaseHeldError, LeaseLostError, UnavailableError
from training.store import Store, bucket
from training.store.leases import Lease


def test_what_is_written_is_read_and_listed(s3_store: Store) -> None:
    digest = s3_store.objects.put_bytes(b"content")
    assert s3_store.objects.put_bytes(b"content") == digest
    assert s3_store.objects.get_bytes(digest) == b"content"
    assert [entry.size_bytes for entry in s3_store.bucket.list("objects")] == [7]
    assert s3_store.bucket.folders("objects") == ["sha256"]
    with pytest.raises(DataError, match="does not exist"):
        s3_store.bucket.get("absent")


@pytest.mark.slow
def test_of_eight_writers_exactly_one_moves_a_ref_and_all_others_get_false(s3_store: Store) -> None:
    ref = s3_store.ref("contested")
    for number in range(20):
        winners = race(lambda writer, number=number: ref.move({"writer": writer}, expected=number))
        assert len(winners) == 1
        assert ref.at(number + 1).value == {"writer": winners[0]}


def test_with_faults_the_one_of_eight_writers_whose_value_is_stored_gets_true(s3_store: Store, proxy: FaultProxy) -> None:
    ref = s3_store.ref("contested")
    num_lost: list[str] = []

    def lose(method: str, path: str) -> bool:
        is_lost = method == "PUT" and proxy.chance(0.3)
        num_lost.extend([path] * is_lost)
        return is_lost

    proxy.slow_down_share, proxy.lose_answer = 0.1, lose
    proxy.answer = lambda method, path: CONFLICT if method == "PUT" and proxy.chance(0.1) else None
    for number in range(10):
        winners = race(lambda writer, number=number: ref.move({"writer": writer}, expected=number))
        assert [ref.at(number + 1).value["writer"]] == winners
    assert len(num_lost) > 10


def test_a_winner_whose_answer_was_lost_knows_that_it_won(s3_store: Store, proxy: FaultProxy) -> None:
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "PUT" and next(lost, False)
    assert s3_store.ref("r").move({"writer": "me"}, expected=0)
    assert next(lost, None) is None, "an answer was lost"
    assert not s3_store.ref("r").move({"writer": "another"}, expected=0)


def test_a_winner_whose_answer_never_comes_knows_that_it_won(s3_store: Store, proxy: FaultProxy) -> None:
    hung = iter([True])
    proxy.hang_seconds, proxy.hang_answer = 1.0, lambda method, path: method == "PUT" and next(hung, False)
    assert s3_store.ref("r").move({"writer": "me"}, expected=0)
    assert next(hung, None) is None, "an answer hung"
    assert not s3_store.ref("r").move({"writer": "another"}, expected=0)


def test_two_processes_of_one_attempt_hold_one_lease_after_the_other(s3_store: Store) -> None:
    work_folder = s3_store.work_folder("p", "train", "f" * 64)
    leases: dict[int, Lease] = {}

    def acquire(process: int) -> bool:
        leases[process] = Lease.acquire(work_folder, owner="a/1/train", attempt_id="1")
        return True

    assert len(race(acquire)) == 8
    assert sorted(lease.epoch for lease in leases.values()) == list(range(1, 9))


def test_a_result_whose_answer_was_lost_is_this_attempts_result(s3_store: Store, proxy: FaultProxy) -> None:
    work_folder = s3_store.work_folder("p", "train", "f" * 64)
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "PUT" and next(lost, False)
    assert work_folder.create_result(result_of("mine"))
    assert next(lost, None) is None, "an answer was lost"
    assert not work_folder.create_result(result_of("another's"))
    assert work_folder.result() == result_of("mine")


def test_a_conflict_that_left_nothing_is_tried_again_and_not_taken_for_an_object(s3_store: Store, proxy: FaultProxy) -> None:
    proxy.answer = answers(CONFLICT, CONFLICT)
    digest = s3_store.objects.put_bytes(b"content")
    assert s3_store.objects.get_bytes(digest) == b"content"
    proxy.answer = answers(CONFLICT)
    assert s3_store.bucket.create("mine", b"1")
    proxy.answer = answers(CONFLICT)
    assert not s3_store.bucket.create("mine", b"2")
    assert s3_store.bucket.get("mine") == b"1"


def test_conflicts_without_end_are_unavailable_and_not_a_lost_lease(
    s3_store: Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "CREATE_ATTEMPTS", 3)
    lease = Lease.acquire(s3_store.work_folder("p", "train", "f" * 64), owner="a/1/train", attempt_id="1")
    proxy.answer = answers(then=CONFLICT)
    with pytest.raises(UnavailableError, match="refused 3 times as existing, and nothing is there") as caught:
        lease.commit("checkpoint", {"step": 1})
    assert caught.value.code == "storage.conflict"
    proxy.answer = answers()
    lease.commit("checkpoint", {"step": 1})


def test_a_lease_whose_answers_are_lost_commits_all_the_same_and_fences_the_older(s3_store: Store, proxy: FaultProxy) -> None:
    work_folder = s3_store.work_folder("p", "train", "f" * 64)
    proxy.lose_answer = lambda method, path: method == "PUT" and proxy.seen[f"{method} {path}"] == 1
    first = Lease.acquire(work_folder, owner="a/1/train", attempt_id="1")
    first.commit("checkpoint", {"step": 1})
    with pytest.raises(LeaseHeldError):
        Lease.acquire(work_folder, owner="b/1/train", attempt_id="2")
    second = Lease.acquire(work_folder, owner="b/1/train", attempt_id="2", takeover_epoch=first.epoch)
    second.commit("checkpoint", {"step": 2})
    with pytest.raises(LeaseLostError):
        first.commit("checkpoint", {"step": 3})
    steps = [entry.value["payload"]["step"] for entry in work_folder.chain().history() if entry.value["kind"] == "checkpoint"]
    assert steps == [1, 2]


def test_block_that_the_bucket_has_is_not_sent_again(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, create = [], s3_store.bucket.create
    monkeypatch.setattr(s3_store.bucket, "create", lambda key, data: (sent.append(key), create(key, data))[1])
    first, again = (s3_store.objects.put_block(memoryview(b"block")) for _ in range(2))
    assert first == (again[0], True)
    assert not again[1]
    assert sent == [s3_store.objects.key(first[0])]
