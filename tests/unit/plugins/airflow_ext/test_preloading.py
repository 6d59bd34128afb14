"""What DAG files and tasks import is imported before their processes are forked."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.executors.base_executor import ExecutorConf

from devstack import workers
from devstack.executor import SleepTolerantLocalExecutor
from nightshift.airflow_ext import preloading
from nightshift.airflow_ext.preloading import is_parsing_process
from nightshift_plugin import NightshiftPlugin
from training.spec.descriptors.families import FAMILIES
from training.spec.registry import installed

ROOT = Path(__file__).resolve().parents[4]
FORKED = """
import json, os, sys
from nightshift.airflow_ext.preloading import preload
preload(parses=True)
threads = len(os.listdir("/proc/self/task"))
before = set(sys.modules)
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.serialization.serialized_objects import DagSerialization
from nightshift.wiring.pipeline import pipeline_dag
from training.spec.trigger_form import _schema_of
made = _schema_of.cache_info().misses
dag = pipeline_dag(sys.argv[1])
DagSerialization.to_dict(dag)
found = {"tasks": len(dag.tasks), "threads": threads, "more": sorted(set(sys.modules) - before)}
print(json.dumps({**found, "schemas": _schema_of.cache_info().misses - made}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", "kubernetes"])
def test_parsing_and_serialising_a_pipeline_imports_and_makes_nothing_that_was_not_preloaded(tmp_path: Path, backend: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": path}
    environment |= {"NIGHTSHIFT_BACKEND": backend, "NIGHTSHIFT_KUBERNETES": str(ROOT / "docker" / "kubernetes" / "placement.yaml")}
    command = [sys.executable, "-c", FORKED, str(ROOT / "dags" / "search_ranking.py")]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tasks"] == 8
    # Codecs are loaded by use.
    assert [name for name in found["more"] if not name.startswith("encodings.")] == []
    assert found["schemas"] == 0
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
    # Airflow puts a module of its own in the place of the imported one when it loads the plugins.
    monkeypatch.setitem(NightshiftPlugin.on_load.__func__.__globals__, "preload", lambda *, parses: calls.append(parses))
    NightshiftPlugin.on_load()
    assert bool(calls) is expected is is_parsing_process()


def test_executor_preloads_before_it_forks_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setenv("NIGHTSHIFT_SERVICE", "")
    monkeypatch.setattr("devstack.executor.preload", lambda: calls.append("preload"))
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


@pytest.fixture
def edited_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is preloaded, and may be edited: its function `answer` returns "before"."""
    package = tmp_path / "nightshift_edited"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "code.py").write_text("def answer():\n    return 'before'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preloading, "PACKAGES", (package.name,))
    monkeypatch.setattr(preloading, "MODULES", (f"{package.name}.code",))
    monkeypatch.setattr(preloading, "_stamps", {})
    preloading.preload()
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


def answer() -> str:
    return str(importlib.import_module("nightshift_edited.code").answer())


def test_code_that_was_edited_after_it_was_preloaded_is_imported_again(edited_package: Path) -> None:
    assert not preloading.forget_if_changed()
    (edited_package / "code.py").write_text("def answer():\n    return 'afterwards'\n", encoding="utf-8")
    assert answer() == "before"
    assert preloading.forget_if_changed()
    assert answer() == "afterwards"
    assert not preloading.forget_if_changed(), "each task now imports what is on the disk"


def test_removed_preloaded_file_is_a_change(edited_package: Path) -> None:
    (edited_package / "code.py").unlink()
    assert preloading.forget_if_changed()
    assert "nightshift_edited.code" not in sys.modules


@pytest.mark.parametrize("parses", [True, False])
def test_family_that_is_installed_while_services_run_is_found_by_the_next_parse(
    parses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preloading, "_stamps", {})
    installed.cache_clear()
    preloading.preload(parses=parses)
    info = tmp_path / "acme_forest-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[nightshift.families]\nforest = acme.forest\n", encoding="utf-8")
    # A task has what its worker has read, which reads again after a change (`forget_if_changed`).
    assert ("forest" in FAMILIES.names()) is parses
    installed.cache_clear()


def test_library_that_is_added_to_a_folder_of_pythonpath_is_a_change(
    edited_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    preloading.preload()
    assert not preloading.forget_if_changed()
    (tmp_path / "new_library-1.0.dist-info").mkdir()
    assert preloading.forget_if_changed()


def test_library_that_is_installed_is_a_change(edited_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.runtime.template.folders_of_libraries", lambda: {tmp_path})
    preloading.preload()
    assert not preloading.forget_if_changed()
    (tmp_path / "new_library-1.0.dist-info").mkdir()
    assert preloading.forget_if_changed()


def test_worker_looks_for_edited_code_before_each_workload_and_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(workers, "forget_if_changed", lambda: looks.append(1))
    worker = workers.Worker("test", ExecutorConf())
    queue = worker._kwargs["input"]  # type: ignore[attr-defined]
    worker._input.put("a workload")  # type: ignore[arg-type]
    assert queue.get() == "a workload"
    assert looks == [1]
    worker.finish()
    assert queue.get() is None
    assert looks == [1]
