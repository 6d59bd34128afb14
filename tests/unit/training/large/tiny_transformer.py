"""A transformer of a few thousand parameters: what a class of a user's own looks like, trained for some steps under any strategy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.data.dataset.loader import Batch, cut
from training.engine.optim import MAX_GRAD_NORM, Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import Strategy
from training.large.replicas import digest_of
from training.large.tensor_plan import Division, TensorPlan

VOCABULARY, WIDTH, HEADS, LENGTH, BLOCKS = 32, 16, 4, 8, 2
ROWS = 16
STEPS = 20


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # A bias of the keys shifts all scores of a row alike: its gradient is rounding error, which Adam makes as large as any other.
        self.query, self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(states).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self.attention(self.norm(states))
        output: torch.Tensor = states + self.down(nn.functional.gelu(self.up(self.second_norm(states))))
        return output


class TinyTransformer(nn.Module):
    """Predicts one number from a row of token ids, [n, LENGTH] int32."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        states = self.embedding(batch["features_int"])
        for block in self.blocks:
            states = block(states)
        output: torch.Tensor = self.head(self.norm(states)).mean(dim=(1, 2))
        return output


class FirstStage(nn.Module):
    def __init__(self, embedding: nn.Module, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.embedding, self.blocks = embedding, blocks

    def forward(self, batch: Batch) -> torch.Tensor:
        states: torch.Tensor = self.embedding(batch["features_int"])
        for block in self.blocks:
            states = block(states)
        return states


class LastStage(nn.Module):
    def __init__(self, blocks: nn.ModuleList, norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm, self.head = blocks, norm, head

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            states = block(states)
        output: torch.Tensor = self.head(self.norm(states)).mean(dim=(1, 2))
        return output


def stages_of(module: nn.Module, num_stages: int) -> list[nn.Module]:
    """Cut the transformer into two stages of one block each."""
    assert isinstance(module, TinyTransformer)
    assert num_stages == BLOCKS
    return [
        FirstStage(module.embedding, nn.ModuleList(list(module.blocks)[:1])),
        LastStage(nn.ModuleList(list(module.blocks)[1:]), module.norm, module.head),
    ]


PLAN: TensorPlan = {
    "embedding": "row",
    **{f"blocks.*.attention.{name}": "column" for name in ("query", "key", "value")},
    "blocks.*.attention.out": "row",
    "blocks.*.up": "column",
    "blocks.*.down": "row",
}
SEQUENCE_PLAN: TensorPlan = {
    "embedding": Division("row", gives="sequence"),
    "blocks.*.norm": "sequence",
    "blocks.*.attention": "gather",
    **{f"blocks.*.attention.{name}": "column" for name in ("query", "key", "value")},
    "blocks.*.attention.out": Division("row", gives="sequence"),
    "blocks.*.second_norm": "sequence",
    "blocks.*.up": Division("column", takes="sequence"),
    "blocks.*.down": Division("row", gives="sequence"),
    "norm": Division("sequence", gives="whole"),
}
PLANS = {"whole": PLAN, "sequence": SEQUENCE_PLAN}


def squares(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the summed squared error."""
    return ((module(batch) - batch["label"]) ** 2).sum()


def global_batch(step: int, rows: int = ROWS) -> Batch:
    """Return the rows of a step: functions of its number alone."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator, dtype=torch.int32)
    return {"features_int": ids, "label": (ids.float().mean(dim=1) - VOCABULARY / 2) / 4}


@dataclass
class Trained:
    """What a training of some steps gave; equal objects, equal bits."""

    losses: list[float]
    """Mean of each step's global batch."""
    norms: list[float]
    weights: dict[str, list[float]]
    digest: str
    """Of the weights, in the first process; of another one, what it holds of them."""
    part: int
    """Digest of the parameters and the optimizer's state that this process has."""


def train(
    strategy: Strategy, *, clips: bool = True, micro_batches: int = 1, steps: int = STEPS, rows: int = ROWS, **options: Any
) -> Trained:
    """Train the same transformer on the same rows under a strategy.

    Args:
        micro_batches: parts of each data rank's share.
    """
    torch.manual_seed(5)
    parameters = strategy.place(TinyTransformer())
    settings = OptimizerSettings(**{"weight_decay": 0.01, **options})
    optimizer = ScheduledOptimizer(parameters, Schedule(learning_rate=0.01, total_steps=steps), settings, muon=strategy.muon)
    losses, norms = [], []
    for step in range(steps):
        share = cut(global_batch(step, rows), strategy.num_data_ranks)[strategy.data_rank]
        optimizer.clear_gradients()
        total = strategy.backward(cut(share, micro_batches), squares, rows)
        norms.append(strategy.clip(MAX_GRAD_NORM if clips else 1e9))
        # Processes that share layers have the same rows.
        losses.append(strategy.gang.sum(float(total))[0] / rows * strategy.num_data_ranks / strategy.gang.world_size)
        optimizer.step(step)
    own = [*parameters.values(), *(tensor for _, tensor in sorted(optimizer.state().items()))]
    weights = strategy.whole(strategy.weights())
    digest = hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for _, tensor in sorted(weights.items()))).hexdigest()
    return Trained(
        losses, norms, {name: tensor.flatten().tolist() for name, tensor in weights.items()}, digest, digest_of(own, strategy.gang.device)
    )


def alone(*, micro_batches: int, **options: Any) -> Trained:
    """Train in this process, which accumulates the same micro-batches: what every layout is compared with."""
    from training.engine.parallel.ddp import ReplicatedModel

    return train(ReplicatedModel(Gang(0, 1, torch.device("cpu"))), micro_batches=micro_batches, **options)
