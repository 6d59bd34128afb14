"""Logistic regression over numbers and one weight per category, as a torch model for Nightshift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from training.data.dataset.loader import Batch
from training.models.torch_family import TorchFamily


class Weights(nn.Module):
    """Computes logits [n] from a batch's numbers [n, floats] and category ids [n, ids]."""

    def __init__(self, features: list[Mapping[str, Any]]) -> None:
        super().__init__()
        categories = [feature["cardinality"] for feature in features if feature["dtype"] == "int32"]
        self.numbers = nn.Linear(len(features) - len(categories), 1)
        self.categories = nn.ModuleList(nn.Embedding(count, 1) for count in categories)

    def forward(self, batch: Batch) -> torch.Tensor:
        logit: torch.Tensor = self.numbers(batch["features_float"])
        for position, weights in enumerate(self.categories):
            logit = logit + weights(batch["features_int"][:, position])
        return logit.squeeze(1)


class Logistic(TorchFamily):
    """Selected in the YAML with `model: shop_models.logistic:Logistic`."""

    link = "sigmoid"

    def build(self, architecture: Mapping[str, Any]) -> nn.Module:
        return Weights(architecture["features"])

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(module(batch), batch["label"], reduction="sum")
