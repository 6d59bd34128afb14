"""Weights in every kind of XGBoost's matrix, and classes of a user's own that do not count them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch
from training.errors import SpecError
from training.models.base import load_family
from training.models.boosted_trees import matrices
from training.models.shard_rows import shards_of
from training.models.torch_family import TorchArchitecture, TorchFamily

WEIGHTS = {"1": 4.0, "0": 0.5}


def weights_of(bench: FamilyBench, **changes: object) -> bytes:
    context = bench.fit_context("boosted_trees", epochs=6, **changes)
    try:
        return load_family("boosted_trees").fit(context).weights
    finally:
        context.checkpoints.close()


def test_rows_on_disk_make_the_same_weighted_trees_as_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FamilyBench(tmp_path, "binary")
    in_memory = weights_of(bench, class_weight=WEIGHTS)
    assert in_memory != weights_of(bench)
    monkeypatch.setattr(matrices, "too_large", lambda *_arguments: True)
    assert weights_of(bench, class_weight=WEIGHTS) == in_memory


@pytest.mark.parametrize("world_size", [1, 3])
def test_matrix_of_a_gpu_has_the_weights_of_its_share(tmp_path: Path, world_size: int) -> None:
    bench = FamilyBench(tmp_path, "binary")
    context = bench.fit_context("boosted_trees", class_weight=WEIGHTS)
    context.checkpoints.close()
    rows = shards_of(context)["train"]
    found = [matrices._whole(rows, rank, world_size, 1) for rank in range(world_size)]
    label = np.concatenate([matrix.get_label() for matrix in found])
    assert len(label) == rows.num_rows
    assert np.concatenate([matrix.get_weight() for matrix in found]).tolist() == np.where(label == 1, 4.0, 0.5).tolist()


class Plain(TorchFamily):
    """A class whose loss knows no weights."""

    link = "sigmoid"

    def build(self, architecture: TorchArchitecture) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        losses = nn.functional.binary_cross_entropy_with_logits(module(batch["features_float"]), batch["label"], reduction="none")
        return (losses * batch["weight"]).sum() if "weight" in batch else losses.sum()


class Weighing(Plain):
    counts_weights = True


def test_class_that_does_not_count_weights_is_refused_before_it_trains_and_one_that_does_learns_by_them(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "binary")
    context = bench.fit_context("ranker", class_weight="balanced", settings={}, epochs=3, batch_size=64)
    try:
        with pytest.raises(SpecError, match=r"train\.class_weight is set, and the loss of ranker does not count weights") as caught:
            Plain().fit(context)
        assert caught.value.code == "model.weight"
        weighed = Weighing().fit(context)
    finally:
        context.checkpoints.close()
    again = FamilyBench(tmp_path / "plain", "binary").fit_context("ranker", settings={}, epochs=3, batch_size=64)
    try:
        plain = Plain().fit(again)
    finally:
        again.checkpoints.close()
    assert weighed.weights != plain.weights
    assert weighed.validation_loss < weighed.history[0]["validation_loss"] + 1e-9
