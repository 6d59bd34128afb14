"""Texts in `prepare`: the shards have what a served model computes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from devstack.shop import write_day
from tests.unit.training.stages.test_prepare import AS_OF, DAYS, LAST, load, run
from training.data.dataset.loader import Loader, ShardSet
from training.data.features.transforms import FittedTransforms

BUCKETS = 5


def test_shards_have_the_buckets_that_a_served_model_computes(tmp_path: Path) -> None:
    for back in range(DAYS):
        write_day(tmp_path / "shop", LAST - timedelta(days=back), searches=20)
    words = "\n  derive:\n    words: {type: string, sql: \"'item ' || item_id || ' of ' || category_id\"}"
    changed = {
        "window: 30d": f"window: {DAYS}d",
        "\nprepare:": f"\nprepare:{words}",
        "item_id: {transform: category}": f"words: {{transform: text, buckets: {BUCKETS}, ngrams: [1, 2], scale: share}}",
    }
    prepared = run(tmp_path, load("search_ranking", {"SHOP_URI": (tmp_path / "shop").as_uri()}, changed), AS_OF)
    names = [f"words.{bucket}" for bucket in range(BUCKETS)]
    layout = [entry["name"] for entry in prepared.manifest.meta["layout"]["features"]]
    first = layout.index(names[0])
    assert layout[first : first + BUCKETS] == names
    prepared.store.manifests.fetch(prepared.manifest, tmp_path / "dataset")
    shards = ShardSet(tmp_path / "dataset", prepared.manifest.meta, "validation")
    (batch,) = Loader(shards, dataset_digest="00" * 32, seed=0, batch_size=10**6, shuffle=False).batches(0)
    transforms = FittedTransforms.from_json(prepared.read("transforms.json"))
    served = transforms.apply(prepared.frame.iloc[prepared.rows("validation")], serving=True).floats[:, first : first + BUCKETS]
    assert batch["features_float"].numpy()[:, first : first + BUCKETS].tobytes() == served.tobytes()
    assert served.any()
