"""A model that was registered before models carried their code under a name of their own, still loads.

`registered_model.tar.gz` is such a model as MLflow's artifacts held it, without the modules of `code/training` that loading it did not
import; `registered_model.json` has the digest of its list of files, rows, and its scores of them.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.training.evaluation.test_latency import model_folder
from tests.unit.training.registry.registered import Registry, scores_elsewhere
from training.models.predictor import load_predictor
from training.registry.serving import load_verified

pytestmark = pytest.mark.slow

EXPECTED = json.loads(Path(__file__).with_suffix(".json").with_name("registered_model.json").read_text(encoding="utf-8"))
ROWS = EXPECTED["rows"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(Path(__file__).with_name("registered_model.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    return folder / "model"


def test_model_of_an_earlier_version_loads_in_the_installation(model: Path) -> None:
    found = load_verified(str(model), digest=EXPECTED["digest"]).predict(pd.DataFrame(ROWS))
    assert found.tolist() == EXPECTED["scores"]


@pytest.mark.parametrize("order", [1, -1], ids=["earlier first", "earlier last"])
def test_model_of_an_earlier_version_loads_alone_and_beside_one_of_this_version(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    folder = model_folder(tmp_path / "model")
    _registered, fetched = Registry(tmp_path / "registry", monkeypatch).register(
        {path.name: path.read_bytes() for path in folder.iterdir()}
    )
    scores, modules = scores_elsewhere(ROWS, *[model, fetched][::order])
    assert scores[::order] == [EXPECTED["scores"], load_predictor(folder).predict(pd.DataFrame(ROWS)).tolist()]
    assert "training" in modules, "the earlier model's own copy"
