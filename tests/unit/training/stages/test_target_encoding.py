"""Target encoding in `prepare`: training rows without the labels of their own group's fold, all others as a served model."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from devstack.shop import write_day
from tests.unit.training.stages.test_prepare import AS_OF, DAYS, LAST, Prepared, load, run
from training.data.dataset.loader import Loader, ShardSet
from training.data.features.target_encoding import fold_numbers
from training.data.features.transforms import FittedTransforms

FOLDS = 4
SMOOTHING = 3.0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("target")
    for back in range(DAYS):
        write_day(folder / "shop", LAST - timedelta(days=back), searches=60)
    feature = f"item_id: {{transform: target_encode, folds: {FOLDS}, smoothing: {SMOOTHING}}}"
    changed = {"window: 30d": f"window: {DAYS}d", "item_id: {transform: category}": feature}
    return run(folder, load("search_ranking", {"SHOP_URI": (folder / "shop").as_uri()}, changed), AS_OF)


def cells(prepared: Prepared, folder: Path, split: str) -> NDArray[np.float32]:
    """Return the cells of item_id in the shards, [n]."""
    prepared.store.manifests.fetch(prepared.manifest, folder)
    shards = ShardSet(folder, prepared.manifest.meta, split)
    (batch,) = Loader(shards, dataset_digest="00" * 32, seed=0, batch_size=10**6, shuffle=False).batches(0)
    place = [entry["name"] for entry in prepared.manifest.meta["layout"]["features"]].index("item_id")
    found: NDArray[np.float32] = batch["features_float"].numpy()[:, place]
    return found


def test_training_rows_have_the_cells_of_the_other_folds_of_searches(prepared: Prepared, tmp_path: Path) -> None:
    train = prepared.frame.iloc[prepared.rows("train")]
    fold_of = fold_numbers([pa.chunked_array([train["search_id"].to_numpy()])], np.ones(len(train), dtype=bool)) % FOLDS
    prior = train["label"].mean()
    sums: dict[tuple[int, int], float] = defaultdict(float)
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for fold, item, label in zip(fold_of, train["item_id"], train["label"], strict=True):
        for other in set(range(FOLDS)) - {fold}:
            sums[other, item] += label
            counts[other, item] += 1
    expected = [
        (sums[fold, item] + SMOOTHING * prior) / (counts[fold, item] + SMOOTHING)
        for fold, item in zip(fold_of, train["item_id"], strict=True)
    ]
    assert cells(prepared, tmp_path, "train") == pytest.approx(np.array(expected), rel=1e-5)


def test_validation_rows_have_what_a_served_model_computes(prepared: Prepared, tmp_path: Path) -> None:
    transforms = FittedTransforms.from_json(prepared.read("transforms.json"))
    matrix = transforms.apply(prepared.frame.iloc[prepared.rows("validation")], serving=True)
    place = [entry.name for entry in matrix.layout].index("item_id")
    assert cells(prepared, tmp_path, "validation").tobytes() == matrix.floats[:, place].tobytes()
