"""Two ranks under torchrun, killed in the middle in every way there is: the next attempt ends in the undisturbed weights."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training_bench import Bench
from training.contracts import ExitCode
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.distributed

EPOCHS = 8
WAIT_SECONDS = 240.0
TORCHRUN = ("-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0")

Kill = Callable[[int], None]
"""Takes torchrun's process id."""


def await_condition(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.02)


def start(bench: Bench, name: str, attempt_id: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        # Nobody listens there, and nobody is asked twice.
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    command = [sys.executable, *TORCHRUN, "-m", "training.stages.train", bench.ask_train(name, attempt_id)]
    log_path = Path(bench.store.root_uri.removeprefix("file://")).parent / f"{name}-{attempt_id}.log"
    with log_path.open("wb") as log:
        return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(bench: Bench, name: str, attempt_id: str = "a1") -> str:
    """Train to the end; return the weights' digest."""
    process = start(bench, name, attempt_id)
    try:
        assert process.wait(WAIT_SECONDS) == 0, bench.address("train", name).error(attempt_id)
    finally:
        process.kill()
        process.wait()
    return bench.weights(name)


def processes_of(text: str) -> list[int]:
    """Return the pids of the processes whose command line has `text` in it."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def rank_of(torchrun_pid: int, rank: int) -> int:
    """Return the pid of one of torchrun's ranks."""
    for child in Path(f"/proc/{torchrun_pid}/task/{torchrun_pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text() == f"rank {rank}\n":
            return int(child)
    raise LookupError(f"torchrun has no rank {rank}")


def signal_rank(rank: int) -> Kill:
    return lambda pid: os.kill(rank_of(pid, rank), signal.SIGKILL)


def signal_torchrun(number: signal.Signals) -> Kill:
    return lambda pid: os.kill(pid, number)


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
    address = bench.address("train", name)
    await_condition(lambda: processes_of(address.uri) == [], "the ranks to end")
    assert address.result() is None
    error = address.error("a1")
    assert code == (error and error["code"])
    saved_step = bench.checkpoints(name)[-1]["step"]
    assert finish(bench, name, "a2") == undisturbed
    result = address.result()
    assert result is not None
    num_steps = result.scalars["steps"]
    assert isinstance(num_steps, int)
    assert 0 < saved_step < num_steps
    log = bench.store.bucket.get(f"{bench.store.bucket.key(address.uri)}/attempts/a2/log.txt").decode()
    assert f"resuming after step {saved_step} " in log


def test_an_elastic_training_continues_with_fewer_processes_and_a_fixed_one_refuses_to(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.CLOSE_SECONDS", 0.5)
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
    error = bench.address("train", name).error("a2")
    assert error is not None
    assert error["code"] == "checkpoint.mismatch"
    assert bench.train(name, "a3", elastic=True) is ExitCode.DONE
    result, whole = bench.address("train", name).result(), bench.address("train", "undisturbed").result()
    assert result is not None
    assert whole is not None
    assert result.scalars["world_size"] == 1
    assert result.scalars["steps"] == whole.scalars["steps"], "the same steps of the same rows"
    assert f"resuming after step {saved_step} " in caplog.text
    losses = [float(str(found.scalars["validation_loss"])) for found in (result, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3), "other bits, the same training"
