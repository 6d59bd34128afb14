"""Training as a stage, in one process: stopped, resumed, damaged, diverged; the weights are the judge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training_bench import Bench
from training.contracts import ExitCode
from training.engine.tracking.mlflow_journal import RunJournal
from training.models.base import hint_of_last_epoch
from training.models.ranker.module import Ranker
from training.runtime.context import StageContext, StopFlag


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        return Bench(folder)


@pytest.fixture(autouse=True)
def _no_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there: every training of these tests is one with its tracking server away."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        assert bench.train("undisturbed") is ExitCode.DONE
    return bench.weights("undisturbed")


def stopping_at(step: int, stop: StopFlag) -> Callable[..., None]:
    original = StageContext.progress

    def progress(self: StageContext, done: int, total: int, unit: str, **more: Any) -> None:
        original(self, done, total, unit, **more)
        if done >= step:
            stop.request()

    return progress


def test_best_epoch_that_is_the_last_of_several_is_a_hint() -> None:
    assert hint_of_last_epoch(3, 3) == "the best epoch is the last one, 3: more of them (train.epochs) may make a better model"
    assert [hint_of_last_epoch(best, epochs) for best, epochs in ((2, 3), (1, 1))] == ["", ""]


def test_same_work_has_the_same_weights(bench: Bench, undisturbed: str) -> None:
    assert bench.train("again") is ExitCode.DONE
    assert bench.weights("again") == undisturbed


def test_training_continues_without_its_tracking_server_and_keeps_the_metrics(bench: Bench, undisturbed: str) -> None:
    result = bench.work_folder("train", "undisturbed").result()
    assert result is not None
    assert undisturbed
    assert result.scalars["tracking"] == "delayed"
    journal = RunJournal(bench.store.bucket, bench.store.bucket.key(bench.work_folder("train", "undisturbed").uri))
    description = journal.description()
    assert description is not None
    assert description.tags["nightshift.layout"] == "data 1 x shard 1"
    (name,) = journal.backlogs()
    backlog = journal.backlog(name)
    assert {point.name for batch in journal.batches(name, backlog.after) for point in batch} >= {"train_loss", "validation_loss"}
    assert backlog.end is not None
    assert backlog.end.status == "FINISHED"


@pytest.mark.parametrize("step", [1, 7, 12])
def test_stopped_training_loses_no_step_and_ends_in_the_same_weights(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    stop, name = StopFlag(), f"stopped-{step}"
    with monkeypatch.context() as patch:
        patch.setattr(StageContext, "progress", stopping_at(step, stop))
        assert bench.train(name, stop=stop) is ExitCode.PREEMPTED
    assert bench.checkpoints(name)[-1]["step"] == step
    assert bench.train(name, "a2") is ExitCode.DONE
    assert bench.weights(name) == undisturbed
    result = bench.work_folder("train", name).result()
    assert result is not None
    assert result.attempts == 2


def damage(bench: Bench, uri: str) -> None:
    manifest = bench.store.manifests.get(uri)
    entry = next(iter(manifest.files.values()))
    path = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(entry.digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damaged_newest_checkpoint_is_reported_and_the_one_before_is_used(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.engine.checkpoint.writer.BLOCK_BYTES", 1 << 30)
    for attempt_id, step in (("a1", 3), ("a2", 6)):
        stop = StopFlag()
        with monkeypatch.context() as patch:
            patch.setattr(StageContext, "progress", stopping_at(step, stop))
            assert bench.train("damaged", attempt_id, stop=stop) is ExitCode.PREEMPTED
    first, newest = bench.checkpoints("damaged")
    damage(bench, newest["uri"])
    with caplog.at_level(logging.WARNING):
        assert bench.train("damaged", "a3") is ExitCode.DONE
    assert "checkpoint of step 6 is unusable" in caplog.text
    assert first["step"] == 3
    assert bench.weights("damaged") == undisturbed


def test_training_never_starts_over_in_silence_when_all_checkpoints_are_damaged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.engine.checkpoint.writer.BLOCK_BYTES", (1 << 30) + 1)
    stop = StopFlag()
    with monkeypatch.context() as patch:
        patch.setattr(StageContext, "progress", stopping_at(4, stop))
        assert bench.train("lost", stop=stop) is ExitCode.PREEMPTED
    (only,) = bench.checkpoints("lost")
    damage(bench, only["uri"])
    assert bench.train("lost", "a2") is ExitCode.NO_USABLE_CHECKPOINT
    error = bench.work_folder("train", "lost").error("a2")
    assert error is not None
    assert error["code"] == "checkpoint.unusable"
    assert "step 4" in error["message"]


def test_diverged_training_stops_before_the_optimizer_and_says_at_which_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = Ranker.loss

    def loss(self: Ranker, module: torch.nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return original(self, module, batch) * (float("nan") if len(calls) == 4 else 1.0)

    monkeypatch.setattr(Ranker, "loss", loss)
    assert bench.train("diverged") is ExitCode.DIVERGED
    error = bench.work_folder("train", "diverged").error("a1")
    assert error is not None
    assert error["code"] == "loss.not_finite"
    assert "step 3" in error["message"]
    assert len(calls) == 4


@pytest.mark.slow
@pytest.mark.parametrize(("cpus", "threads", "identity"), [(None, 1, {}), (2, 2, {"threads": 2})])
def test_cpus_set_the_threads_and_what_a_checkpoint_must_agree_on(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cpus: int | None,
    threads: int,
    identity: dict[str, int],
) -> None:
    train = bench.spec.train
    placed = train.model_copy(update={"placement": train.placement.model_copy(update={"cpus": cpus})})
    name = f"cpus-{cpus}"
    monkeypatch.setattr(bench, "spec", bench.spec.model_copy(update={"train": placed}))
    with caplog.at_level(logging.INFO, "training.stages.train"):
        assert bench.train(name) is ExitCode.DONE
    assert torch.get_num_threads() == threads
    assert f"processes: 1, threads of each: {threads}, device: cpu" in caplog.messages
    manifest = bench.store.manifests.get(bench.checkpoints(name)[-1]["uri"], kind="checkpoint")
    assert set(manifest.meta["identity"]) - {"world_size", "batch_size", "dataset"} == set(identity)
    assert manifest.meta["identity"].items() >= identity.items()
    torch.set_num_threads(1)
