"""Integers that float64 lacks, beside missing values, from the source to the evaluation and to a caller of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import EvaluateBench, orders, without_services
from training.data.dataset.reader import DatasetReader
from training.errors import DataError
from training.models.predictor import load_predictor

pytestmark = pytest.mark.slow

LARGE = 2**53
CHANGES = {
    "customer: {type: int64}": "customer: {type: int64, nullable: true}",
    "prepare:\n  features:\n": "prepare:\n  derive:\n    is_odd: {type: int64, sql: customer % 2}\n  features:\n"
    "    customer: {transform: category}\n    is_odd: {transform: number, fill: keep}\n",
    "primary: PRIMARY}": "primary: PRIMARY, slices: [customer], entities: [customer]}",
}


def test_neighbours_are_other_customers_in_training_evaluation_and_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_services(monkeypatch, tmp_path)
    numbers = np.random.default_rng(1).integers(0, 4, 3000)
    customers = pd.array(LARGE + numbers, dtype="Int64")
    customers[np.arange(3000) % 50 == 0] = pd.NA
    frame = orders().assign(customer=customers, cancelled=numbers % 2)
    text = EvaluateBench.__init__.__kwdefaults__["text"]
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    bench = EvaluateBench(tmp_path / "orders", "binary", text=text, frame=frame)

    model = bench.train()
    _, record = bench.evaluate(model)

    assert record["metrics"]["auc"] > 0.97
    named = {part["columns"]["customer"] for part in record["slices"]}
    assert named == {*(str(LARGE + number) for number in range(4)), "(missing)"}
    manifest = bench.store.manifests.get(model.artifact_uri, kind="model")
    predictor = load_predictor(bench.store.manifests.fetch(manifest, tmp_path / "model"))
    rows = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), tmp_path / "rows").rows("test").head(200)
    scores = predictor.predict(rows)
    known = rows["customer"].notna().to_numpy()
    odd = rows["customer"].fillna(0).astype("int64").to_numpy() % 2 == 1
    assert scores[known & odd].min() > 0.9 > 0.1 > scores[known & ~odd].max()
    with pytest.raises(DataError, match="from 2") as caught:
        predictor.predict(rows.assign(customer=rows["customer"].astype("float64")))
    assert caught.value.code == "transform.precision"
