"""Rows in batches: the same scores, bit for bit, as of all rows at once; and no stage holds all columns of all rows."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import save_file

from tests.unit.training.stages.evaluate_bench import EvaluateBench, nobody_else
from training.data.dataset import frames
from training.data.dataset import reader as dataset_reader
from training.data.dataset.reader import DatasetReader
from training.data.features.classes import Classes, align_scores
from training.data.features.transforms import FittedTransforms
from training.errors import DataError
from training.evaluation import leakage_checks, measures, raw_rows
from training.evaluation.raw_rows import RawRows
from training.evaluation.rows import LabelledRows
from training.models import torch_family
from training.models.predictor import Predictor, load_predictor
from training.models.ranker.family import RankerSettings
from training.models.ranker.module import FAMILY as RANKER
from training.models.torch_family import TorchArchitecture
from training.stages import evaluate

pytestmark = pytest.mark.slow

BATCH = 64
TREES = "model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}"
SCALED = {"noise: {transform: number}": "noise: {transform: standard}"}
MODELS: dict[str, dict[str, str]] = {
    "boosted_trees": {},
    "lightgbm": {"model: boosted_trees": "model: lightgbm", "settings: {max_depth: 3}": "settings: {num_leaves: 7}"},
    "linear": {TREES: "model: linear, epochs: 20"},
    "sklearn": {TREES: "model: sklearn, settings: {estimator: sklearn.ensemble.HistGradientBoostingClassifier, max_iter: 5}"},
}
RULES = "primary: auc, slices: [country, channel], sensitive: [country], entities: [customer], slice_support: 50"


@pytest.fixture(scope="module", autouse=True)
def _nobody_else(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with nobody_else(tmp_path_factory.mktemp("database")):
        yield


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EvaluateBench]:
    return {task: EvaluateBench(tmp_path_factory.mktemp(task), task) for task in ("binary", "multiclass")}


def raw_of(bench: EvaluateBench, folder: Path) -> RawRows:
    reader = DatasetReader(bench.store, bench.store.manifests.get(bench.dataset_uri), folder)
    return RawRows(reader, reader.numbers("test"))


def trained(bench: EvaluateBench, name: str, folder: Path) -> Predictor:
    model = bench.train({**SCALED, **MODELS[name]}, work=f"{name} in batches")
    return load_predictor(bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri), folder))


def neural(bench: EvaluateBench, folder: Path) -> Predictor:
    """Return a ranker of the orders' columns with the weights that it begins with."""
    trained(bench, "boosted_trees", folder)
    transforms = FittedTransforms.from_json((folder / "transforms.json").read_bytes())
    features = [{"name": entry.name, "dtype": entry.dtype, "cardinality": entry.cardinality} for entry in transforms.layout]
    architecture: Any = TorchArchitecture(features=features, bias_features=[], settings=RankerSettings().model_dump())  # type: ignore[typeddict-item]  # as JSON
    torch_family.torch.manual_seed(3)
    save_file(RANKER.build(architecture).state_dict(), folder / "weights.safetensors")
    return Predictor(transforms, RANKER.load(folder, architecture), json.loads((folder / "model.json").read_bytes()))


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("family", [*MODELS, "neural"])
def test_scores_in_batches_are_those_of_all_rows_at_once_bit_for_bit(
    benches: dict[str, EvaluateBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, task: str
) -> None:
    bench = benches[task]
    predictor = neural(bench, tmp_path / "model") if family == "neural" else trained(bench, family, tmp_path / "model")
    raw = raw_of(bench, tmp_path / "dataset")
    monkeypatch.setattr(torch_family, "SCORED_ROWS", BATCH)
    monkeypatch.setattr(raw_rows, "SCORED_ROWS", 2 * BATCH)
    at_once = predictor.predict(raw.frame(predictor.inputs))
    counts: list[int] = []
    found = raw.scores(predictor, None, counts.append)
    assert len(found) == sum(counts) > 900
    assert counts[:-1] == [2 * BATCH] * (len(counts) - 1)
    assert len(np.unique(at_once)) > 20
    assert (found.dtype, found.shape, found.tobytes()) == (at_once.dtype, at_once.shape, at_once.tobytes())


def test_a_batch_has_whole_parts_of_what_a_torch_family_scores_at_a_time() -> None:
    assert raw_rows.SCORED_ROWS % torch_family.SCORED_ROWS == 0


def test_classes_are_aligned_batch_by_batch_as_at_once(
    benches: dict[str, EvaluateBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches["multiclass"]
    predictor = trained(bench, "boosted_trees", tmp_path / "model")
    predictor.facts["classes"] = ["small", "middle", "large"]
    classes = Classes(names=("large", "small", "other"), unseen={})
    monkeypatch.setattr(raw_rows, "SCORED_ROWS", BATCH)
    raw = raw_of(bench, tmp_path / "dataset")
    expected = align_scores(predictor.predict(raw.frame(predictor.inputs)), predictor.classes, classes)
    assert np.array_equal(raw.scores(predictor, classes), expected)
    assert expected.shape[1] == 4


def test_a_column_that_the_dataset_lacks_is_named(benches: dict[str, EvaluateBench], tmp_path: Path) -> None:
    predictor = trained(benches["binary"], "boosted_trees", tmp_path / "model")
    raw = raw_of(benches["binary"], tmp_path / "dataset")

    class WithoutValue(RawRows):
        @property
        def names(self) -> list[str]:
            return [name for name in super().names if name != "value"]

    with pytest.raises(DataError, match="the frame lacks 'value'") as caught:
        WithoutValue(raw._reader, raw.numbers).scores(predictor, None)
    assert caught.value.code == "schema.missing"


def test_no_rows_have_no_scores(benches: dict[str, EvaluateBench], tmp_path: Path) -> None:
    predictor = trained(benches["binary"], "boosted_trees", tmp_path / "model")
    raw = raw_of(benches["binary"], tmp_path / "dataset").at(np.empty(0, dtype=np.int64))
    assert raw.scores(predictor, None).shape == (0,)


def test_what_measures_know_of_the_rows_does_not_depend_on_the_batches(
    benches: dict[str, EvaluateBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches["binary"]
    raw, spec = raw_of(bench, tmp_path / "dataset"), bench.spec_of({"primary: auc": RULES})
    labels = np.zeros(len(raw))
    whole = LabelledRows.of(spec, raw, labels, "country")
    monkeypatch.setattr(raw_rows, "SCORED_ROWS", 7)
    parts = LabelledRows.of(spec, raw, labels, "country")
    assert whole.origins is not None
    assert parts.origins is not None
    customers = pd.factorize(raw["customer"])[0]
    assert np.array_equal(whole.origins.entities["customer"], customers)
    assert np.array_equal(parts.origins.entities["customer"], customers)
    assert parts.groups is not None
    assert np.array_equal(parts.groups, np.unique(raw["country"].to_numpy(), return_inverse=True)[1])
    assert parts.num_units == 3
    assert set(parts.values) == {"country", "channel"}


class Alive:
    """Counts the rows of the frames of several columns that are in memory."""

    def __init__(self) -> None:
        self.most, self.largest = 0, 0
        self._sizes: dict[int, int] = {}

    def pandas_rows(self, *arguments: Any) -> pd.DataFrame:
        frame = frames.pandas_rows(*arguments)
        if frame.shape[1] > 1:
            gc.collect()
            self._sizes[id(frame)] = len(frame)
            weakref.finalize(frame, self._sizes.pop, id(frame))
            self.largest, self.most = max(self.largest, len(frame)), max(self.most, sum(self._sizes.values()))
        return frame


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Alive:
    found = Alive()
    monkeypatch.setattr(dataset_reader, "pandas_rows", found.pandas_rows)
    for module, name in (
        (raw_rows, "SCORED_ROWS"),
        (evaluate, "LATENCY_ROWS"),
        (measures, "MAX_IMPORTANCE_ROWS"),
        (leakage_checks, "MAX_ROWS"),
    ):
        monkeypatch.setattr(module, name, BATCH)
    return found


def test_evaluate_holds_no_more_than_three_batches_of_several_columns(benches: dict[str, EvaluateBench], alive: Alive) -> None:
    bench = benches["binary"]
    blind = bench.train({"    value: {transform: number}\n": ""}, work="blind")
    good = bench.train(work="good")
    record = bench.evaluate(good, {"primary: auc": RULES}, work="alive", champion=bench.seat(blind, "3"))[1]
    assert record["num_rows"] > 900
    assert record["slices"]
    assert alive.largest == BATCH
    assert alive.most <= 3 * BATCH


def test_canary_holds_no_more_than_two_batches_of_several_columns(benches: dict[str, EvaluateBench], alive: Alive) -> None:
    bench = benches["binary"]
    champion, canary = (bench.seat(bench.train(change, work=work), "1") for change, work in (({}, "good"), (MODELS["linear"], "linear")))
    bench.spec = bench.spec_of({"primary: auc": RULES})
    result = bench.stage("canary", {"dataset": bench.dataset_uri}, {"canary": canary, "champion": champion}, work="alive")
    assert result.scalars["rows"] == 3000
    assert alive.largest == BATCH
    assert alive.most <= 2 * BATCH
