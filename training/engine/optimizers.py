"""torch's optimizers as the loop uses them: without torch's compiler (`uncompiled_torch`), and with a state that can be made ahead.

Each class names the tensors that it keeps of a parameter. `blank` makes them before the first step, which then has the bits that it has
without them: a checkpoint is read into tensors that are already there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

import torch
from torch import nn

from training.engine.uncompiled_torch import Eager, Kind, unwrapped
from training.errors import spec_error

SGD_MOMENTUM: Final = 0.9
MUON_MOMENTUM: Final = 0.95


class Update(Protocol):
    """A torch optimizer and what it keeps."""

    STATE: ClassVar[Mapping[str, Kind]]
    param_groups: list[dict[str, Any]]
    state: Any

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self, closure: Callable[[], float] | None = None) -> Any: ...


class AdamW(Eager, torch.optim.AdamW):
    """Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019."""

    STATE: ClassVar[Mapping[str, Kind]] = {"step": "step", "exp_avg": "parameter", "exp_avg_sq": "parameter"}
    step = torch.no_grad()(unwrapped(torch.optim.AdamW.step))


class SGD(Eager, torch.optim.SGD):
    """Gradient descent with momentum; the weight decay is added to the gradient."""

    STATE: ClassVar[Mapping[str, Kind]] = {"momentum_buffer": "parameter"}
    step = torch.no_grad()(unwrapped(torch.optim.SGD.step))


class Muon(Eager, torch.optim.Muon):
    """Momentum, orthogonalized by five Newton-Schulz iterations in bf16 (Jordan et al., Muon, 2024)."""

    STATE: ClassVar[Mapping[str, Kind]] = {"momentum_buffer": "parameter"}
    step = torch.no_grad()(unwrapped(torch.optim.Muon.step))


class MakeMuon(Protocol):
    """Makes the optimizer of the matrices that muon updates."""

    def __call__(self, parameters: Iterable[Any], *, lr: float, momentum: float, weight_decay: float) -> Update: ...


def whole_muon(parameters: Iterable[Any], *, lr: float, momentum: float, weight_decay: float) -> Update:
    """Return muon for matrices that this process has whole."""
    # The update is as large as one of AdamW: one learning rate fits both (Liu et al., Muon is Scalable for LLM Training, 2025).
    return Muon(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")


def blank(kind: Kind, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of zeros for an optimizer's state: where the parameter is, and sharded as it is."""
    if kind == "parameter":
        return torch.zeros_like(parameter.detach(), memory_format=torch.preserve_format)
    return torch.zeros((), dtype=torch.float32, device=parameter.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """Settings of the optimizer of a training, besides the learning rate."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    weight_decay: float = 0.0
    momentum: float | None = None
    """Of sgd and muon; None: `SGD_MOMENTUM`, `MUON_MOMENTUM`."""
    muon: frozenset[str] = frozenset()
    """Names of the parameters that muon updates; AdamW updates the others."""


def optimizers_of(
    parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings, learning_rate: float, *, muon: MakeMuon
) -> list[Update]:
    """Return the optimizers that update the parameters, each parameter in one of them; the first one is that of `train.optimizer`.

    Args:
        muon: for matrices as the strategy places them (`Strategy.muon`).
    """
    decay = settings.weight_decay
    if settings.name == "sgd":
        # Not fused: torch has no such kernel for sharded parameters.
        momentum = SGD_MOMENTUM if settings.momentum is None else settings.momentum
        return [SGD(_groups(parameters.values()), lr=learning_rate, momentum=momentum, weight_decay=decay, foreach=True)]
    if settings.name == "adamw":
        return [AdamW(_groups(parameters.values()), lr=learning_rate, weight_decay=decay, fused=True)]
    matrices = [parameter for name, parameter in parameters.items() if name in settings.muon]
    others = [parameter for name, parameter in parameters.items() if name not in settings.muon]
    momentum = MUON_MOMENTUM if settings.momentum is None else settings.momentum
    found: list[Update] = []
    # A process of a large model may have parameters of one kind only.
    if matrices:
        found.append(muon(_groups(matrices), lr=learning_rate, momentum=momentum, weight_decay=decay))
    if others:
        found.append(AdamW(_groups(others), lr=learning_rate, weight_decay=decay, fused=True))
    return found


def _groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return one group of parameters for each mesh that they are sharded over, in the order of the model: a kernel takes no two at once."""
    by_mesh: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": members} for members in by_mesh.values()]


def hidden_matrices(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that muon is meant for: the matrices of hidden layers, by shape and type of their module.

    These are the weights of `nn.Linear` and the projections of `nn.MultiheadAttention`. Not among them: the last `nn.Linear` of the module,
    which is taken for the output head; a weight that is also that of an embedding; convolutions, whose weights are no matrices; parameters
    of a module's own, which may be anything.
    """
    modules = list(module.modules())
    linears = [layer.weight for layer in modules if isinstance(layer, nn.Linear)]
    kept = {id(layer.weight) for layer in modules if isinstance(layer, nn.Embedding | nn.EmbeddingBag)} | {
        id(weight) for weight in linears[-1:]
    }
    projections = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    attention = [getattr(layer, name) for layer in modules if isinstance(layer, nn.MultiheadAttention) for name in projections]
    meant = {id(weight) for weight in [*linears, *attention] if weight is not None} - kept
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in meant and parameter.ndim == 2)


def check_matrices(module: nn.Module, names: Collection[str]) -> frozenset[str]:
    """Return the names of the parameters that muon updates, if it can.

    Raises:
        SpecError: `optimizer.muon`: there are none, or one is not a 2-D parameter of the module.
    """
    parameters = dict(module.named_parameters())
    wrong = next((name for name in sorted(names) if name not in parameters or parameters[name].ndim != 2), None)
    if wrong is not None:
        found = f"shape {list(parameters[wrong].shape)}" if wrong in parameters else "no parameter of this name"
        message = f"muon_parameters names {wrong} ({found}); muon updates 2-D parameters"
        hint = "return names of 2-D parameters from muon_parameters of the class"
        raise spec_error("train.optimizer", "optimizer.muon", message, hint=hint, field="train.optimizer")
    if not names:
        message = "the module has no matrix of a hidden layer for muon: AdamW would update every parameter"
        hint = "set optimizer: adamw, or return names of 2-D parameters from muon_parameters of the class"
        raise spec_error("train.optimizer", "optimizer.muon", message, hint=hint, field="train.optimizer")
    return frozenset(names)
