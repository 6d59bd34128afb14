"""A ranker whose checkpoints have a stated size, and which writes down its steps: the model of benchmarks/recovery.py."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import torch
from torch import nn

from training.data.dataset.loader import Batch
from training.models.ranker.module import Ranker, RankerModule
from training.models.torch_family import TorchArchitecture

STEPS_FILE: Final = "RECOVERY_STEPS_FILE"
PARAMETER_BYTES: Final = "RECOVERY_PARAMETER_BYTES"


class LargeModule(RankerModule):
    """The ranker beside square matrices of a given number of bytes, which each step multiplies with a few rows."""

    def __init__(self, architecture: TorchArchitecture) -> None:
        super().__init__(architecture)
        width = int((int(os.environ[PARAMETER_BYTES]) / 4 / 8) ** 0.5)
        self.matrices = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(8))
        self.width = width

    def forward(self, batch: Batch) -> torch.Tensor:
        scores = super().forward(batch)
        # The sum: a rank may have no row of a batch.
        cells = scores.sum().expand(8, self.width)
        for matrix in self.matrices:
            cells = torch.tanh(matrix(cells))
        return scores + cells.mean()


class LargeRanker(Ranker):
    """Writes down when each loss is computed, by the first rank."""

    def build(self, architecture: TorchArchitecture) -> nn.Module:
        return LargeModule(architecture)

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        if os.environ["RANK"] == "0":
            mode = "step" if module.training else "validation"
            with Path(os.environ[STEPS_FILE]).open("a", encoding="utf-8") as file:
                file.write(f"{mode} {time.time()}\n")
        return super().loss(module, batch)
