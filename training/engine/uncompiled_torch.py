"""torch's optimizers and DistributedDataParallel without torch's compiler, which they import to say what it must not trace.

`training.engine.optimizers` and `training.engine.parallel.ddp` have them. That saves 1.5 CPU seconds of a training
with two ranks, a tenth of a run of search_ranking (docs/performance.md). A model that is compiled imports the compiler itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, Literal

import torch
from torch.optim import Optimizer

COMPILER: Final = "torch._dynamo"
GRADIENT_REDUCTION: Final = "ddp_optimizer"
"""`torch._dynamo.config.optimize_ddp` as torch sets it: DistributedDataParallel reduces gradients itself, so it needs only this value."""

Kind = Literal["parameter", "step"]
"""Of a tensor in an optimizer's state: shaped as its parameter, or one float32 number."""


def unwrapped(method: Callable[..., Any]) -> Any:
    """Return a method of torch's without the wrappers that import the compiler; an optimizer's `step` needs `torch.no_grad` then."""
    return inspect.unwrap(method)


class Eager(Optimizer):
    """The methods of an optimizer that import the compiler, without it."""

    add_param_group = unwrapped(Optimizer.add_param_group)
    zero_grad = unwrapped(Optimizer.zero_grad)


@contextmanager
def compiler_options() -> Iterator[None]:
    """In this block torch reads the compiler's option for gradients without importing the compiler."""
    if COMPILER in sys.modules:
        yield
        return
    torch._dynamo = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: GRADIENT_REDUCTION))  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch._dynamo
