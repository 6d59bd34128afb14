"""Muon for matrices that are divided over processes: each update needs the whole matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, cast

import torch
from torch.distributed.tensor import DTensor

from training.engine.uncompiled_torch import Eager, Kind
from training.large.placements import gathered, part_of

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration (Jordan et al., Muon, 2024), as torch.optim.Muon has them."""
NUM_ITERATIONS: Final = 5
EPSILON: Final = 1e-7
RMS_OF_ADAMW: Final = 0.2
"""Liu et al., Muon is Scalable for LLM Training, 2025."""


class DividedMuon(Eager):
    """torch.optim.Muon over DTensors, with its bits.

    torch's own multiplies the parts: it rounds otherwise, and gathers in each of fifteen products. Here the momentum is gathered once, and
    every process orthogonalizes the whole matrix.
    """

    STATE: ClassVar[Mapping[str, Kind]] = {"momentum_buffer": "parameter"}

    def __init__(self, parameters: Iterable[Any], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, parameter: DTensor, learning_rate: float, momentum: float, weight_decay: float) -> None:
        gradient = cast(DTensor, parameter.grad)
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient, memory_format=torch.preserve_format)
        state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = cast(DTensor, gradient.lerp(state["momentum_buffer"], momentum))
        part = part_of(orthogonalized(gathered(update)), parameter)
        parameter.mul_(1 - learning_rate * weight_decay)
        parameter.add_(part, alpha=-learning_rate * RMS_OF_ADAMW * math.sqrt(max(parameter.shape)))


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix with the singular vectors of `matrix` and singular values near 1, bf16, by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    found = matrix.bfloat16()
    is_tall = matrix.size(0) > matrix.size(1)
    if is_tall:
        found = found.T
    found = found / found.norm().clamp(min=EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if is_tall else found
