"""A stage's process that makes no progress is ended with its stacks, and what judges its end writes its error; one that is slow is not.

A process of its own in each: it has the shape of a pod, without a launcher that could write something.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.execution.attempt_end import Action, Ended, judge
from training.contracts import ExitCode, RunIdentity, StageRequest
from training.process.liveness import Phase
from training.runtime.attempt_errors import HUNG, UNKNOWN, error_of_ended, write_hang
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, parse_spec
from training.store import Store, WorkFolder

LIMIT_SECONDS = 3
WAIT_SECONDS = 180.0
SPEC = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_bytes() + f"\ntimeout: {{part: {LIMIT_SECONDS}s}}\n".encode()


class Stage:
    """A stage process of its own."""

    def __init__(self, folder: Path, *, module: str = "tests.unit.training.runtime.hanging_stage", **parameters: Any) -> None:
        store = Store(str(folder / "store"))
        self.work_folder: WorkFolder = store.work_folder("search_ranking", "prepare", "f" * 64)
        request = StageRequest(
            pipeline="search_ranking",
            stage="prepare",
            work_id="f" * 64,
            attempt_id="a1",
            store_uri=store.root_uri,
            spec_uri=store.put_json(freeze(parse_spec(SPEC))),
            as_of=datetime(2026, 2, 1, 2, tzinfo=UTC),
            inputs={},
            run=RunIdentity(dag_id="search_ranking", run_id="r1", task_id="prepare"),
            parameters=parameters,
        )
        command = [sys.executable, "-m", module, self.work_folder.write_request(request)]
        self.process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self) -> tuple[int, str]:
        """Return (exit code, output)."""
        try:
            output, _ = self.process.communicate(timeout=WAIT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, output


@pytest.mark.slow
@pytest.mark.parametrize("how", ["with_gil", "without_gil", "in_re"])
def test_stage_that_hangs_is_ended_with_its_stacks_and_is_relaunched(tmp_path: Path, how: str) -> None:
    stage = Stage(tmp_path, how=how)
    code, output = stage.end()
    assert code == -signal.SIGALRM, output
    assert 'hanging_stage.py", line' in output
    assert stage.work_folder.error("a1") is None, "the process could not write it"
    error = error_of_ended(stage.work_folder, "a1", HUNG)
    assert error is not None
    assert (error["code"], error["exit_code"]) == ("stage.hung", int(ExitCode.PREEMPTED))
    assert error["message"] == f"rank 0: no progress in part (query) within the limit of {LIMIT_SECONDS} s"
    assert "timeout.part" in str(error["hint"])
    end = judge(Ended(exit_code=HUNG, seconds=1.0), error)
    assert (end.action, end.code) == (Action.RELAUNCH, "stage.hung")


@pytest.mark.slow
def test_stage_that_is_slow_and_moves_is_not_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, how="slow", seconds=2 * LIMIT_SECONDS)
    code, output = stage.end()
    assert code == 0, output
    assert stage.work_folder.result() is not None
    assert stage.work_folder.error("a1") is None


@pytest.mark.slow
def test_stage_whose_imports_hang_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "duckdb.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("NIGHTSHIFT_START_TIMEOUT_SECONDS", "4")
    stage = Stage(tmp_path, module="training.stages.prepare")
    code, output = stage.end()
    assert code == -signal.SIGALRM, output
    assert "duckdb.py" in output
    error = error_of_ended(stage.work_folder, "a1", HUNG)
    assert error is not None
    assert error["message"] == f"rank 0: no progress in start ({UNKNOWN.name}) within the limit"
    assert "NIGHTSHIFT_START_TIMEOUT_SECONDS" in str(error["hint"])


@pytest.mark.slow
def test_stage_whose_request_cannot_be_read_to_its_end_is_ended_at_the_limit_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    work_folder = store.work_folder("search_ranking", "prepare", "f" * 64)
    # A pipe that nobody writes to: the storage hangs in C code.
    pipe = Path(work_folder.uri.removeprefix("file://")) / "attempts" / "a1" / "_REQUEST.json"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    monkeypatch.setenv("NIGHTSHIFT_START_TIMEOUT_SECONDS", "8")
    command = [sys.executable, "-m", "tests.unit.training.runtime.hanging_stage", f"{work_folder.uri}/attempts/a1/_REQUEST.json"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == -signal.SIGALRM, done.stderr
    assert "read_request" in done.stderr


def test_first_error_of_the_attempt_stays_where_a_hung_process_is_a_consequence(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    work_folder = store.work_folder("p", "prepare", "f" * 64)
    assert work_folder.write_error("a1", {"code": "data.first"})
    write_hang(work_folder, "a1", Phase("step", "", 600.0), rank=1)
    assert (work_folder.error("a1") or {})["code"] == "data.first"


@pytest.mark.parametrize("code", ["peer.lost", "train.preempted", "stage.stopped"])
def test_hang_replaces_the_error_of_a_rank_that_lost_the_process_which_hung(tmp_path: Path, code: str) -> None:
    work_folder = Store(str(tmp_path / "store")).work_folder("p", "train", "f" * 64)
    assert work_folder.write_error("a1", {"code": code})
    write_hang(work_folder, "a1", Phase("step", "", 600.0), rank=1)
    assert (work_folder.error("a1") or {})["code"] == "stage.hung"


@pytest.mark.parametrize("beat", [None, b"", b'{"beat": 1, "ph', b'{"beat": 1}', b'{"phase": {"kind": "step"}}'])
def test_process_that_hangs_without_a_readable_heartbeat_has_hung_at_its_start_or_soon_after(tmp_path: Path, beat: bytes | None) -> None:
    work_folder = Store(str(tmp_path / "store")).work_folder("p", "prepare", "f" * 64)
    if beat is not None:
        work_folder.write_heartbeat("a1", {})
        (Path(work_folder.uri.removeprefix("file://")) / "attempts" / "a1" / "heartbeat.json").write_bytes(beat)
    error = error_of_ended(work_folder, "a1", HUNG)
    assert error is not None
    assert error["code"] == "stage.hung"
    assert error["message"] == "rank 0: no progress in start (or what came before the first heartbeat) within the limit"
    assert "raise timeout.start, timeout.part or timeout.step in" in error["hint"]


def test_end_by_another_signal_writes_no_error(tmp_path: Path) -> None:
    work_folder = Store(str(tmp_path / "store")).work_folder("p", "prepare", "f" * 64)
    assert error_of_ended(work_folder, "a1", 128 + signal.SIGKILL) is None
