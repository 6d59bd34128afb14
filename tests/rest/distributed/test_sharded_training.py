"""A model that two ranks hold in parts (`train.parallel: {shard: 2}`), under torchrun: killed, resumed, and continued by one process."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Iterator

import pytest

from tests.distributed.launched import WAIT_SECONDS, Kill, await_condition, finish, processes_of, signal_rank, signal_torchrun, start
from tests.training_bench import Bench
from training.contracts import ExitCode

pytestmark = pytest.mark.distributed

EPOCHS = 6


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("sharded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        made = Bench(folder, epochs=EPOCHS, batch_size=50, processes=2, every="1s", parallel="{shard: 2}")
    yield made
    assert processes_of(made.store.root_uri) == []


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    return finish(bench, "undisturbed")


@pytest.mark.parametrize(
    ("name", "kill", "code"),
    [
        ("rank-0", signal_rank(0), "peer.lost"),
        ("rank-1", signal_rank(1), "peer.lost"),
        ("stopped", signal_torchrun(signal.SIGTERM), "train.preempted"),
    ],
)
def test_killed_sharded_training_ends_in_the_undisturbed_weights(bench: Bench, undisturbed: str, name: str, kill: Kill, code: str) -> None:
    num_saved = random.Random(name).randint(1, 4)  # noqa: S311 - where to kill, not a secret
    process = start(bench, name, "a1")
    try:
        await_condition(lambda: len(bench.checkpoints(name)) >= num_saved or process.poll() is not None, "a checkpoint")
        kill(process.pid)
        assert process.wait(WAIT_SECONDS) != 0
    finally:
        process.kill()
        process.wait()
    work_folder = bench.work_folder("train", name)
    await_condition(lambda: processes_of(work_folder.uri) == [], "the ranks to end")
    assert work_folder.result() is None
    saved_step = bench.checkpoints(name)[-1]["step"]
    assert finish(bench, name, "a2") == undisturbed
    log = bench.store.bucket.get(f"{bench.store.bucket.key(work_folder.uri)}/attempts/a2/log.txt").decode()
    assert f"resuming after step {saved_step} " in log


def test_sharded_training_that_is_stopped_saves_its_last_step_in_parts_of_both_ranks(bench: Bench, undisturbed: str) -> None:
    name = "stopped-once"
    process = start(bench, name, "a1")
    try:
        await_condition(lambda: len(bench.checkpoints(name)) >= 1 or process.poll() is not None, "a checkpoint")
        process.terminate()
        assert process.wait(WAIT_SECONDS) != 0
    finally:
        process.kill()
        process.wait()
    newest = bench.store.manifests.get(bench.checkpoints(name)[-1]["uri"], kind="checkpoint")
    ranks = {chunk["rank"] for entry in newest.meta["tensors"].values() for chunk in entry["chunks"]}
    assert ranks == {0, 1}
    error = bench.work_folder("train", name).error("a1")
    assert error is not None
    assert error["code"] == "train.preempted"
    assert f"step {newest.meta['step']}," in error["message"]
    assert finish(bench, name, "a2") == undisturbed


def test_elastic_training_continues_in_one_process_what_two_held_in_parts(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
    name = "shrunk"
    process = start(bench, name, "a1")
    try:
        await_condition(lambda: len(bench.checkpoints(name)) >= 2 or process.poll() is not None, "a checkpoint")
        process.terminate()
        assert process.wait(WAIT_SECONDS) != 0
    finally:
        process.kill()
        process.wait()
    saved_step = bench.checkpoints(name)[-1]["step"]
    assert bench.train(name, "a2") is ExitCode.BAD_SPEC, "another layout, and the training is not elastic"
    assert bench.train(name, "a3", elastic=True) is ExitCode.DONE
    result, whole = bench.work_folder("train", name).result(), bench.work_folder("train", "undisturbed").result()
    assert result is not None
    assert whole is not None
    assert result.scalars["world_size"] == 1
    assert f"resuming after step {saved_step} " in caplog.text
    losses = [float(str(found.scalars["validation_loss"])) for found in (result, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3), "other bits, the same training"
