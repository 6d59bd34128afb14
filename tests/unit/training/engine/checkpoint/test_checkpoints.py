"""Checkpoints that are saved: when one is due, what a failed save comes to, and which ones a run names."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from tests.unit.training.engine.checkpoint.saved_states import meta, state
from tests.unit.training.engine.loop_bench import LoopBench
from tests.unit.training.store.collected_store import collector_of
from training.engine.checkpoint.format import ALIGNMENT_BYTES, BLOCK_BYTES, Position
from training.engine.checkpoint.writer import MAX_FAILED_SAVES
from training.errors import LeaseLostError, UnavailableError
from training.runtime.context import StageContext
from training.store.leases import Lease
from training.store.reachability import KeepRules


class Clock:
    """The checkpoints' clock, moved by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr("training.engine.checkpoint.writer.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Gate:
    """Holds the writes of a store until it is opened."""

    def __init__(self, bench: LoopBench, patch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        put = bench.store.objects.put_block

        def held(data: memoryview) -> tuple[str, bool]:
            assert self.opened.wait(240)
            return put(data)

        patch.setattr(bench.store.objects, "put_block", held)


class Failing:
    """Makes the next saves of a store fail."""

    def __init__(self, bench: LoopBench, patch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        put = bench.store.objects.put_block

        def fail(data: memoryview) -> tuple[str, bool]:
            if self.errors:
                raise self.errors.pop(0)
            return put(data)

        patch.setattr(bench.store.objects, "put_block", fail)


@pytest.fixture
def failing(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(bench, monkeypatch)


def away() -> UnavailableError:
    return UnavailableError("storage.unavailable", "the storage is away")


def test_save_is_due_once_the_interval_is_over_and_then_again_after_the_next_one(bench: LoopBench, clock: Clock) -> None:
    checkpoints = bench.checkpoints(bench.context(), every_seconds=10)
    due = []
    for now in (100, 109.9, 110, 119.9, 120):
        clock.now = now
        due.append(checkpoints.is_due(1))
        if checkpoints.is_due(1):
            checkpoints.save(state(), meta(1))
            checkpoints.wait()
    checkpoints.close()
    assert due == [False, False, True, False, True]


def test_save_by_steps_is_due_at_its_step_also_while_one_is_under_way(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(bench, monkeypatch)
    checkpoints = bench.checkpoints(bench.context(), every_steps=10)
    checkpoints.save(state(), meta(9))
    assert [step for step in (9, 10, 11) if checkpoints.is_due(step)] == [10, 11]
    gate.opened.set()
    checkpoints.save(state(), meta(11))
    assert [step for step in range(12, 22) if checkpoints.is_due(step)] == [20, 21]
    checkpoints.close()


def test_no_save_is_due_while_one_is_under_way(bench: LoopBench, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(bench, monkeypatch)
    checkpoints = bench.checkpoints(bench.context(), every_seconds=10)
    checkpoints.save(state(), meta(1))
    clock.now = 200.0
    assert not checkpoints.is_due(1)
    gate.opened.set()
    checkpoints.wait()
    assert checkpoints.is_due(1)
    checkpoints.close()


def test_finished_save_without_a_waiter_makes_the_next_one_due(bench: LoopBench, clock: Clock) -> None:
    checkpoints = bench.checkpoints(bench.context(), every_seconds=10)
    checkpoints.save(state(), meta(1))
    (under_way,) = checkpoints._writer.saves._in_flight
    under_way.future.result()
    clock.now = 200.0
    assert checkpoints.is_due(1)
    checkpoints.close()


def test_state_may_change_as_soon_as_save_returns(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(bench, monkeypatch)
    checkpoints = bench.checkpoints(bench.context())
    saved = state(1.0)
    checkpoints.save(saved, meta(1))
    saved["module/w"].fill_(9.0)
    gate.opened.set()
    checkpoints.close()
    assert torch.equal(checkpoints.restore(checkpoints.newest_entry()).state["module/w"], torch.ones(4))


def test_second_save_waits_for_the_first_and_both_are_whole(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    for step in (1, 2, 3):
        checkpoints.save(state(step, size=40_000), meta(step))
    checkpoints.close()
    entries = [entry.number for entry in bench.work_folder.chain().history() if entry.value["kind"] == "checkpoint"]
    restored = [checkpoints.restore(number) for number in entries]
    assert [found.meta["step"] for found in restored] == [1, 2, 3]
    for step, found in enumerate(restored, start=1):
        assert torch.equal(found.state["module/w"], torch.full((40_000,), float(step)))


def test_smaller_state_after_a_larger_one_is_saved_without_the_rest_of_it(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save(state(1.0, size=100), meta(1))
    checkpoints.save(state(2.0, size=3), meta(2))
    checkpoints.close()
    (uri, small) = (bench.saved[0]["uri"], bench.saved[1]["uri"])
    sizes = [sum(entry.size_bytes for entry in bench.store.manifests.get(found).files.values()) for found in (uri, small)]
    assert sizes == [400, 16]
    assert torch.equal(checkpoints.restore(checkpoints.newest_entry()).state["module/w"], torch.full((3,), 2.0))


def test_blocks_that_did_not_change_are_the_same_objects_and_are_not_counted_as_written(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.engine.checkpoint.writer.BLOCK_BYTES", 400_000)
    checkpoints = bench.checkpoints(bench.context())
    tensors = {"a": torch.arange(100_000.0), "b": torch.arange(100_000.0) + 50, "c": torch.ones(4)}
    with caplog.at_level("INFO"):
        checkpoints.save(tensors, meta(1))
        checkpoints.save({**tensors, "b": torch.zeros(100_000)}, meta(2))
        checkpoints.close()
    assert "step 1 committed (0.8 MB, 0.8 MB of it written, the rest unchanged)" in caplog.text
    assert "step 2 committed (0.8 MB, 0.4 MB of it written, the rest unchanged)" in caplog.text
    first, second = ({n: e.digest for n, e in bench.store.manifests.get(saved["uri"]).files.items()} for saved in bench.saved)
    assert list(first) == ["block-00000", "block-00001", "block-00002"]
    assert [name for name in first if first[name] != second[name]] == ["block-00001"]


def test_constants_are_those_that_are_documented() -> None:
    assert (BLOCK_BYTES, ALIGNMENT_BYTES, MAX_FAILED_SAVES) == (4 << 20, 8, 3)


def test_ref_of_the_run_points_to_the_named_save(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save(state(), meta(3), name="epoch_1")
    checkpoints.save(state(2.0), meta(4))
    checkpoints.close()
    assert bench.named == {"epoch_1": bench.saved[0]["uri"]}


@pytest.mark.parametrize(
    ("keep", "best", "expected"),
    [(1, {}, {8}), (3, {}, {6, 7, 8}), (1, {2: 2, 8: 2}, {2, 8}), (2, {8: 7}, {7, 8}), (9, {}, {1, 2, 3, 4, 5, 6, 7, 8})],
    ids=["one", "three", "one and the best epoch", "the best epoch is among the newest", "more than there are"],
)
def test_run_keeps_refs_to_its_newest_checkpoints_and_the_best(
    bench: LoopBench, keep: int, best: dict[int, int], expected: set[int]
) -> None:
    checkpoints = bench.checkpoints(bench.context(), keep=keep)
    for epoch in range(1, 9):
        checkpoints.save(state(float(epoch)), {**meta(epoch), "epoch": epoch, "best_epoch": best.get(8, epoch)}, name=f"epoch_{epoch}")
    checkpoints.save(state(9.0), {**meta(9), "epoch": 8, "best_epoch": best.get(8, 8)}, name="by_hand")
    checkpoints.close()
    assert set(bench.named) == {"by_hand", "best", *(f"epoch_{epoch}" for epoch in expected)}
    assert bench.saved[-1]["keep"] == keep


def test_names_of_a_runs_earlier_training_give_way_to_those_of_the_training_that_it_repeats(bench: LoopBench) -> None:

    def save(context: StageContext, epochs: range, weight: float) -> None:
        checkpoints = bench.checkpoints(context, keep=2)
        for epoch in epochs:
            checkpoints.save(state(weight * epoch), {**meta(epoch), "epoch": epoch, "best_epoch": 1}, name=f"epoch_{epoch}")
        checkpoints.close()

    earlier = bench.context()
    earlier.request = replace(earlier.request, work_id="e" * 64)
    earlier.lease = Lease.acquire(bench.store.work_folder("p", "train", "e" * 64), owner="one", attempt_id="a1")
    save(earlier, range(1, 9), 1.0)
    save(bench.context(), range(1, 4), 2.0)
    save(bench.context(), range(4, 5), 2.0)
    uris = {saved["epoch"]: saved["uri"] for saved in bench.saved}
    assert bench.named == {"best": uris[1], "epoch_1": uris[1], "epoch_3": uris[3], "epoch_4": uris[4]}


def test_collected_training_resumes_from_a_kept_checkpoint(bench: LoopBench) -> None:
    rules = KeepRules(runs=timedelta(days=1), attempts=timedelta(days=1), grace=timedelta(0))
    checkpoints = bench.checkpoints(bench.context(), keep=1)
    for epoch in range(1, 9):
        checkpoints.save(state(float(epoch)), {**meta(epoch), "epoch": epoch, "best_epoch": 2}, name=f"epoch_{epoch}")
    checkpoints.close()
    for _ in range(2):
        collector_of(bench.store, rules).collect()
    again = bench.checkpoints(bench.context(), keep=1)
    assert again.restore(again.newest_entry()).meta["epoch"] == 8
    again.close()
    left = [entry.key for entry in bench.store.bucket.list("manifests")]
    assert left == sorted(bench.store.bucket.key(bench.saved[epoch - 1]["uri"]) for epoch in (2, 8))


def test_trial_saves_by_time_alone_and_under_no_name(bench: LoopBench, clock: Clock) -> None:
    checkpoints = bench.checkpoints(bench.context(), every_seconds=10, by_name=False)
    checkpoints.save(state(), meta(1), name="epoch_1")
    checkpoints.wait()
    assert bench.saved == []
    clock.now = 110.0
    checkpoints.save(state(), meta(2), name="epoch_2")
    checkpoints.save(state(), meta(3))
    checkpoints.close()
    assert [entry["step"] for entry in bench.saved] == [2, 3]
    assert bench.named == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [(away(), "checkpoint.unsaved"), (OSError(28, "No space left on device"), "storage.full")],
    ids=["storage away", "disk full"],
)
def test_third_failed_save_in_a_row_ends_the_training(
    bench: LoopBench, failing: Failing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_NODE", "node-7")
    checkpoints = bench.checkpoints(bench.context())
    failing.errors = [error] * 3
    for step in (1, 2):
        checkpoints.save(state(), meta(step))
        checkpoints.wait()
    assert "rank 0 (node node-7): the checkpoint of step 2 was not saved (2 consecutive failures)" in caplog.text
    checkpoints.save(state(), meta(3))
    with pytest.raises(UnavailableError) as caught:
        checkpoints.wait()
    assert caught.value.code == code
    assert caught.value.message == f"rank 0 (node node-7): the checkpoint of step 3 was not saved, as 2 before it: {error}"
    checkpoints.close()
    assert bench.saved == []


def test_save_that_succeeds_starts_the_count_of_failed_ones_again(bench: LoopBench, failing: Failing) -> None:
    checkpoints = bench.checkpoints(bench.context())
    for step in range(1, 10):
        failing.errors = [] if step % 3 == 0 else [away()]
        checkpoints.save(state(step), meta(step))
        checkpoints.wait()
    checkpoints.close()
    assert [entry["step"] for entry in bench.saved] == [3, 6, 9]


def test_failed_save_reports_once_and_the_checkpoint_before_stays_the_newest(bench: LoopBench, failing: Failing) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save(state(1.0), meta(1))
    checkpoints.wait()
    failing.errors = [away()]
    checkpoints.save(state(2.0), meta(2))
    checkpoints.wait()
    checkpoints.wait()
    assert checkpoints._writer.saves.num_failed == 1
    checkpoints.close()
    assert checkpoints.restore(checkpoints.newest_entry()).meta["step"] == 1


def test_save_after_a_takeover_ends_the_training_at_once(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    Lease.acquire(bench.work_folder, owner="one", attempt_id="newer")
    checkpoints.save(state(), meta(1))
    with pytest.raises(LeaseLostError):
        checkpoints.wait()
    checkpoints.close()


def test_mistake_in_the_code_of_a_save_is_no_failed_save(bench: LoopBench, failing: Failing) -> None:
    checkpoints = bench.checkpoints(bench.context())
    failing.errors = [ZeroDivisionError()]
    checkpoints.save(state(), meta(1))
    with pytest.raises(ZeroDivisionError):
        checkpoints.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        checkpoints.save(state(), meta(2))


@pytest.mark.parametrize("kind", ["tensors", "bytes"])
def test_history_that_grows_while_a_save_is_written_is_saved_as_it_was(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    gate = Gate(bench, monkeypatch)
    checkpoints = bench.checkpoints(bench.context())
    position: Position = {"step": 1, "epoch": 1, "history": [{"train_loss": 0.5}]}
    if kind == "tensors":
        checkpoints.save(state(), position)
    else:
        checkpoints.save_bytes({"booster": b"trees"}, position)
    position["history"].append({"train_loss": 0.25})
    gate.opened.set()
    checkpoints.close()
    assert bench.checkpoints(bench.context()).restore(checkpoints.newest_entry()).meta["history"] == [{"train_loss": 0.5}]
