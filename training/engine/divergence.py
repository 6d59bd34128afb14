"""Stops a training that cannot come to anything, before the optimizer takes the step."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

from training.errors import DivergedError
from training.format import figure

EXPLOSION_FACTOR: Final = 1e3
EXPLOSION_STEPS: Final = 20
MEMORY_STEPS: Final = 100


class DivergenceGuard:
    """Watches one rank's loss and the gang's gradient norm."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=MEMORY_STEPS)
        self._norms: deque[float] = deque(maxlen=5)
        self._exploded_steps = 0

    def check(self, step: int, loss: float, grad_norm: float) -> None:
        """Look at a step after its gradients are summed and before the optimizer uses them.

        The gradient norm is the same on all ranks, so all of them stop at the same step.

        Raises:
            DivergedError: `loss.not_finite`, or `loss.exploded` (20 consecutive steps above 1,000 times the median).
        """
        norms = [round(norm, 6) for norm in self._norms]
        if not math.isfinite(grad_norm) or not math.isfinite(loss):
            raise DivergedError(
                "loss.not_finite",
                f"step {step}: loss {loss}, gradient norm {grad_norm}; gradient norms before: {norms}",
                hint="lower train.learning_rate, or look for values that the transforms do not tame; the last checkpoint is kept",
            )
        self._norms.append(grad_norm)
        median = statistics.median(self._losses) if len(self._losses) == MEMORY_STEPS else math.inf
        self._exploded_steps = self._exploded_steps + 1 if loss > EXPLOSION_FACTOR * max(median, 1e-12) else 0
        if self._exploded_steps >= EXPLOSION_STEPS:
            raise DivergedError(
                "loss.exploded",
                f"step {step}: loss {figure(loss)} is over {EXPLOSION_FACTOR:.0f} times the median {figure(median)}, "
                f"{EXPLOSION_STEPS} consecutive steps",
                hint="lower train.learning_rate; the last checkpoint is kept",
            )
        if not self._exploded_steps:
            self._losses.append(loss)
