"""A model of which two ranks have some layers each (`train.parallel: {pipeline: 2}`), under torchrun: killed, resumed, continued by one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.distributed.launched import WAIT_SECONDS, await_condition, finish, processes_of, signal_rank, start
from tests.training_bench import Bench
from training.contracts import ExitCode

pytestmark = pytest.mark.distributed

EPOCHS = 6


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("stages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        made = Bench(folder, epochs=EPOCHS, batch_size=50, processes=2, every="1s", parallel="{pipeline: 2}\n  micro_batch_size: 20")
    yield made
    assert processes_of(made.store.root_uri) == []


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    return finish(bench, "undisturbed")


def kill_after_a_checkpoint(bench: Bench, name: str, number: int) -> None:
    process = start(bench, name, "a1")
    try:
        await_condition(lambda: len(bench.checkpoints(name)) >= number or process.poll() is not None, "a checkpoint")
        signal_rank(1)(process.pid)
        assert process.wait(WAIT_SECONDS) != 0
    finally:
        process.kill()
        process.wait()
    await_condition(lambda: processes_of(bench.address("train", name).uri) == [], "the ranks to end")


def test_killed_training_of_two_stages_ends_in_the_undisturbed_weights(bench: Bench, undisturbed: str) -> None:
    kill_after_a_checkpoint(bench, "killed", 2)
    saved_step = bench.checkpoints("killed")[-1]["step"]
    assert finish(bench, "killed", "a2") == undisturbed
    address = bench.address("train", "killed")
    log = bench.store.bucket.get(f"{bench.store.bucket.key(address.uri)}/attempts/a2/log.txt").decode()
    assert f"resuming after step {saved_step} " in log
    result = address.result()
    assert result is not None
    assert result.scalars["layout"] == "data 1 x shard 1 x pipeline 2"


def test_elastic_training_continues_in_one_process_what_two_had_as_stages(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.CLOSE_SECONDS", 0.5)
    kill_after_a_checkpoint(bench, "shrunk", 2)
    saved_step = bench.checkpoints("shrunk")[-1]["step"]
    assert bench.train("shrunk", "a2") is ExitCode.BAD_SPEC, "another layout, and the training is not elastic"
    assert bench.train("shrunk", "a3", elastic=True) is ExitCode.DONE
    found, whole = (bench.address("train", name).result() for name in ("shrunk", "undisturbed"))
    assert found is not None
    assert whole is not None
    assert found.scalars["world_size"] == 1
    assert f"resuming after step {saved_step} " in caplog.text
    losses = [float(str(result.scalars["validation_loss"])) for result in (found, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3), "other bits, the same training"
