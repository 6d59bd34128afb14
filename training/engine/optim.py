"""The optimizer of a training: the schedule of the learning rate, clipping of gradients, and the state that a checkpoint holds.

It is made of the parameters that `Strategy.place` returns: after the model is placed and wrapped, since a strategy may replace them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from training.engine.optimizers import MakeMuon, OptimizerSettings, Update, blank, optimizers_of, whole_muon

MAX_GRAD_NORM: Final = 1.0
WARMUP_SHARE: Final = 0.05
FINAL_LR_SHARE: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The learning rate of each step: a linear warm-up, then `kind`."""

    learning_rate: float
    """The highest one."""
    total_steps: int
    kind: Literal["cosine", "linear", "constant"] = "cosine"
    """After the warm-up: down to a tenth by a cosine (Loshchilov and Hutter, SGDR, 2017) or by a line; or the highest one until the end."""
    warmup_steps: int | None = None
    """None: `warmup_share` of all steps."""
    warmup_share: float | None = None
    """None: `WARMUP_SHARE`."""

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warmup = max(1, self._warmup_steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.kind == "constant":
            return self.learning_rate
        share = (step - warmup) / max(1, self.total_steps - warmup)
        if self.kind == "linear":
            return self.learning_rate * (1 - (1 - FINAL_LR_SHARE) * share)
        return self.learning_rate * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * share)))

    @property
    def _warmup_steps(self) -> int:
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round(self.total_steps * (WARMUP_SHARE if self.warmup_share is None else self.warmup_share))


class ScheduledOptimizer:
    """One or two of torch's optimizers over named parameters, with the learning rate of the schedule in each step."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], schedule: Schedule, settings: OptimizerSettings, *, muon: MakeMuon = whole_muon
    ) -> None:
        self._parameters = dict(parameters)
        self._schedule = schedule
        self._optimizers = optimizers_of(self._parameters, settings, schedule.learning_rate, muon=muon)
        self._optimizer_of: dict[nn.Parameter, Update] = {
            parameter: optimizer for optimizer in self._optimizers for group in optimizer.param_groups for parameter in group["params"]
        }

    def clear_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def divide_gradients(self, factor: float) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
                if gradients:
                    torch._foreach_mul_(gradients, 1 / factor)

    def step(self, number: int) -> float:
        """Update the parameters by their gradients with the learning rate of step `number`, which is returned."""
        learning_rate = self._schedule.at(number)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()
        return learning_rate

    def allocate(self, entries: Collection[str] | None = None) -> None:
        """Make the state of each parameter that has none, as it is before the first step: a checkpoint can be read into its tensors.

        The first step has the bits that it has without.

        Args:
            entries: what the checkpoint has, named as `state` names it: a parameter that is frozen, or never had a gradient, has no entry
                there and gets no state; None: all have.
        """
        names = None if entries is None else {entry.partition("/")[2] for entry in entries}
        for name, parameter in self._parameters.items():
            optimizer = self._optimizer_of[parameter]
            if names is not None and name not in names:
                optimizer.state.pop(parameter, None)
                continue
            for key, kind in optimizer.STATE.items():
                if key not in optimizer.state[parameter]:
                    optimizer.state[parameter][key] = blank(kind, parameter)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of each parameter by `<key>/<parameter>`, the tensors themselves; nothing before the first step or `allocate`.

        A parameter that is sharded has a state that is sharded the same way.
        """
        return {
            f"{key}/{name}": value
            for name, parameter in self._parameters.items()
            for key, value in self._optimizer_of[parameter].state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }

    def largest_state(self) -> dict[str, torch.Tensor]:
        """Return tensors shaped as `state` is after the first step; their values mean nothing, and they take no memory."""
        scalar = torch.empty((), dtype=torch.float32)
        return {
            f"{key}/{name}": parameter.detach() if kind == "parameter" else scalar
            for name, parameter in self._parameters.items()
            for key, kind in self._optimizer_of[parameter].STATE.items()
            if parameter.requires_grad
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` returned: tensors of any device, those of a sharded parameter sharded as it is.

        What was read into the tensors of `state` itself is there already.
        """
        for entry, tensor in state.items():
            key, _, name = entry.partition("/")
            parameter = self._parameters[name]
            # The step too: the fused kernel reads it where the parameter is.
            self._optimizer_of[parameter].state[parameter][key] = tensor.to(parameter.device)
