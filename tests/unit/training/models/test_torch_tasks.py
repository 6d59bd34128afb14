"""A class of one's own trains only for tasks that it can be scored for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.training.models.family_bench import FamilyBench
from training.errors import SpecError
from training.models.base import Scorer, load_family
from training.models.torch_family import TorchArchitecture, TorchFamily


class Numbers(nn.Module):
    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, num_outputs)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.layer(batch["features_float"])
        return found.squeeze(1)


class OneNumber(TorchFamily):
    def build(self, architecture: TorchArchitecture) -> nn.Module:
        return Numbers(1)

    def loss(self, module: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = (module(batch) - batch["label"]).square().sum()
        return found


class ThreeClasses(OneNumber):
    def build(self, architecture: TorchArchitecture) -> nn.Module:
        return Numbers(3)

    def loss(self, module: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(module(batch), batch["label"].long(), reduction="sum")

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        return lambda matrix: np.full((len(matrix.cells), 3), 1 / 3)


def test_a_class_that_scores_one_number_per_row_is_refused_for_several_classes_before_it_trains(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "multiclass")
    with pytest.raises(SpecError, match="needs a probability per class") as caught:
        OneNumber().fit(bench.fit_context("ranker", epochs=1, settings={}))
    assert [problem.code for problem in caught.value.problems] == ["model.task"]


def test_a_class_with_a_scorer_of_its_own_trains_for_several_classes(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "multiclass")
    assert ThreeClasses().fit(bench.fit_context("ranker", epochs=1, settings={})).num_steps > 0


def test_a_name_that_the_module_does_not_have_is_told_apart_from_a_class_that_is_no_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models/__init__.py").write_text("class Plain:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "own_models")
    with pytest.raises(SpecError, match="own_models:Tower has no Tower in own_models: its Tower is a NoneType"):
        load_family("own_models:Tower")
    with pytest.raises(SpecError, match="own_models:Plain has no Plain in own_models: its Plain is a type"):
        load_family("own_models:Plain")
