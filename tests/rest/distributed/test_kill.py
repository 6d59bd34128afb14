"""Two ranks under torchrun, killed in the middle in every way there is: the next attempt ends in the undisturbed weights."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Iterator

import pytest

from tests.distributed.launched import (
    WAIT_SECONDS,
    Kill,
    await_condition,
    finish,
    kill_after_a_checkpoint,
    processes_of,
    signal_rank,
    signal_torchrun,
    start,
)
from tests.training_bench import Bench
from training.contracts import ExitCode

pytestmark = pytest.mark.distributed

EPOCHS = 8


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("kill")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        made = Bench(folder, epochs=EPOCHS, batch_size=50, processes=2, every="1s")
    yield made
    assert processes_of(made.store.root_uri) == []


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    return finish(bench, "undisturbed")


def test_two_undisturbed_trainings_have_the_same_weights(bench: Bench, undisturbed: str) -> None:
    assert finish(bench, "again") == undisturbed


@pytest.mark.parametrize(
    ("name", "kill", "code"),
    [
        ("rank-0", signal_rank(0), "peer.lost"),
        ("rank-1", signal_rank(1), "peer.lost"),
        ("torchrun", signal_torchrun(signal.SIGKILL), None),
        ("stopped", signal_torchrun(signal.SIGTERM), "train.preempted"),
    ],
)
def test_killed_training_leaves_no_process_and_ends_in_the_undisturbed_weights(
    bench: Bench, undisturbed: str, name: str, kill: Kill, code: str | None
) -> None:
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
    error = work_folder.error("a1")
    assert code == (error and error["code"])
    saved_step = bench.checkpoints(name)[-1]["step"]
    assert finish(bench, name, "a2") == undisturbed
    result = work_folder.result()
    assert result is not None
    num_steps = result.scalars["steps"]
    assert isinstance(num_steps, int)
    assert 0 < saved_step < num_steps
    log = bench.store.bucket.get(f"{bench.store.bucket.key(work_folder.uri)}/attempts/a2/log.txt").decode()
    assert f"resuming after step {saved_step} " in log


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_attempt_that_is_started_a_second_time_goes_on_from_its_commit_and_ends_in_the_undisturbed_weights(
    bench: Bench, undisturbed: str, number: signal.Signals, code: int
) -> None:
    """As a queue does with a Job that it suspends and resumes. Processes: exit codes, and a lease that a killed process leaves behind."""
    name = f"restarted-{number.name}"
    kill_after_a_checkpoint(bench, name, 2, signal_torchrun(number), code)
    work_folder = bench.work_folder("train", name)
    error = work_folder.error("a1")
    assert (error and error["code"]) == ("train.preempted" if number is signal.SIGTERM else None)
    assert finish(bench, name, "a1") == undisturbed
    result = work_folder.result()
    assert result is not None
    assert (result.attempt_id, result.attempts) == ("a1", 2)
    assert work_folder.error("a1") is None
    log = bench.store.bucket.get(f"{bench.store.bucket.key(work_folder.uri)}/attempts/a1/log.txt").decode()
    assert "resuming after step " in log
    assert "attempt 2" in log


def test_an_elastic_training_continues_with_fewer_processes_and_a_fixed_one_refuses_to(
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
    assert bench.train(name, "a2") is ExitCode.BAD_SPEC
    error = bench.work_folder("train", name).error("a2")
    assert error is not None
    assert error["code"] == "checkpoint.mismatch"
    assert bench.train(name, "a3", elastic=True) is ExitCode.DONE
    result, whole = bench.work_folder("train", name).result(), bench.work_folder("train", "undisturbed").result()
    assert result is not None
    assert whole is not None
    assert result.scalars["world_size"] == 1
    assert result.scalars["steps"] == whole.scalars["steps"], "the same steps of the same rows"
    assert f"resuming after step {saved_step} " in caplog.text
    losses = [float(str(found.scalars["validation_loss"])) for found in (result, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3), "other bits, the same training"
