"""Tensor parallel training: each process computes a part of each layer, from the same rows (Shoeybi et al., Megatron-LM, 2019).

The layers that a plan names get torch's parallel styles; between them, tensors are plain ones, whole or a process's part. All other
parameters stay as they are: every process of a tensor group computes with them alike, so their gradients are the same on each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from training.errors import SpecError, spec_error
from training.large.mesh import TENSOR
from training.large.tensor_plan import HINT, Division, TensorPlan, checked

SEQUENCE_DIMENSION: Final = 1
MAX_DIFFERENCE: Final = 1e-3
"""Relative, between what processes of a tensor group have of a loss or a gradient that is the same on all of them."""


def divide_layers(module: nn.Module, mesh: DeviceMesh, plan: TensorPlan) -> None:
    """Divide the layers that a plan names over a mesh of one dimension; parameters must have the same values on all its processes.

    Raises:
        SpecError: `parallel.tensor_plan`.
    """
    divisions = checked(module, plan, mesh.size())
    shared = _shared_parameters(module)
    for name, division in divisions.items():
        layer = module.get_submodule(name)
        parallelize_module(layer, mesh, _style(layer, division), src_data_rank=None)
    _share_again(shared)


def _style(layer: nn.Module, division: Division) -> ParallelStyle:
    if division.kind == "gather":
        return _Gather()
    if isinstance(layer, nn.Dropout):
        return _OwnNumbers()
    takes, gives = _placement(division.takes), _placement(division.gives)
    if division.kind == "sequence":
        return _Sequence(takes, gives)
    made = ColwiseParallel if division.kind == "column" else RowwiseParallel
    return _Even(made(input_layouts=takes, output_layouts=gives), needs_even=division.gives == "sequence")


def _placement(extent: str | None) -> Placement:
    return {"features": Shard(-1), "sequence": Shard(SEQUENCE_DIMENSION)}.get(extent or "", Replicate())


class _Even(ParallelStyle):
    """A style of torch's that refuses a sequence which it cannot divide: the parts would have other sizes than the next layer takes."""

    def __init__(self, style: ParallelStyle, *, needs_even: bool) -> None:
        super().__init__()
        self._style = style
        self._needs_even = needs_even

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self._needs_even:
            module.register_forward_pre_hook(lambda _, inputs: _check_even(inputs[0], device_mesh.size()))
        self._style.src_data_rank = self.src_data_rank
        return self._style._apply(module, device_mesh)


def _check_even(states: torch.Tensor, size: int) -> None:
    length = states.shape[SEQUENCE_DIMENSION]
    if length % size:
        message = f"a sequence of {length} positions cannot be divided over tensor ({size})"
        hint = f"pad sequences to a multiple of {size} positions, or write a tensor_plan without sequence"
        raise spec_error("train.parallel", "parallel.tensor_plan", message, hint=hint, field="train.parallel.tensor")


class _Sequence(ParallelStyle):
    """A norm over a part of the sequence: it has its parameters whole, and their gradients are added up over the parts."""

    def __init__(self, takes: Placement, gives: Placement) -> None:
        super().__init__()
        self._takes, self._gives = takes, gives

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            whole = DTensor.from_local(parameter.detach(), device_mesh, [Replicate()], run_check=False)
            module.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))
        part = [Shard(SEQUENCE_DIMENSION)]

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            if self._takes.is_replicate():
                _check_even(inputs[0], device_mesh.size())
            states = DTensor.from_local(inputs[0], device_mesh, [self._takes], run_check=False)
            return (states.redistribute(placements=part), *inputs[1:])

        def leave(_: nn.Module, inputs: tuple[Any, ...], output: DTensor) -> torch.Tensor:
            return output.redistribute(placements=[self._gives]).to_local()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


