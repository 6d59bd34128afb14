"""The optimizer: parameter groups, the schedule of the learning rate, clipping of gradients, and the state that a checkpoint holds.

It is made of the parameters that `Strategy.place` returns: after the model is placed and wrapped, since a strategy may replace them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from training.engine.eager import called

MAX_GRAD_NORM: Final = 1.0
WARMUP_SHARE: Final = 0.05
FINAL_LR_SHARE: Final = 0.1


class AdamW(torch.optim.AdamW):
    """torch's AdamW, which does not import torch's compiler (`training.engine.eager`)."""

    def add_param_group(self, param_group: dict[str, object]) -> None:
        called(Optimizer.add_param_group, self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        called(Optimizer.zero_grad, self, set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        with torch.no_grad():
            return called(torch.optim.AdamW.step, self, closure)


def parameter_groups(parameters: Mapping[str, nn.Parameter], *, weight_decay: float) -> list[dict[str, object]]:
    """Return the groups of all parameters: one, in the order of the model."""
    return [{"params": list(parameters.values()), "weight_decay": weight_decay}]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Linear warm-up over `warmup_steps`, then a cosine down to a tenth (Loshchilov and Hutter, SGDR, 2017)."""

    learning_rate: float
    """The highest one."""
    total_steps: int
    warmup_steps: int | None = None
    """None: `WARMUP_SHARE` of all steps."""

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warmup = max(1, round(self.total_steps * WARMUP_SHARE) if self.warmup_steps is None else self.warmup_steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        share = (step - warmup) / max(1, self.total_steps - warmup)
        return self.learning_rate * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * share)))


class ScheduledOptimizer:
    """AdamW over named parameters, with the learning rate of the schedule in each step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], schedule: Schedule, *, weight_decay: float) -> None:
        self._parameters = dict(parameters)
        self._schedule = schedule
        self.adamw = AdamW(parameter_groups(self._parameters, weight_decay=weight_decay), lr=schedule.learning_rate, fused=True)

    def clear_gradients(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def step(self, number: int) -> float:
        """Update the parameters by their gradients with the learning rate of step `number`, which is returned."""
        learning_rate = self._schedule.at(number)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        return learning_rate

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of each parameter by `<key>/<parameter>`; nothing before the first step."""
        return {
            f"{key}/{name}": value
            for name, parameter in self._parameters.items()
            for key, value in self.adamw.state.get(parameter, {}).items()
        }

    def largest_state(self) -> dict[str, torch.Tensor]:
        """Return tensors shaped as `state` is after the first step; their values mean nothing."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            moments = {"exp_avg": parameter, "exp_avg_sq": parameter, "step": torch.empty((), dtype=torch.float32)}
            found |= {f"{key}/{name}": value.detach() for key, value in moments.items()}
        return found

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` returned."""
        for entry, tensor in state.items():
            key, _, name = entry.partition("/")
            parameter = self._parameters[name]
            # The step too: the fused kernel reads it where the parameter is.
            self.adamw.state[parameter][key] = tensor.to(parameter.device)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float = MAX_GRAD_NORM) -> float:
    """Scale gradients down to `max_norm` where their norm is larger; return the norm before. The process must have the whole gradients."""
    return float(nn.utils.clip_grad_norm_(parameters, max_norm))
