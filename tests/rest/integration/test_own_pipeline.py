"""The pipeline of docs/tutorial.md, step by step, on a real installation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.installation import ROOT, Installation

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EXAMPLE = ROOT / "docs" / "examples" / "cancelled_orders"


@pytest.fixture
def own_pipeline(installation: Installation) -> Installation:
    shutil.copy(EXAMPLE / "cancelled_orders.yaml", installation.dags / "pipelines")
    suites = installation.settings.expectations_path / "cancelled_orders"
    suites.mkdir(exist_ok=True)
    shutil.copy(EXAMPLE / "orders.json", suites)
    shutil.copy(EXAMPLE / "cancelled_orders.py", installation.dags)
    return installation


def test_the_example_of_the_tutorial_becomes_champion(own_pipeline: Installation) -> None:
    said = own_pipeline.services("run", "cancelled_orders", "--night", "2026-03-14")

    assert "decision  accepted" in said
    standing = own_pipeline.ledger.standing("cancelled_orders").champion
    assert standing is not None
    assert standing.weights_digest == own_pipeline.result("cancelled_orders", "night-2026-03-14", "train").scalars["weights_digest"]


def test_a_model_class_of_ones_own_is_trained_and_measured(own_pipeline: Installation) -> None:
    path = own_pipeline.dags / "pipelines" / "cancelled_orders.yaml"
    text = path.read_text(encoding="utf-8").replace("  settings: {max_depth: 3}\n", "  batch_size: 128\n")
    path.write_text(text.replace("model: boosted_trees", "model: shop_models.logistic:Logistic"), encoding="utf-8")

    own_pipeline.services("run", "cancelled_orders", "--night", "2026-03-15")

    trained = own_pipeline.result("cancelled_orders", "night-2026-03-15", "train")
    model = own_pipeline.store.manifests.get(trained.artifact_uri, kind="model")
    assert model.meta["family"] == "shop_models.logistic:Logistic"
    assert set(model.files) >= {"weights.safetensors", "model.json", "transforms.json"}


def test_dag_file_of_the_example_is_the_same_two_lines_as_every_other() -> None:
    texts = {Path(path).read_text(encoding="utf-8") for path in (EXAMPLE / "cancelled_orders.py", ROOT / "dags" / "search_ranking.py")}

    assert len(texts) == 1
