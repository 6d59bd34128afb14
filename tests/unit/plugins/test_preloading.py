"""What DAG files and tasks import is imported before their processes are forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift import preloading
from nightshift.preloading import is_parsing_process
from nightshift.services.executor import SleepTolerantLocalExecutor
from nightshift_plugin import NightshiftPlugin

ROOT = Path(__file__).resolve().parents[3]
FORKED = """
import json, os, sys
from nightshift.preloading import preload
preload()
threads = len(os.listdir("/proc/self/task"))
before = set(sys.modules)
from airflow.dag_processing.dagbag import BundleDagBag
from nightshift.factory import pipeline_dag
dag = pipeline_dag(sys.argv[1])
print(json.dumps({"tasks": len(dag.tasks), "threads": threads, "more": sorted(set(sys.modules) - before)}))
"""


def test_parsing_a_pipeline_imports_nothing_that_was_not_preloaded(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": path}
    command = [sys.executable, "-c", FORKED, str(ROOT / "dags" / "search_ranking.py")]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tasks"] == 8
    # Codecs are loaded by use.
    assert [name for name in found["more"] if not name.startswith("encodings.")] == []
    # A fork has no other thread than the one that forks: whatever they held stays held in it.
    assert found["threads"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["airflow", "dag-processor"], True),
        (["airflow", "scheduler"], False),
        (["airflow"], False),
        (["airflow", "dags", "dag-processor"], False),
    ],
)
def test_plugin_preloads_in_the_dag_processor_alone(monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: bool) -> None:
    calls = []
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr("nightshift_plugin.preload", lambda: calls.append(1))
    NightshiftPlugin.on_load()
    assert bool(calls) is expected is is_parsing_process()


def test_executor_preloads_before_it_forks_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setenv("NIGHTSHIFT_SERVICE", "")
    monkeypatch.setattr("nightshift.services.executor.preload", lambda: calls.append("preload"))
    monkeypatch.setattr(SleepTolerantLocalExecutor, "_spawn_worker", lambda _self: calls.append("worker"))
    executor = SleepTolerantLocalExecutor(parallelism=1)
    executor.start()
    executor._check_workers()
    assert calls[:2] == ["preload", "worker"]
    assert calls.count("preload") == 1


def test_module_that_cannot_be_imported_stops_no_service(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(preloading, "MODULES", ("nightshift.no_such_module",))
    preloading.preload()
    assert "no_such_module" in caplog.text
