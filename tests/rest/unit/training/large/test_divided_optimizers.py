"""Each optimizer over parameters that are divided over two processes: the model of one process, and a state that is divided alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.tiny_transformer import TinyTransformer, Trained, alone, train
from training.engine.optim import Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings, hidden_matrices
from training.engine.parallel.gang import Gang
from training.large.sharded import ShardedModel
from training.spec.layout import Layout

NAMES: Any = ("adamw", "sgd", "muon")
HIDDEN = hidden_matrices(TinyTransformer())


def sharded(gang: Gang) -> ShardedModel:
    return ShardedModel(gang, Layout(shard=2), min_block_bytes=1024)


def trained_by(gang: Gang, name: str) -> Trained:
    return train(sharded(gang), clips=False, name=name, muon=HIDDEN)


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_with_a_part_each_give_the_bits_of_one(name: str, tmp_path: Path) -> None:
    found = run_ranks(trained_by, 2, tmp_path, name)
    assert found[0].digest == alone(micro_batches=2, clips=False, name=name, muon=HIDDEN).digest


def steps_with_state(gang: Gang, name: Any) -> list[str]:
    """Return what is wrong with the state of a training of three steps, in which the state of step 2 is read into another optimizer."""
    strategy = sharded(gang)
    torch.manual_seed(5)
    parameters = strategy.place(TinyTransformer())
    schedule = Schedule(learning_rate=0.01, total_steps=3)
    settings = OptimizerSettings(name=name, muon=HIDDEN)
    optimizer, other = (ScheduledOptimizer(parameters, schedule, settings, muon=strategy.muon) for _ in range(2))
    for step in range(2):
        for number, parameter in enumerate(parameters.values()):
            parameter.grad = torch.full_like(parameter, 0.01 * (number - step))
        optimizer.step(step)
    other.allocate()
    tensors, state, wrong = other.state(), optimizer.state(), []
    for key, value in state.items():
        parameter = parameters[key.partition("/")[2]]
        if key.startswith("step/"):
            continue
        placed = (parameter.shape, parameter.placements, parameter.device_mesh)
        for tensor in (value, tensors[key]):
            if not isinstance(tensor, DTensor) or (tensor.shape, tensor.placements, tensor.device_mesh) != placed:
                wrong.append(f"{key} is {type(tensor).__name__}, not placed as its parameter")
    for key, value in state.items():
        tensors[key].copy_(value)
    other.restore(tensors)
    wrong += [f"{key} was copied" for key, tensor in other.state().items() if tensor is not tensors[key]]
    shapes = {key: tensor.shape for key, tensor in optimizer.largest_state().items()}
    return wrong + ([] if shapes == {key: tensor.shape for key, tensor in state.items()} else ["other shapes are reserved"])


@pytest.mark.parametrize("name", NAMES)
def test_state_of_a_divided_parameter_is_divided_alike_and_restored_in_place(name: str, tmp_path: Path) -> None:
    assert run_ranks(steps_with_state, 2, tmp_path, name) == [[], []]