class _Gather(ParallelStyle):
    """The first input of a module is put together from parts of the sequence; it stays a DTensor, so that its gradient is added up once."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            states = DTensor.from_local(inputs[0], device_mesh, [Shard(SEQUENCE_DIMENSION)], run_check=False)
            return (states.redistribute(placements=[Replicate()]), *inputs[1:])

        module.register_forward_pre_hook(enter)
        return module


class _OwnNumbers(ParallelStyle):
    """A layer that draws random numbers for its part: others than the other parts', and the processes go on with the same ones after it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rank = device_mesh.get_local_rank()
        forward: Callable[..., torch.Tensor] = module.forward

        def forward_with_own_numbers(states: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
            if not module.training:
                return forward(states, *arguments, **options)
            generator = _generator(states.device)
            seed = int(torch.randint(2**62, (), generator=generator, device=states.device))
            after = generator.get_state()
            try:
                generator.manual_seed(seed + rank)
                return forward(states, *arguments, **options)
            finally:
                generator.set_state(after)

        module.forward = forward_with_own_numbers
        return module


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


def mixed(err: RuntimeError) -> SpecError:
    """Return the refusal of a model that uses a part of a tensor together with a whole one."""
    reason = str(err)[:300]
    message = f"the model reads the weight of a divided layer outside of its forward, or has a whole layer in a gathered module: {reason}"
    hint = "call the layer itself; name all layers of a module that the plan gathers, or gather in its layers (takes: sequence)"
    return spec_error("train.parallel", "parallel.tensor_plan", message, hint=hint, field="train.parallel.tensor")


Places = list[tuple[nn.Module, str, str]]
"""Where a parameter is used: a module, the parameter's name in it, and in the model."""


def _shared_parameters(module: nn.Module) -> list[Places]:
    places: dict[int, Places] = {}
    for prefix, layer in module.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((layer, name, f"{prefix}.{name}" if prefix else name))
    return [found for found in places.values() if len(found) > 1]


def _share_again(shared: list[Places]) -> None:
    """Let layers that shared a parameter share it again: each was given its own."""
    for first, *others in shared:
        kept = getattr(first[0], first[1])
        for layer, name, full_name in others:
            other = getattr(layer, name)
            if getattr(other, "placements", None) != getattr(kept, "placements", None):
                message = f"{first[2]} and {full_name} are one parameter, and the plan divides them differently"
                raise spec_error("train.parallel", "parallel.tensor_plan", message, hint=HINT, field="train.parallel.tensor")
            setattr(layer, name, kept)


def check_alike(parameters: Mapping[str, nn.Parameter], total: torch.Tensor, mesh: DeviceMesh) -> None:
    """Refuse a plan by which processes of a tensor group have different losses, or different gradients of what is not divided.

    All processes must call it, after a backward pass.

    Args:
        parameters: after the backward pass.
        total: the loss.
        mesh: of one dimension, the tensor group.

    Raises:
        SpecError: `parallel.tensor_plan`, on all processes.
    """
    alike = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None and _is_whole(parameter)}
    parts = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in alike.values()]
    sizes = torch.stack([total.double().abs(), *(part.double().norm() for part in parts)]).nan_to_num()
    least, most = sizes.clone(), sizes.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN, group=mesh.get_group())
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=mesh.get_group())
    wrong = (most - least > MAX_DIFFERENCE * most).to(torch.uint8)
    # Every group refuses what one of them finds: nobody waits for a process that has ended.
    dist.all_reduce(wrong, op=dist.ReduceOp.MAX)
    names = [name for name, is_wrong in zip(["the loss", *alike], wrong.tolist(), strict=True) if is_wrong]
    if names:
        message = f"the processes that share layers have different gradients of {', '.join(names[:5])}"
        if names[0] == "the loss":
            message = "the processes that share layers have different losses: one computes with a part as if it were whole"
        hint = "name the layers that work on a part (a norm between divided layers: sequence), or let the layer before give whole"
        raise spec_error("train.parallel", "parallel.tensor_plan", message, hint=hint, field="train.parallel.tensor")


def _is_whole(parameter: nn.Parameter) -> bool:
    """Return whether each process of a tensor group has the parameter, or the same shard of it."""
    if not isinstance(parameter, DTensor):
        return True
    names = parameter.device_mesh.mesh_dim_names or ()
    return TENSOR not in names or parameter.placements[names.index(TENSOR)].is_replicate()
