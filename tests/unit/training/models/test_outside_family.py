"""A family that a distribution outside of this repository adds: one folder with two files, and an entry point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.training.code.named_work import run_process
from tests.unit.training.installed_distribution import installed
from tests.unit.training.registry.registered import Registry, scores_elsewhere
from tests.unit.training.stages import evaluate_bench
from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.code.carried import _by_module
from training.contracts import ExitCode
from training.errors import SpecError
from training.models.predictor import load_predictor
from training.registry.serving import load_verified
from training.spec.registry import installed as installed_names
from training.spec.schema import pipeline_schema

pytestmark = pytest.mark.slow

FAMILY = """
from training.spec.descriptors.families import NEURAL_ONLY, FamilyDescriptor
from training.spec.scalar_types import Section


class RidgeSettings(Section):
    penalty: float = 1.0


DESCRIPTOR = FamilyDescriptor(
    settings=RidgeSettings,
    tasks=("binary", "regression"),
    libraries=("numpy",),
    distributed=False,
    ignored_keys=NEURAL_ONLY,
    uses_gpus=False,
    uses_torch=False,
)
"""
MODULE = '''
import json

import numpy as np

from training.models.base import Family, FitResult


class Ridge(Family):
    """Least squares with a penalty, in one epoch."""

    def fit(self, context):
        from training.data.dataset.mapped_shards import MappedShards

        parts = {}
        for split in ("train", "validation"):
            features, label, _ = MappedShards(context.dataset_path, context.dataset_meta, split).columns()
            parts[split] = np.nan_to_num(features.astype(np.float64)), label.astype(np.float64)
        features, label = parts["train"]
        penalty = context.spec.train.settings["penalty"] * np.eye(features.shape[1])
        factors = np.linalg.solve(features.T @ features + penalty, features.T @ label)
        features, label = parts["validation"]
        loss = float(np.mean((features @ factors - label) ** 2))
        return FitResult(
            weights_name="weights.json",
            weights=json.dumps(factors.tolist()).encode(),
            architecture={},
            best_epoch=1,
            validation_loss=loss,
            history=[{"epoch": 1, "validation_loss": loss}],
            num_steps=1,
        )

    def load(self, folder, architecture):
        factors = np.array(json.loads((folder / "weights.json").read_bytes()))
        return lambda matrix: np.clip(0.5 + np.nan_to_num(matrix.as_floats().astype(np.float64)) @ factors / 4, 0.001, 0.999)


FAMILY = Ridge()
'''
FILES = {"acme_ridge/family.py": FAMILY, "acme_ridge/module.py": MODULE}
RIDGE = {"model: boosted_trees": "model: ridge", ", settings: {max_depth: 3}": ", settings: {penalty: 2.5}", "epochs: 20": "epochs: 1"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    caches: list[Any] = [installed_names, _by_module]
    folder, points = tmp_path_factory.mktemp("site"), {"ridge": "acme_ridge"}
    with installed(folder, "acme_ridge", group="nightshift.families", points=points, files=FILES, caches=caches):
        yield folder


@pytest.fixture(scope="module")
def bench(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluateBench]:
    folder = tmp_path_factory.mktemp("bench")
    environment = {
        "PYTHONPATH": str(site),
        "NIGHTSHIFT_HOME": str(folder),
        "NIGHTSHIFT_DATABASE": f"sqlite:///{folder}/nightshift.db",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }

    def run(work: Any, uri: str, **_options: Any) -> ExitCode:
        return run_process(work, uri, environment, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_bench, "run", run)
        yield EvaluateBench(folder / "orders", "binary")


def test_a_family_of_one_folder_trains_and_is_evaluated_in_processes_that_cover_its_code(bench: EvaluateBench) -> None:
    assert len(FILES) == 2, "what docs/extending.md says that a family takes"
    trained = bench.train(RIDGE, work="ridge")
    model = bench.store.manifests.get(trained.artifact_uri, kind="model")
    assert model.meta["family"] == "ridge"
    assert model.meta["settings"]["settings"] == {"penalty": 2.5}
    _, record = bench.evaluate(trained, RIDGE, work="ridge", champion=None, canary=None)
    assert record["metrics"]["auc"] > 0.8


def test_a_registered_model_of_it_loads_without_the_installation(bench: EvaluateBench, tmp_path: Path) -> None:
    trained = bench.train(RIDGE, work="ridge")
    model = bench.store.manifests.get(trained.artifact_uri, kind="model")
    files = {name: bench.store.manifests.read(model, name) for name in model.files}
    with pytest.MonkeyPatch.context() as patch:
        registered, fetched = Registry(tmp_path / "registry", patch).register(files)
        rows: dict[str, list[Any]] = {"country": ["NL", "BE"], "channel": ["web", "app"], "value": [2.0, -2.0], "noise": [0.5, 0.1]}
        (scores,), modules = scores_elsewhere(rows, fetched)
        assert {name.partition(".")[0] for name in modules}.isdisjoint({"training", "acme_ridge", "torch"})
        assert load_verified(str(fetched), digest=registered.artifact_digest).predict(pd.DataFrame(rows)).tolist() == scores
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    assert load_predictor(folder).predict(pd.DataFrame(rows)).tolist() == scores


def test_its_settings_and_tasks_are_checked_as_those_of_any_family(bench: EvaluateBench) -> None:
    with pytest.raises(SpecError) as caught:
        bench.spec_of({**RIDGE, "epochs: 1": "epochs: 1, batch_size: 10", "penalty: 2.5": "penalti: 2.5"})
    assert [problem.code for problem in caught.value.problems] == ["field.conflict", "spec.unknown_key"]
    with pytest.raises(SpecError, match="ridge does not train for the task multiclass"):
        bench.spec_of({**RIDGE, "task: binary, primary: auc": "task: multiclass, primary: accuracy"})
    assert pipeline_schema()["$defs"]["ridge.RidgeSettings"]["properties"]["penalty"]["default"] == 1.0
