"""The benchmark for GPUs where there is none: it says so, and its rehearsal on the CPU goes through all of its parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from training.runtime.provenance import CHECKOUT

WAIT_SECONDS = 600.0


def smoke(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "gpu_smoke.py"), *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--require-gpu"], 1)])
def test_machine_without_a_gpu_is_a_message_with_its_code_and_no_traceback(arguments: list[str], code: int) -> None:
    done = smoke(*arguments)
    assert done.returncode == code
    assert json.loads(done.stdout)["code"] == "gpu.absent"
    assert done.stderr.startswith("[gpu.absent] no GPU: torch ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_rehearsal_on_the_cpu_finds_no_problem() -> None:
    done = smoke("--device", "cpu", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["problems"] == []
    assert {precision: resume["equal"] for precision, resume in record["resume"].items()} == {"fp32": True, "bf16": True}
    assert record["shared_gpu"] | {"bus_gb_per_second": 0} == {
        "ranks": 2,
        "backend": "gloo",
        "right": True,
        "same_gradients": True,
        "bus_gb_per_second": 0,
    }
