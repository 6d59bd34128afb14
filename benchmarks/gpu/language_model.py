"""A decoder-only transformer of GPT-2's shape, and rows of tokens for it: the model of most parts of `python -m benchmarks.gpu`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.data.dataset.loader import Batch


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int
    width: int
    heads: int
    length: int
    """Tokens of a row."""
    vocabulary: int

    def flops_per_token(self, num_parameters: int) -> float:
        """Return FLOP of a training step per token: six per parameter in a product of matrices, and those of causal attention.

        That is the formula of PaLM (Chowdhery et al., 2022, appendix B) with half of its attention: each token sees, on average, half of
        its row. The table of positions is in no product; that of the tokens is in one, as the output layer.
        """
        return 6 * (num_parameters - self.length * self.width) + 6 * self.layers * self.width * self.length


MEDIUM = Shape(layers=24, width=1024, heads=16, length=1024, vocabulary=50_304)
"""354 million parameters."""
SMALL = Shape(layers=4, width=768, heads=12, length=512, vocabulary=8192)
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
    """[rows, length, vocabulary] from a batch's `features_int` [rows, length]; the output layer has the weight of the embedding."""

    def __init__(self, shape: Shape, *, fused_attention: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.vocabulary, shape.width), nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape, fused_attention=fused_attention) for _ in range(shape.layers))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Embedding | nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, batch: Batch) -> torch.Tensor:
        ids = batch["features_int"]
        states = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            states = block(states)
        logits: torch.Tensor = self.head(self.norm(states))
        return logits

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def compiled(module: LanguageModel, device: torch.device) -> LanguageModel:
    """Have torch compile each block: the same code for all of them, so it is compiled once.

    A rehearsal on a CPU traces it and compiles nothing, which would take minutes.
    """
    for block in module.blocks:
        block.compile(backend="inductor" if device.type == "cuda" else "eager")
    return module


def token_losses(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the summed cross entropy of each next token: logits [rows, length, vocabulary], ids [rows, length]."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten().long(), reduction="sum")


def next_token_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy of each next token, a mean over positions, summed over rows."""
    ids = batch["features_int"]
    return token_losses(module(batch), ids) / (ids.shape[1] - 1)


def compiled_loss(device: torch.device) -> Callable[[nn.Module, Batch], torch.Tensor]:
    """Return `next_token_loss` with the loss itself compiled: one pass over the logits in place of several."""
    losses = torch.compile(token_losses, backend="inductor" if device.type == "cuda" else "eager")

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        ids = batch["features_int"]
        total: torch.Tensor = losses(module(batch), ids)
        return total / (ids.shape[1] - 1)

    return loss


def random_batch(shape: Shape, rows: int) -> Batch:
    """Return random tokens on the CPU."""
    ids = torch.randint(0, shape.vocabulary, (rows, shape.length), dtype=torch.int32)
    return {"features_float": torch.zeros(rows, 0), "features_int": ids, "label": torch.zeros(rows)}


def walks(shape: Shape, rows: int, *, seed: int) -> NDArray[np.int32]:
    """Return tokens that can be learned, [rows, length]: each is the one before it plus 1 or 2."""
    generator = np.random.default_rng(seed)
    steps = generator.integers(1, 3, (rows, shape.length), dtype=np.int32)
    steps[:, 0] = generator.integers(0, shape.vocabulary, rows, dtype=np.int32)
    tokens: NDArray[np.int32] = (np.cumsum(steps, axis=1) % shape.vocabulary).astype(np.int32)
    return tokens
