"""A stage process that makes no progress is ended with its stacks; one that is slow, or was stopped itself, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nightshift.execution.outcomes import Action, Ended, judge
from training.contracts import ExitCode, RunIdentity, StageRequest
from training.runtime.hung import report
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, parse_spec
from training.store import StageAddress, Store

LIMIT_SECONDS = 3
WAIT_SECONDS = 180.0
SPEC = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_bytes() + f"\ntimeout: {{part: {LIMIT_SECONDS}s}}\n".encode()


class Stage:
    """A stage process of its own."""

    def __init__(self, folder: Path, *, module: str = "tests.unit.training.runtime.hanging_stage", **parameters: Any) -> None:
        store = Store(str(folder / "store"))
        self.address: StageAddress = store.address("search_ranking", "prepare", "f" * 64)
        request = StageRequest(
            pipeline="search_ranking",
            stage="prepare",
            fingerprint="f" * 64,
            attempt_id="a1",
            store_uri=store.root_uri,
            spec_uri=store.put_json(freeze(parse_spec(SPEC))),
            as_of="2026-02-01T02:00:00+00:00",
            inputs={},
            run=RunIdentity(dag_id="search_ranking", run_id="r1", task_id="prepare"),
            parameters=parameters,
        )
        command = [sys.executable, "-m", module, self.address.write_request(request)]
        self.process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self) -> tuple[int, str]:
        """Return (exit code, output)."""
        try:
            output, _ = self.process.communicate(timeout=WAIT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, output

    def await_heartbeat(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.address.heartbeat("a1") is None:
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["with_gil", "without_gil"])
def test_stage_that_hangs_in_c_code_is_ended_with_its_stacks_and_is_relaunched(tmp_path: Path, how: str) -> None:
    stage = Stage(tmp_path, how=how)
    code, output = stage.end()
    assert code == -signal.SIGKILL, output
    error = stage.address.error("a1")
    assert error is not None, output
    assert (error["code"], error["exit_code"]) == ("stage.hung", int(ExitCode.PREEMPTED))
    assert error["message"].startswith("rank 0: no progress in part (query) for ")
    assert "timeout.part" in error["hint"]
    assert "hang_in_c" in error["traceback"]
    assert "hang_in_c" in output
    verdict = judge(Ended(exit_code=128 + signal.SIGKILL, seconds=1.0, oom_killed=False), error)
    assert (verdict.action, verdict.code) == (Action.RELAUNCH, "stage.hung")


@pytest.mark.slow
def test_stage_that_is_slow_and_moves_or_was_stopped_for_longer_than_the_limit_is_not_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, how="slow", seconds=3 * LIMIT_SECONDS)
    stage.await_heartbeat()
    os.kill(stage.process.pid, signal.SIGSTOP)
    time.sleep(LIMIT_SECONDS + 2)
    os.kill(stage.process.pid, signal.SIGCONT)
    code, output = stage.end()
    assert code == 0, output
    assert stage.address.result() is not None
    assert stage.address.error("a1") is None


@pytest.mark.slow
def test_stage_whose_imports_hang_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "duckdb.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("NIGHTSHIFT_START_TIMEOUT_SECONDS", "4")
    stage = Stage(tmp_path, module="training.stages.prepare")
    code, output = stage.end()
    assert code == -signal.SIGKILL, output
    error = stage.address.error("a1")
    assert error is not None, output
    assert error["message"].startswith("rank 0: no progress in start (imports) for ")
    assert "duckdb.py" in error["traceback"]
    assert "NIGHTSHIFT_START_TIMEOUT_SECONDS" in error["hint"]


@pytest.mark.slow
def test_stage_whose_request_cannot_be_read_to_its_end_is_ended_at_the_limit_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    address = store.address("search_ranking", "prepare", "f" * 64)
    # A pipe that nobody writes to: the storage hangs in C code.
    pipe = Path(address.uri.removeprefix("file://")) / "attempts" / "a1" / "_REQUEST.json"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    monkeypatch.setenv("NIGHTSHIFT_START_TIMEOUT_SECONDS", "8")
    command = [sys.executable, "-m", "tests.unit.training.runtime.hanging_stage", f"{address.uri}/attempts/a1/_REQUEST.json"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    error = address.error("a1")
    assert error is not None, done.stderr
    assert error["message"].startswith("rank 0: no progress in start (")
    assert "_REQUEST.json" in error["message"]
    assert "read_request" in error["traceback"]


@pytest.mark.slow
def test_guard_ends_with_its_process(tmp_path: Path) -> None:
    stage = Stage(tmp_path, how="slow", seconds=WAIT_SECONDS)
    stage.await_heartbeat()
    children = Path(f"/proc/{stage.process.pid}/task/{stage.process.pid}/children").read_text().split()
    guards = [pid for pid in children if b"liveness_guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(guards) == 1
    stage.process.kill()
    stage.end()
    deadline = time.monotonic() + WAIT_SECONDS
    while Path(f"/proc/{guards[0]}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_first_error_of_the_attempt_stays_where_a_hung_process_is_a_consequence(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    address = store.address("p", "prepare", "f" * 64)
    assert address.write_error("a1", {"code": "data.first"})
    uri = f"{address.uri}/attempts/a1/_REQUEST.json"
    facts = {"request": uri, "rank": "1", "kind": "step", "name": "", "limit_seconds": 600.0, "seconds": 601.0, "stacks": "…"}
    assert not report(facts)
    assert (address.error("a1") or {})["code"] == "data.first"
