"""A decoder-only transformer of GPT-2's shape, and batches of random tokens: the model of benchmarks/gpu.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from training.data.loader import Batch


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int = 24
    width: int = 1024
    heads: int = 16
    length: int = 1024
    vocabulary: int = 50_304

    def flops_per_token(self, num_parameters: int) -> float:
        """Return FLOP of a training step per token (Chowdhery et al., PaLM, 2022, appendix B)."""
        return 6 * num_parameters + 12 * self.layers * self.width * self.length


MEDIUM = Shape()
TINY = Shape(layers=2, width=32, heads=2, length=16, vocabulary=64)


class Block(nn.Module):
    """Attention and a perceptron, norms first."""

    def __init__(self, shape: Shape, *, fused_attention: bool) -> None:
        super().__init__()
        self.heads, self.fused_attention = shape.heads, fused_attention
        self.first_norm, self.second_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.inputs, self.outputs = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.perceptron = nn.Sequential(nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        rows, length, width = states.shape
        parts = self.inputs(self.first_norm(states)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.fused_attention:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
            future = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
            mixed = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ value
        states = states + self.outputs(mixed.transpose(1, 2).reshape(rows, length, width))
        result: torch.Tensor = states + self.perceptron(self.second_norm(states))
        return result


class LanguageModel(nn.Module):
    """[rows, length, vocabulary] from a batch's `features_int` [rows, length]."""

    def __init__(self, shape: Shape, *, fused_attention: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.vocabulary, shape.width), nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape, fused_attention=fused_attention) for _ in range(shape.layers))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        ids = batch["features_int"]
        states = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            states = block(states)
        logits: torch.Tensor = self.head(self.norm(states))
        return logits


def next_token_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy of each next token, a mean over positions, summed over rows."""
    logits, ids = module(batch), batch["features_int"].long()
    losses = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum")
    return losses / (ids.shape[1] - 1)


def random_batch(shape: Shape, rows: int, *, device: torch.device | str = "cpu") -> Batch:
    ids = torch.randint(0, shape.vocabulary, (rows, shape.length), dtype=torch.int32)
    found = {"features_float": torch.zeros(rows, 0), "features_int": ids, "label": torch.zeros(rows)}
    return {name: cells.to(device) for name, cells in found.items()}
