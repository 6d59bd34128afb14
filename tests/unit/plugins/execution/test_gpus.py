"""Which trainings have the device in their work id: those on GPUs, so that those on CPUs keep theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.execution import gpus
from nightshift.execution.backend import backend_of
from nightshift.execution.gpus import local_gpus
from nightshift.settings import Settings
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec, parse_spec


@pytest.fixture
def ranking() -> PipelineSpec:
    return load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml")


def with_gpus(count: int) -> PipelineSpec:
    text = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
    return parse_spec(text.replace("processes_per_node: 2", f"processes_per_node: 2, gpus: {count}").encode())


def trees_with_a_gpu() -> PipelineSpec:
    text = (CHECKOUT / "dags/pipelines/flight_delay.yaml").read_text(encoding="utf-8")
    return parse_spec(text.replace("early_stopping: 20", "placement: {gpus: 1}").encode())


def device_of(spec: PipelineSpec, backend: str) -> dict[str, str]:
    return backend_of(Settings.from_environment({"NIGHTSHIFT_BACKEND": backend})).device_of(spec)


def test_pod_has_the_gpus_that_the_spec_asks_for(ranking: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "local_gpus", lambda: pytest.fail("looked at this machine"))
    assert device_of(ranking, "kubernetes") == {}
    assert device_of(with_gpus(2), "kubernetes") == {"device": "cuda"}


def test_local_training_uses_what_there_is_and_trees_a_gpu_that_the_spec_asks_for(
    ranking: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = load_spec(CHECKOUT / "dags/pipelines/flight_delay.yaml")
    monkeypatch.setattr(gpus, "local_gpus", lambda: True)
    assert device_of(ranking, "local") == {"device": "cuda"}
    assert device_of(flights, "local") == {}
    assert device_of(trees_with_a_gpu(), "local") == device_of(trees_with_a_gpu(), "kubernetes") == {"device": "cuda"}
    monkeypatch.setattr(gpus, "local_gpus", lambda: False)
    assert device_of(with_gpus(2), "local") == {}, "a laptop ignores gpus"


@pytest.mark.parametrize(
    ("files", "environ", "build", "expected"),
    [
        (["nvidia0", "nvidiactl"], {}, "2.13.0+cu130", True),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "0"}, "2.13.0", True),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, "2.13.0", False),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, "2.13.0", False),
        (["nvidia0"], {}, "2.13.0+cpu", False),
        (["nvidiactl", "nvidia-modeset"], {}, "2.13.0", False),
        ([], {}, "2.13.0", False),
    ],
)
def test_gpu_of_this_machine_is_known_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], environ: dict[str, str], build: str, expected: bool
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "version_of", lambda _: build)
    assert local_gpus(folder=tmp_path, environ=environ) is expected
