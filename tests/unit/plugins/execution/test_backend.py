"""The seam of backends: which there are, what each states of itself, and that one from outside needs one class."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from nightshift.execution.backend import BACKENDS, Backend, Deferral, StageTask, backend_of
from nightshift.execution.kubernetes.backend import KubernetesBackend
from nightshift.execution.local import LocalBackend
from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.stage import StageOperator
from nightshift.settings import Settings
from training.contracts import StageResult
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec
from training.spec.reader.loader import check_values
from training.spec.registry import installed

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"


class InThisProcess(Backend):
    """A backend of another package: it commits at once."""

    shares_disk = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def check(self, spec: PipelineSpec | None = None) -> None:
        pass

    def ignored_keys(self, spec: PipelineSpec) -> list[str]:
        return ["train.placement.pool"]

    def code_version(self, spec: PipelineSpec, stage: str) -> str | None:
        return f"sha256:{stage}"

    def device_of(self, spec: PipelineSpec) -> dict[str, str]:
        return {}

    def run(self, task: StageTask, event: Mapping[str, Any] | None = None) -> StageResult | Deferral:
        request = task.request(attempt_id="a1", takeover_epoch=0)
        return StageResult(
            pipeline=request.pipeline,
            stage=request.stage,
            work_id=request.work_id,
            artifact_uri="file:///artifact",
            digest=request.code_version,
            run=request.run,
            attempt_id="a1",
            attempts=1,
            committed_at="2026-02-01T02:00:05+00:00",
        )

    def stop(self) -> None:
        pass


def settings_of(name: str, **more: str) -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_BACKEND": name, **more})


def test_each_name_resolves_to_its_class() -> None:
    assert type(backend_of(settings_of("local"))) is LocalBackend
    assert type(backend_of(settings_of("kubernetes"))) is KubernetesBackend


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entry points of an installed distribution: a backend, and one whose module is missing."""
    places = {"slurm": f"{__name__}:InThisProcess", "broken": "acme_gone:Backend"}
    entries = [importlib.metadata.EntryPoint(name, place, BACKENDS.group) for name, place in places.items()]
    read = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries if group == BACKENDS.group else read(group=group))
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("slurm")
def test_unknown_name_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(SpecError, match=r"\[settings.backend\] there is no backend 'moon' \(use broken or kubernetes or local or slurm\)"):
        backend_of(settings_of("moon"))


@pytest.mark.usefixtures("slurm")
def test_a_backend_that_cannot_be_imported_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError, match=r"\[settings.backend\] .*acme_gone: ModuleNotFoundError"):
        backend_of(settings_of("broken"))


@pytest.mark.usefixtures("slurm")
def test_a_class_of_another_package_runs_a_stage_with_its_registration_alone(
    shop: Path,
    context_of: Callable[..., Any],
    execute: Callable[[BaseOperator, Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "slurm")
    resolved = execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve"))
    found = execute(StageOperator(task_id="ingest", stage="ingest"), context_of("ingest", results={"resolve": resolved}))
    assert (found["digest"], found["artifact_uri"]) == ("sha256:ingest", "file:///artifact")
    assert "the backend slurm ignores train.placement.pool" in capfd.readouterr().out


def test_keys_without_effect_are_those_of_the_backend(tmp_path: Path) -> None:
    values = load_spec(SPEC_PATH).model_dump(mode="json", by_alias=True)
    values["train"]["placement"] |= {"spot": True, "memory": "4GiB"}
    values["resources"] = {"prepare": {"cpus": 2.0}}
    spec = check_values(values, "test")
    assert backend_of(settings_of("local")).ignored_keys(spec) == [
        "train.placement.memory",
        "train.placement.spot",
        "resources.prepare",
    ]
    file = tmp_path / "placement.yaml"
    file.write_text("namespace: n\nimage: i\n", encoding="utf-8")
    assert backend_of(settings_of("kubernetes", NIGHTSHIFT_KUBERNETES=str(file))).ignored_keys(spec) == ["train.placement.spot"]
    file.write_text("namespace: n\nimage: i\nspot: {node_selector: {life: spot}}\n", encoding="utf-8")
    assert backend_of(settings_of("kubernetes", NIGHTSHIFT_KUBERNETES=str(file))).ignored_keys(spec) == []


def test_code_is_that_of_a_pinned_image_or_of_the_files(tmp_path: Path) -> None:
    spec, file = load_spec(SPEC_PATH), tmp_path / "placement.yaml"
    digest = "sha256:" + "ab" * 32
    file.write_text(f"namespace: n\nimage: registry/stage@{digest}\n", encoding="utf-8")
    assert backend_of(settings_of("kubernetes", NIGHTSHIFT_KUBERNETES=str(file))).code_version(spec, "train") == digest
    assert backend_of(settings_of("local")).code_version(spec, "train") is None


@pytest.mark.slow
def test_parsing_a_dag_file_on_a_laptop_imports_nothing_of_kubernetes() -> None:
    """Airflow's provider for Kubernetes takes 0.8 s of CPU to import, and a DAG file is parsed every few seconds."""
    program = """
import sys
from pathlib import Path
from nightshift.wiring.pipeline import pipeline_dag
pipeline_dag(str(Path("dags/search_ranking.py").resolve()))
found = [name for name in sys.modules if name.startswith(("nightshift.execution.kubernetes", "nightshift.operators.pods",
    "kubernetes", "kubernetes_asyncio", "airflow.providers.cncf.kubernetes.operators"))]
sys.exit(str(found) if found else 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
