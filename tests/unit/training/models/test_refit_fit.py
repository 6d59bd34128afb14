"""A refit in each family: so many epochs on the rows of both splits, whatever the validation loss says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.manifest import DatasetMeta, with_validation
from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.shard_format import shard_name, shard_names
from training.engine.loop import Loop
from training.models.base import FitResult, load_family
from training.models.boosted_trees import module
from training.models.lightgbm.family import LightgbmSettings
from training.models.linear.family import LinearSettings
from training.spec.registry import with_defaults

EPOCHS = 3
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ranker", "ranking", {"epochs": 6, "batch_size": 64, "early_stopping": 1, "settings": {"embedding_dim": 4, "hidden": [8]}}),
    ("boosted_trees", "ranking", {"epochs": 6, "early_stopping": 1}),
    ("boosted_trees", "binary", {"epochs": 6, "early_stopping": 1}),
    ("lightgbm", "binary", {"epochs": 6, "early_stopping": 1, "settings": with_defaults(LightgbmSettings, {"min_data_in_leaf": 5})}),
    ("linear", "binary", {"epochs": 6, "early_stopping": 1, "settings": with_defaults(LinearSettings, {})}),
]


def fitted(folder: Path, model: str, task: str, *, on: str, **train: Any) -> FitResult:
    """Fit on the rows of `on`: train, both splits as a refit, or both splits as a dataset whose training shards they are."""
    bench = FamilyBench(folder / on, task)
    meta: Any = bench.meta
    shards, names = meta["shards"], shard_names(meta, "validation")
    if on == "refit":
        context = replace(bench.fit_context(model, **train), dataset_meta=described(meta), refit_epochs=EPOCHS)
        return load_family(model).fit(context)
    if on == "both":
        for number, name in enumerate(names, start=len(shards["train"])):
            shutil.copy(bench.dataset_path / name, bench.dataset_path / shard_name("train", number))
        meta = {**meta, "shards": {**shards, "train": [*shards["train"], *shards["validation"]]}}
    context = bench.fit_context(model, judge=lambda epochs, _loss: epochs >= EPOCHS, **train | {"early_stopping": None})
    return load_family(model).fit(replace(context, dataset_meta=meta))


def described(meta: Any) -> DatasetMeta:
    bounds = {"train": ["2026-01-01", "2026-01-20"], "validation": ["2026-01-20", "2026-01-25"], "test": ["2026-01-25", "2026-02-01"]}
    found: Any = {**meta, "bounds": bounds, "rows": {split: sum(shards) for split, shards in meta["shards"].items()}}
    return with_validation(found)


def test_the_rows_of_a_refit_are_those_of_both_splits_and_end_where_the_test_begins(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    old: Any = bench.meta
    meta = described(old)
    parts = [MappedShards(bench.dataset_path, old, split).columns() for split in ("train", "validation")]
    both = MappedShards(bench.dataset_path, meta, "train")
    features, label, _ = both.columns()
    assert np.array_equal(features, np.concatenate([part[0] for part in parts]))
    assert np.array_equal(label, np.concatenate([part[1] for part in parts]))
    assert meta["rows"]["train"] == both.num_rows
    assert meta["bounds"]["train"] == ["2026-01-01", "2026-01-25"]


@pytest.mark.parametrize(("model", "task", "train"), CASES, ids=[f"{case[0]}, {case[1]}" for case in CASES])
def test_a_refit_is_the_training_of_so_many_epochs_on_both_splits(tmp_path: Path, model: str, task: str, train: dict[str, Any]) -> None:
    found = fitted(tmp_path, model, task, on="refit", **train)
    assert (found.best_epoch, len(found.history)) == (EPOCHS, EPOCHS)
    assert fitted(tmp_path, model, task, on="both", **train).weights == found.weights
    assert fitted(tmp_path, model, task, on="train", **train).weights != found.weights


@pytest.mark.parametrize(("model", "task", "train"), CASES[:2], ids=["loop", "rounds"])
def test_a_refit_keeps_its_last_weights_where_the_validation_loss_rises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, task: str, train: dict[str, Any]
) -> None:
    expected = fitted(tmp_path / "falling", model, task, on="refit", **train).weights
    rising = iter(range(9))
    monkeypatch.setattr(Loop, "_validate", lambda _loop: float(next(rising)))
    monkeypatch.setattr(module, "_losses", lambda _evaluated: [0.0, float(next(rising))])
    found = fitted(tmp_path / "rising", model, task, on="refit", **train)
    assert (found.best_epoch, found.weights) == (EPOCHS, expected)


def test_a_refit_of_a_linear_model_goes_to_its_own_minimum(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    context = replace(
        bench.fit_context("linear", **CASES[-1][2] | {"epochs": 200, "early_stopping": None}),
        dataset_meta=described(bench.meta),
        refit_epochs=1,
    )
    assert load_family("linear").fit(context).best_epoch > 1
