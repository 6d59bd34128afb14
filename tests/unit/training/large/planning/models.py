"""Transformers of known sizes for plans: built with fake tensors, so that size costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from training.data.dataset.loader import Batch
from training.engine.activations import repeated_blocks
from training.engine.optimizers import OptimizerSettings
from training.large.planning.costs import ModelSize
from training.large.planning.probe import LayoutCandidate, facts_of
from training.large.tensor_plan import Division, TensorPlan


@dataclass(frozen=True, kw_only=True)
class Size:
    width: int
    depth: int
    heads: int
    vocabulary: int = 50_304
    length: int = 2048


TINY = Size(width=256, depth=4, heads=4, vocabulary=2000, length=16)
GPT_125M = Size(width=768, depth=12, heads=12)
GPT_1300M = Size(width=2048, depth=24, heads=16)
GPT_7B = Size(width=4096, depth=32, heads=32)
GPT_13B = Size(width=5120, depth=40, heads=40)
GPT_70B = Size(width=8192, depth=80, heads=64)
GPT_175B = Size(width=12_288, depth=96, heads=96)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm, self.second_norm = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.query, self.key, self.value, self.out = (nn.Linear(size.width, size.width) for _ in range(4))
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        rows, length, width = states.shape
        normed = self.norm(states)
        query, key, value = (
            layer(normed).view(rows, length, -1, width // self.heads).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        output: torch.Tensor = states + self.down(nn.functional.gelu(self.up(self.second_norm(states))))
        return output


class Transformer(nn.Module):
    """Predicts the next token; a row has `length` token ids."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.zeros(size.length, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        states = self.embedding(batch["features_int"]) + self.positions
        for block in self.blocks:
            states = block(states)
        output: torch.Tensor = self.head(self.norm(states))
        return output


def next_token_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    ids = batch["features_int"]
    logits = module(batch)[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits, ids[:, 1:].flatten().long(), reduction="sum") / ids.shape[1]


def plan_of(size: Size) -> TensorPlan:
    """Return how the layers of a transformer are divided."""
    heads = Division("column", unit=size.width // size.heads)
    return {
        "embedding": "row",
        **{f"blocks.*.{name}": heads for name in ("query", "key", "value")},
        "blocks.*.out": "row",
        "blocks.*.up": "column",
        "blocks.*.down": "row",
        "head": Division("column", gives="whole"),
    }


class Part(nn.Module):
    """Some blocks of a transformer, and its embeddings or its head if they are the first or the last ones."""

    def __init__(self, model: Transformer, first: int, last: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(list(model.blocks)[first:last])
        self.embedding, self.positions = (model.embedding, model.positions) if first == 0 else (None, None)
        self.head = nn.Sequential(model.norm, model.head) if last == len(model.blocks) else nn.Identity()

    def forward(self, given: Any) -> torch.Tensor:
        states = given if self.embedding is None else self.embedding(given["features_int"]) + self.positions
        for block in self.blocks:
            states = block(states)
        return cast(torch.Tensor, self.head(states))


def stages_of(module: nn.Module, num_stages: int) -> list[nn.Module] | None:
    """Cut a transformer into stages of as many blocks, or one more."""
    assert isinstance(module, Transformer)
    number = len(module.blocks)
    if num_stages > number:
        return None
    return [Part(module, number * stage // num_stages, number * (stage + 1) // num_stages) for stage in range(num_stages)]


def candidate(size: Size, *, has_plans: bool = False) -> LayoutCandidate:
    return LayoutCandidate(
        build=lambda: Transformer(size),
        loss=next_token_loss,
        features=[{"name": f"t{number}", "dtype": "int32", "cardinality": size.vocabulary} for number in range(size.length)],
        has_group=False,
        optimizer=lambda _: OptimizerSettings(),
        blocks=lambda module: list(repeated_blocks(module)),
        tensor_plan=lambda _: plan_of(size) if has_plans else None,
        cut=lambda module, number: stages_of(module, number) if has_plans else None,
    )


def facts(size: Size, *, has_plans: bool = False) -> ModelSize:
    return facts_of(candidate(size, has_plans=has_plans))
