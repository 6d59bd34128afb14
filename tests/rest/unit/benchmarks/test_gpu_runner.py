"""Parts of `python -m benchmarks.gpu` that fail in every way: each leaves its line, and what follows runs.

Parts are processes, so these are too: of Python alone, a tenth of a second each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu import part
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.goals import GOALS, Goal, judged, table
from benchmarks.gpu.runner import Limits, Record, run_part
from training.runtime.provenance import CHECKOUT

FIRST = "import json, os, time; print(json.dumps({'first': 1}), flush=True); "
ENDS = {
    "raises": (FIRST + "raise AttributeError('torch has no such name')", "ended with code 1"),
    "exits": (FIRST + "os._exit(3)", "ended with code 3"),
    "is killed": (FIRST + "os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    "aborts": (FIRST + "os.abort()", "ended by SIGABRT"),
    "hangs": (FIRST + "time.sleep(600)", "ended at its limit of 2 s"),
    "is cut within a line": (FIRST + "print('{\"second', end='', flush=True); os._exit(1)", "ended with code 1"),
}


def run(code: str, record: Record, *, part_seconds: float = 60.0, total_seconds: float = 600.0) -> dict[str, Any]:
    limits = Limits(part_seconds=part_seconds, total_seconds=total_seconds)
    return run_part("one", [sys.executable, "-S", "-c", code], os.environ, limits, record)


@pytest.mark.parametrize("end", ENDS)
def test_part_that_ends_badly_leaves_its_figures_and_the_next_one_runs(tmp_path: Path, end: str) -> None:
    code, error = ENDS[end]
    record = Record(tmp_path / "gpu.jsonl")
    run(code, record, part_seconds=2.0 if end == "hangs" else 60.0)
    run("print('{\"figure\": 2}')", record)
    bad, good = (json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines())
    assert (bad["first"], bad["error"]) == (1, error)
    assert good["figure"] == 2
    assert "error" not in good


def test_line_of_a_part_is_on_disk_before_the_next_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    record = Record(path)
    run("print('{\"figure\": 2}')", record)
    found = run(f"import json; print(json.dumps({{'lines': len(open({str(path)!r}).readlines())}}))", record)
    assert found["lines"] == 1


@pytest.mark.parametrize("output", ["None", "subprocess.DEVNULL"])
def test_what_a_part_started_is_ended_with_it(output: str) -> None:
    # A child that holds standard output open lets its part end at the limit.
    child = f"subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], stdout={output})"
    found = run(f"import json, subprocess, sys; print(json.dumps({{'pid': {child}.pid}}))", Record(None), part_seconds=2.0)
    assert ("error" in found) == (output == "None")
    # Raises where it still runs.
    with suppress(psutil.NoSuchProcess):
        psutil.Process(found["pid"]).wait(timeout=30)


def test_part_is_not_begun_once_the_limit_of_all_is_used_up() -> None:
    found = run("raise SystemExit(1)", Record(None), total_seconds=0.0)
    assert found["error"] == "not begun: the limit of 0 s for all parts is used up"
    assert "seconds" not in found


def test_last_part_has_what_is_left_of_the_limit_of_all() -> None:
    assert Limits(part_seconds=75.0, total_seconds=20.0).next_seconds() <= 20.0
    assert Limits(part_seconds=75.0, total_seconds=480.0).next_seconds() == 75.0


def test_exception_of_a_part_is_its_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["part", "no_such_part", "cpu"])
    out = os.dup(1)
    try:
        assert part.main() == 1
    finally:
        os.dup2(out, 1)
        os.close(out)
    assert json.loads(capfd.readouterr().out.splitlines()[0]) == {
        "error": "ModuleNotFoundError: No module named 'benchmarks.gpu.no_such_part'"
    }


def test_numbers_have_five_digits_and_what_is_not_finite_is_text() -> None:
    assert part.rounded({"a": [1 / 3, float("nan")], "b": True, "c": 7}) == {"a": [0.33333, "nan"], "b": True, "c": 7}


def test_goal_without_a_figure_is_neither_met_nor_missed() -> None:
    lines = [{"part": "loop", "mfu": 0.42}, {"part": "twice", "equal_twice": True}, {"part": "nccl", "error": "ended by SIGKILL"}]
    found = {goal["goal"]: goal["is_met"] for goal in judged(lines)}
    assert found["loop: mfu >= 0.5"] is False
    assert found["twice: equal_twice == True"] is True
    assert found["nccl: shared.is_right == True"] is None
    assert "| loop: mfu >= 0.5 | 0.42 | **missed** |" in table(judged(lines))


@pytest.mark.parametrize("value", [None, "nan", "inf"])
def test_figure_that_is_no_number_meets_no_goal(value: object) -> None:
    assert Goal(part="loop", figure="mfu", sign=">=", bound=0.5).is_met(value) is None


def test_each_goal_is_of_a_part_that_there_is() -> None:
    assert {goal.part for goal in GOALS} <= set(PARTS)
    assert all((CHECKOUT / "benchmarks/gpu" / f"{name}.py").is_file() for name in PARTS)


@pytest.mark.slow
def test_machine_without_a_card_is_a_message_with_its_code(tmp_path: Path) -> None:
    # A process: it is the command's own end that is asked for.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.gpu", "--json-lines", str(tmp_path / "gpu.jsonl")]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[gpu.absent] no GPU: torch ")
    assert [json.loads(line)["part"] for line in (tmp_path / "gpu.jsonl").read_text().splitlines()] == ["env"]


@pytest.mark.long
def test_rehearsal_on_a_cpu_runs_every_part(tmp_path: Path) -> None:
    # Processes: each part is one. Part `tests` finds nothing that it could run.
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--json-lines", str(tmp_path / "gpu.jsonl")]
    # Without limits: other tests may have the machine's cores.
    subprocess.run([*command, "--part-seconds", "600", "--total-seconds", "7200"], cwd=CHECKOUT, capture_output=True, check=True)
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [line["part"] for line in lines] == [*PARTS, "goals"]
    assert [line for line in lines if "error" in line or "skipped" in line] == []
    assert {goal["is_met"] for goal in lines[-1]["goals"] if goal["goal"] != "nccl: hang.is_ended == True"} == {True}
