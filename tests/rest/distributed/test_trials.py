"""A trial of two ranks under torchrun: one asks the study, both train with its answer, and both end where it is pruned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.tuning.study_bench import StudyBench
from training.runtime.provenance import CHECKOUT
from training.spec.sections.train import Train

pytestmark = pytest.mark.distributed

TORCHRUN = ("-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0")
WAIT_SECONDS = 240.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> StudyBench:
    return StudyBench(tmp_path_factory.mktemp("trials"))


def trial(bench: StudyBench, spec: Any, name: str, slot: int, home: Path) -> int:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("NIGHTSHIFT_")},
        "OMP_NUM_THREADS": "1",
        "NIGHTSHIFT_HOME": str(home),
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    command = [sys.executable, *TORCHRUN, "-m", "training.stages.trial", bench.ask(spec, name, slot, "a1")]
    return subprocess.run(command, cwd=CHECKOUT, env=environment, timeout=WAIT_SECONDS, check=False).returncode


def test_two_ranks_train_with_one_studys_settings_and_end_together(bench: StudyBench, tmp_path: Path) -> None:
    # Of two trials that Hyperband has looked at, the worse one is pruned: the second learns nothing at all.
    space = {"learning_rate": {"choices": [0.02, 1e-9]}}
    spec = bench.spec(trials=2, pruner="halving", sampler="grid", space=space, seed=0)
    for slot in (0, 1):
        assert trial(bench, spec, "two ranks", slot, tmp_path) == 0, bench.work_folder("two ranks", slot).error("a1")
    able, idle = bench.study("two ranks").records()
    assert [record.settings["learning_rate"] for record in (able, idle)] == [0.02, 1e-9]
    assert (able.state, able.epochs) == ("complete", 2)
    assert (idle.state, idle.epochs, idle.steps * 2) == ("pruned", 1, able.steps)


def test_trials_of_trees_train_in_two_ranks_and_all_ranks_end_where_one_is_pruned(bench: StudyBench, tmp_path: Path) -> None:
    # With such a penalty no tree has a split, and all rows have one score.
    space = {"settings.gamma": {"choices": [0.0, 1e6]}}
    neural = bench.spec(trials=2, pruner="halving", sampler="grid", space=space, seed=0)
    keys = {"model": "boosted_trees", "seed": 5, "epochs": 9, "learning_rate": 0.3, "settings": {"max_depth": 3}}
    train = Train.model_validate({**keys, "placement": {"nodes": 1, "processes_per_node": 2, "cpus": 1}})
    spec = neural.model_copy(update={"train": train})
    for slot in (0, 1):
        assert trial(bench, spec, "two ranks of trees", slot, tmp_path) == 0, bench.work_folder("two ranks of trees", slot).error("a1")
    able, idle = bench.study("two ranks of trees").records()
    assert [record.settings["settings.gamma"] for record in (able, idle)] == [0.0, 1e6]
    assert (able.state, able.epochs) == ("complete", 9)
    assert idle.state == "pruned"
    assert 0 < idle.epochs < 9
