"""A training of a whole model imports nothing of `training.large` that it does not use. Real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.slow

COMPARISONS = {"training.large", *(f"training.large.{name}" for name in ("watchers", "replicas", "stragglers", "local_step_time"))}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "tests.unit.training.large.small_trainings", str(tmp_path_factory.mktemp("small"))]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("training", ["one process", "two processes that are not compared"])
def test_training_without_comparisons_imports_nothing_of_large_models(imported: dict[str, list[str]], training: str) -> None:
    assert imported[training] == []


def test_processes_that_are_compared_import_the_comparisons_alone(imported: dict[str, list[str]]) -> None:
    assert set(imported["two processes"]) == COMPARISONS
