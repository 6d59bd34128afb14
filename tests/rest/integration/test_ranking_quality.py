"""The shipped recipe on the simulated shop, whose true relevance is known: how close to the oracle, how far above popularity and random."""

from __future__ import annotations

import importlib
import json
import logging
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from benchmarks.scored import group_ndcg
from devstack.shop import true_relevance, write_day
from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.data.dataset.reader import DatasetReader
from training.models.predictor import load_predictor
from training.runtime.context import StopFlag
from training.runtime.provenance import CHECKOUT
from training.runtime.runner import run
from training.sources.listing import listing_for
from training.spec import freeze, load_spec, resolve_uris
from training.store import Store

pytestmark = pytest.mark.slow

AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
SEED = 2026
logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float]]:
    """NDCG@10 on the held-out days, by ranker: (by clicks, by true relevance)."""
    folder = tmp_path_factory.mktemp("quality")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        return measure(folder)


def measure(folder: Path) -> dict[str, tuple[float, float]]:
    for back in range(1, 31):
        write_day(folder / "shop", AS_OF.date() - timedelta(days=back), seed=SEED)
    spec = resolve_uris(load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml"), {"SHOP_URI": (folder / "shop").as_uri()})
    store = Store(str(folder / "store"))
    spec_uri = store.put_json(freeze(spec))

    def stage(name: str, inputs: dict[str, str], parameters: dict[str, Any]) -> StageResult:
        work_folder = store.work_folder(spec.name, name, "f" * 64)
        request = StageRequest(
            pipeline=spec.name,
            stage=name,
            work_id="f" * 64,
            attempt_id="a1",
            store_uri=store.root_uri,
            spec_uri=spec_uri,
            as_of=AS_OF,
            inputs=inputs,
            parameters=parameters,
            run=RunIdentity(dag_id=spec.name, run_id="r", task_id=name),
        )
        work = importlib.import_module(f"training.stages.{name}").work
        assert run(work, work_folder.write_request(request), stop=StopFlag()) is ExitCode.DONE
        result = work_folder.result()
        assert result is not None
        return result

    snapshot = stage("ingest", {}, {"listing": listing_for(spec, AS_OF)})
    dataset = stage("prepare", {"snapshot": snapshot.artifact_uri}, {})
    model = stage("train", {"dataset": dataset.artifact_uri}, {"world_size": 1})
    frame = DatasetReader(store, store.manifests.get(dataset.artifact_uri), folder / "dataset").rows("test")
    predictor = load_predictor(store.manifests.fetch(store.manifests.get(model.artifact_uri), folder / "model"))
    return judged(frame, predictor.predict(frame))


def judged(frame: pd.DataFrame, scores: NDArray[np.float64]) -> dict[str, tuple[float, float]]:
    groups = np.unique(frame["search_id"], return_inverse=True)[1]
    clicks = frame["label"].to_numpy(float)
    days = frame["shown_at"].dt.date
    relevance = np.empty(len(frame))
    for day in sorted(set(days)):
        rows = (days == day).to_numpy()
        ids = (frame.loc[rows, name].to_numpy() for name in ("user_id", "query_id", "item_id"))
        relevance[rows] = true_relevance(*ids, date(day.year, day.month, day.day), SEED)
    rankers = {
        "oracle": relevance,
        "model": scores,
        "shown": -frame["position"].to_numpy(float),
        "popularity": frame["popularity"].to_numpy(float),
        "random": np.random.default_rng(0).random(len(frame)),
    }
    found = {
        name: (float(np.nanmean(group_ndcg(clicks, by, groups, 10))), float(np.nanmean(group_ndcg(relevance, by, groups, 10))))
        for name, by in rankers.items()
    }
    logger.warning("NDCG@10 by clicks and by true relevance: %s", json.dumps(found))
    return found


@pytest.mark.parametrize("judge", [0, 1], ids=["clicks", "true relevance"])
def test_model_beats_popularity_and_random_and_comes_close_to_the_oracle(quality: dict[str, tuple[float, float]], judge: int) -> None:
    ndcg = {name: values[judge] for name, values in quality.items()}
    assert ndcg["random"] < ndcg["popularity"] < ndcg["model"] < ndcg["oracle"]
    assert ndcg["model"] > ndcg["shown"]
    # Of the way from a random order to the best possible one, the model goes at least seven tenths.
    assert ndcg["model"] - ndcg["random"] > 0.7 * (ndcg["oracle"] - ndcg["random"])


def test_model_is_clearly_better_than_popularity(quality: dict[str, tuple[float, float]]) -> None:
    assert quality["model"][0] > quality["popularity"][0] * 1.08
