"""How the layers of a model are divided into the stages of a pipeline, as a family's `pipeline_stages` says.

The stages are modules that share their layers with the model. The first one is called with the batch, each other one with what the stage
before it returned: one floating-point tensor, whose dimension 0 is the rows of the batch, and whose other sizes are the same for every
batch. The last one returns what the model itself returns, so that the family's `loss` can be called with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import nn

from training.data.dataset.loader import Batch
from training.errors import Problem, SpecError, spec_error

Cut = Callable[[nn.Module, int], Sequence[nn.Module]]
"""Of a model and a number of stages to the stages."""

FIELD: Final = "train.parallel.pipeline"
HINT: Final = "correct pipeline_stages of the class; docs/large-models.md has an example"


def no_cut(model: str, num_stages: int) -> SpecError:
    """Return the refusal of a model that is not cut into so many stages."""
    message = f"{model} is not cut into {num_stages} stages (its pipeline_stages returns None)"
    hint = "write the method pipeline_stages of the class (docs/large-models.md); or use parallel.shard, which needs none"
    return spec_error("train.parallel", "parallel.no_pipeline_cut", message, hint=hint, field=FIELD)


def wrong_cut(*messages: str) -> SpecError:
    """Return the refusal of stages that do not make up the model."""
    problems = [Problem(code="parallel.pipeline_stages", field=FIELD, message=message, hint=HINT) for message in messages]
    return SpecError("train.parallel", problems)


def shared_gpus() -> SpecError:
    """Return the refusal of processes that share GPUs."""
    message = "processes share GPUs, and gloo, which they then use, hands over no activations of a GPU"
    hint = "give each process a GPU of its own (placement.gpus equal to processes_per_node), or use parallel.shard"
    return spec_error("train.parallel", "parallel.shared_gpu", message, hint=hint, field=FIELD)


def names_of_stages(module: nn.Module, stages: Sequence[nn.Module], num_stages: int) -> list[list[str]]:
    """Return the names of the tensors of the model's state that each stage has, in the model's order.

    Raises:
        SpecError: `parallel.pipeline_stages`: a parameter or a buffer of the state is in no stage or in two, or a stage has none of the
            model's parameters, or one that the model does not have.
    """
    if len(stages) != num_stages:
        raise wrong_cut(f"pipeline_stages returns {len(stages)} stages, parallel.pipeline is {num_stages}")
    state = module.state_dict(keep_vars=True)
    ids = [{id(tensor) for tensor in stage.state_dict(keep_vars=True).values()} for stage in stages]
    found: list[list[str]] = [[] for _ in stages]
    wrong = []
    for name, tensor in state.items():
        holders = [number for number, members in enumerate(ids) if id(tensor) in members]
        if len(holders) == 1:
            found[holders[0]].append(name)
        elif holders:
            wrong.append(f"{name} is in stages {' and '.join(map(str, holders))}: each tensor must be in one stage")
        else:
            wrong.append(f"{name} is in no stage")
    own = {id(tensor) for tensor in state.values()}
    for number, stage in enumerate(stages):
        parameters = dict(stage.named_parameters())
        if not parameters:
            wrong.append(f"stage {number} has no parameters")
        wrong += [f"stage {number} has {name}, which the model does not have" for name, one in parameters.items() if id(one) not in own]
    if wrong:
        raise wrong_cut(*wrong[:5])
    return found


class ComputedOutput(nn.Module):
    """Stands for the model in a family's `loss`: called with the batch, it returns what the last stage has computed of it."""

    def __init__(self, output: object, batch: Batch) -> None:
        super().__init__()
        self._output = output
        self._batch = batch

    def forward(self, batch: Batch) -> object:
        if batch is not self._batch:
            raise wrong_cut("loss calls the module with another batch than it was given; the stages have computed that one")
        return self._output
