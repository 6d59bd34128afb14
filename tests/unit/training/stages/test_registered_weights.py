"""Weights of the pipeline's own torch model from outside: taken where the tensors are those of its module, else refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tests.unit.training.stages.evaluate_bench import SPEC
from tests.unit.training.stages.outside_bench import OutsideBench
from training.code.stages import stage_code
from training.data.dataset.shard_writer import describe_layout
from training.errors import SpecError
from training.models.base import FitResult, ImportedArtifact, load_family
from training.models.isolated_import import load_apart
from training.models.predictor import load_predictor
from training.models.torch_family import TorchFamily
from training.runtime.provenance import CHECKOUT
from training.stages.train import _weights_digest

LOGISTIC = "shop_models.logistic:Logistic"
TRAIN = "train: {model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}}"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutsideBench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('database')}/nightshift.db")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.2)
        patch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "shop_models")
        patch.syspath_prepend(str(CHECKOUT / "docs" / "examples" / "cancelled_orders"))
        text = SPEC.replace(TRAIN, f"train: {{model: '{LOGISTIC}', seed: 3, epochs: 2, learning_rate: 0.1}}")
        yield OutsideBench(tmp_path_factory.mktemp("weights"), "binary", text=text)


@pytest.fixture
def module(bench: OutsideBench) -> torch.nn.Module:
    family = load_family(LOGISTIC)
    assert isinstance(family, TorchFamily)
    torch.manual_seed(1)
    features = describe_layout(bench.transforms.layout, has_group=False)["features"]
    return family.build(family.architecture_of(bench.spec, features))


def test_weights_from_outside_score_as_their_module_does(bench: OutsideBench, module: torch.nn.Module, tmp_path: Path) -> None:
    model = bench.registered(save(module.state_dict()), "safetensors", metrics={"auc": 0.9})
    manifest = bench.store.manifests.get(model.artifact_uri, kind="model")
    assert (manifest.meta["family"], manifest.meta["registered"]["format"]) == (LOGISTIC, "safetensors")
    predictor = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / "model"))
    matrix, _ = bench.cells(tmp_path / "rows", "test")
    with torch.inference_mode():
        batch = {"features_float": torch.from_numpy(matrix.floats.copy()), "features_int": torch.from_numpy(matrix.ints.copy())}
        expected = torch.sigmoid(module(batch)).numpy()
    assert np.allclose(predictor.predict(bench.raw(tmp_path / "raw", "test")), expected, atol=1e-6)


def _changed(change: Callable[[Tensors], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        tensors = load(data)
        change(tensors)
        return save(tensors)

    return changed


def _with_header(data: bytes, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(change(json.loads(data[8 : 8 + length]))).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


FAULTS: dict[str, tuple[Callable[[bytes], bytes], str, tuple[str, ...]]] = {
    "missing and extra": (
        _changed(lambda tensors: tensors.update(planted=tensors.pop("numbers.bias"))),
        "weights.other",
        ("missing: numbers.bias", "not in the model: planted"),
    ),
    "shape": (_changed(lambda tensors: tensors.update({"numbers.weight": torch.zeros(1, 9)})), "weights.other", ("[1, 9]", "[1, 2]")),
    "dtype": (_changed(lambda tensors: tensors.update({"numbers.bias": torch.zeros(1).half()})), "weights.other", ("float16",)),
    "not finite": (
        _changed(lambda tensors: tensors.update({"numbers.bias": torch.tensor([float("nan")])})),
        "weights.not_finite",
        ("numbers.bias",),
    ),
    "cut": (lambda data: data[:-1], "weights.unreadable", ("bytes",)),
    "notes": (
        lambda data: _with_header(data, lambda header: {"__metadata__": {"epoch": 3}, **header}),
        "weights.unreadable",
        ("__metadata__",),
    ),
    "no header": (lambda data: b"\xff" * 7 + b"\x00" + data[8:], "weights.unreadable", ("header",)),
}


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("fault", FAULTS)
def test_other_tensors_than_the_modules_are_refused_by_name(bench: OutsideBench, module: torch.nn.Module, fault: str) -> None:
    change, code, words = FAULTS[fault]
    error = bench.refused(change(save(module.state_dict())), "safetensors", work=fault)
    assert error["code"] == code
    assert [each for each in words if each not in error["message"]] == [], error["message"]


def test_the_process_that_loads_a_model_has_the_code_that_the_work_is_named_after(
    bench: OutsideBench, module: torch.nn.Module, tmp_path: Path
) -> None:
    """In that process, which checks what it has imported."""
    (tmp_path / "artifact").write_bytes(save(module.state_dict()))
    features = describe_layout(bench.transforms.layout, has_group=False)["features"]
    artifact = ImportedArtifact(path=tmp_path / "artifact", spec=bench.spec, features=features, num_classes=None)
    files = dict(stage_code("train", bench.spec).files)
    cells = bench.cells(tmp_path / "rows", "validation")[0].cells
    for folder in ("covered", "not covered"):
        (tmp_path / folder).mkdir()
    assert load_apart(artifact, cells, tmp_path / "covered", files).weights == (tmp_path / "artifact").read_bytes()
    assert files.pop("shop_models/logistic.py")
    with pytest.raises(SpecError, match="logistic") as caught:
        load_apart(artifact, cells, tmp_path / "not covered", files)
    assert caught.value.code == "code.outside"


def test_the_same_weights_of_another_model_class_are_another_model() -> None:
    result = FitResult(
        weights_name="weights.safetensors",
        weights=b"tensors",
        architecture={},
        best_epoch=0,
        validation_loss=0.5,
        history=[],
        num_steps=0,
    )
    of = {family: _weights_digest(family, result, b"{}", {}) for family in (LOGISTIC, "shop_models.logistic:Other")}
    assert len(set(of.values())) == 2
