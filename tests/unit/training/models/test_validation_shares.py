"""Each rank's share of the validation rows: whole groups, every row once, and the loss of one rank alone but for the order of sums."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch
from training.engine.parallel.gang import Gang
from training.models.ranker.module import Ranker
from training.models.strategy_choice import strategy_for

CPU = torch.device("cpu")
SETTINGS = {"embedding_dim": 4, "hidden": (8,), "dropout": 0.0, "loss": "listwise"}
WORLD_SIZES = [1, 2, 3, 7]


def shares(folder: Path, task: str, world_size: int, batch_size: int) -> list[list[Batch]]:
    """Return the validation batches of each rank."""
    bench = FamilyBench(folder, task)
    context = bench.fit_context("ranker", batch_size=batch_size, settings=SETTINGS)
    context.checkpoints.close()
    strategies = [strategy_for(Gang(rank, world_size, CPU), precision="fp32") for rank in range(world_size)]
    return [list(Ranker()._loader(context, "validation", strategy).batches(0)) for strategy in strategies]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_validation_rows_are_divided_by_whole_groups(tmp_path: Path, world_size: int) -> None:
    (whole,) = shares(tmp_path / "one", "ranking", 1, 24)
    found = shares(tmp_path / "several", "ranking", world_size, 24)
    groups = [{int(group) for batch in batches for group in batch["group"]} for batches in found]
    assert all(not a & b for a, b in itertools.combinations(groups, 2)), "no group is on two ranks"
    assert set().union(*groups) == set(range(20))
    for step, batch in enumerate(whole):
        joined = torch.cat([batches[step]["group"] for batches in found])
        assert torch.equal(joined, batch["group"]), "in the order of ranks, each row once"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("batch_size", [24, 8])
def test_losses_of_all_shares_add_up_to_the_loss_of_one_rank(tmp_path: Path, world_size: int, batch_size: int) -> None:
    family = Ranker()
    bench = FamilyBench(tmp_path / "architecture", "ranking")
    torch.manual_seed(0)
    features = bench.meta["layout"]["features"]
    module = family.build({"features": features, "bias_features": ["position"], "settings": SETTINGS}).eval()

    def total(batches: list[Batch]) -> float:
        with torch.no_grad():
            return sum(float(family.loss(module, batch)) for batch in batches if len(batch["label"]))

    (whole,) = shares(tmp_path / "one", "ranking", 1, batch_size)
    found = shares(tmp_path / "several", "ranking", world_size, batch_size)
    assert sum(total(batches) for batches in found) == pytest.approx(total(whole), rel=1e-6)
    if batch_size == 8 and world_size == 7:
        assert any(len(batch["label"]) == 0 for batches in found for batch in batches), "some shares are empty"
