"""Two processes, a store that takes 10 s for a state, and a notice of 120, 30 or 5 s before SIGKILL.

The step of the notice is committed where its save fits into the time; otherwise it is not begun, and the checkpoint before it is kept.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks.large_ranker import PARAMETER_BYTES, STEPS_FILE
from tests.distributed.launched import WAIT_SECONDS, await_condition, processes_of, start
from tests.distributed.slow_store import BYTES_PER_SECOND
from tests.training_bench import Bench

pytestmark = pytest.mark.distributed

LARGE, SMALL = 50_000_000, 500_000
"""Bytes of parameters; with the best ones and two moments a state has four times as many."""
SAVE_SECONDS = 10.0
"""That a whole state takes to be written: by one process, or by two that write half each at half the speed."""


class Told:
    """A training that was told to end after its first epoch's checkpoint was committed."""

    def __init__(self, bench: Bench, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_STOP_NOTICE_SECONDS", str(seconds))
        process = start(bench, name, "a1", f"--shutdown-timeout={seconds:.0f}")
        try:
            await_condition(lambda: bool(bench.checkpoints(name)) or process.poll() is not None, "a checkpoint")
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                # What the platform does.
                process.kill()
            process.wait(WAIT_SECONDS)
        finally:
            process.kill()
            process.wait()
        work_folder = bench.work_folder("train", name)
        await_condition(lambda: processes_of(work_folder.uri) == [], "the ranks to end")
        self.steps = [entry["step"] for entry in bench.checkpoints(name)]
        error = work_folder.error("a1")
        assert error is not None, "SIGKILL came before the attempt could end"
        assert error["code"] == "train.preempted", error["message"]
        # In the log of the first rank: in data parallel training, the other one may be the first to write the attempt's error.
        log = (Path(bench.store.root_uri.removeprefix("file://")).parent / f"{name}-a1.log").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"rank 0 .*stopped after step (\d+), which (is committed|is not committed)", log)
        assert found is not None, log[-3000:]
        self.step, self.is_committed = int(found[1]), found[2] == "is committed"


def bench_of(folder: Path, monkeypatch: pytest.MonkeyPatch, parallel: str, parameter_bytes: int) -> Bench:
    num_writers = 2 if parallel else 1
    settings = {
        PARAMETER_BYTES: parameter_bytes,
        STEPS_FILE: folder / "steps",
        BYTES_PER_SECOND: 4 * parameter_bytes / SAVE_SECONDS / num_writers,
        "NIGHTSHIFT_MODEL_PACKAGES": "tests,benchmarks",
        "NIGHTSHIFT_DATABASE": f"sqlite:///{folder}/nightshift.db",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    # The save at the end of the first epoch says how long one takes.
    bench = Bench(folder, epochs=100, batch_size=10, processes=2, every="10m", parallel=parallel)
    train = bench.spec.train.model_copy(update={"model": "tests.distributed.slow_store:SlowStoreRanker"})
    bench.spec = bench.spec.model_copy(update={"train": train})
    return bench


LAYOUTS = pytest.mark.parametrize("parallel", ["", "{shard: 2}"], ids=["ddp", "fsdp2"])


@LAYOUTS
@pytest.mark.parametrize(("seconds", "fits"), [(120.0, True), (5.0, False)])
def test_small_state_and_a_slow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: str, seconds: float, fits: bool) -> None:
    told = Told(bench_of(tmp_path, monkeypatch, parallel, SMALL), "told", seconds, monkeypatch)
    check(told, fits=fits)


@pytest.mark.long
@LAYOUTS
@pytest.mark.parametrize(("seconds", "fits"), [(120.0, True), (30.0, True), (5.0, False)])
def test_state_of_200_megabytes_and_a_slow_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: str, seconds: float, fits: bool
) -> None:
    told = Told(bench_of(tmp_path, monkeypatch, parallel, LARGE), "told", seconds, monkeypatch)
    check(told, fits=fits)


def check(told: Told, *, fits: bool) -> None:
    assert told.is_committed == fits
    assert told.steps[-1] == told.step if fits else told.steps[-1] < told.step, "what the message says is what the journal has"
