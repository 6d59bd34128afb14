"""A batch norm never sees a single row: an epoch's last two batches share their rows, and too small a batch is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.models.family_bench import FamilyBench
from training.errors import Problem, SpecError
from training.models.torch_family import TorchArchitecture, TorchFamily


class NormedLine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    def forward(self, batch: Any) -> torch.Tensor:
        found: torch.Tensor = self.layers(batch["features_float"])
        return found.squeeze(1)


class Normed(TorchFamily):
    def build(self, architecture: TorchArchitecture) -> nn.Module:
        return NormedLine()

    def loss(self, module: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = (module(batch) - batch["label"]).square().sum()
        return found


def test_a_training_with_one_row_more_than_its_batches_hold_ends_with_a_model(tmp_path: Path) -> None:
    # 240 rows, 239 of them in the first batch.
    result = Normed().fit(FamilyBench(tmp_path, "binary").fit_context("ranker", epochs=2, batch_size=239, settings={}))
    assert result.num_steps == 4


@pytest.mark.parametrize(
    ("task", "sizes", "hint"),
    [
        ("binary", {"batch_size": 3}, "set train.batch_size to 4 or more, or use"),
        ("binary", {"batch_size": 60, "micro_batch_size": 2}, "train.batch_size to 4 or more and train.micro_batch_size to 4 or more"),
        ("ranking", {"batch_size": 15}, "set train.batch_size to 16 or more, or use"),
    ],
)
def test_batches_that_may_leave_one_row_to_a_batch_norm_are_refused_with_the_size_to_set(
    tmp_path: Path, task: str, sizes: dict[str, int], hint: str
) -> None:
    bench = FamilyBench(tmp_path, task)
    with pytest.raises(SpecError) as caught:
        Normed().fit(bench.fit_context("ranker", epochs=1, settings={}, **sizes))
    (problem,) = caught.value.problems
    assert isinstance(problem, Problem)
    assert problem.code == "model.batch_norm"
    assert hint in (problem.hint or "")
