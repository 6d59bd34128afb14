"""The optimizer and the wrapper of gradients without torch's compiler, as long as the model does not use it.

torch.optim and DistributedDataParallel import torch._dynamo at their first use, only to say that it must not trace them: 1.6 CPU seconds in
each rank. Here their own code runs without that. Where torch._dynamo is imported already, as by a model that calls `torch.compile`, the
calls are torch's as they are.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

COMPILER: Final = "torch._dynamo"
GRADIENT_REDUCTION: Final = "ddp_optimizer"
"""`torch._dynamo.config.optimize_ddp` as torch sets it: DistributedDataParallel reduces gradients itself, which is all that it asks for."""


class AdamW(torch.optim.AdamW):
    """torch's AdamW."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _called(Optimizer.add_param_group, self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        _called(Optimizer.zero_grad, self, set_to_none)

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            return _called(torch.optim.AdamW.step, self, closure)


class GradientReducer(DistributedDataParallel):
    """torch's DistributedDataParallel."""

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        with _compiler_options():
            super().__init__(module, **options)

    def _inside_ddp_forward(self) -> Any:
        # A generator function, which torch makes a context manager.
        return super()._inside_ddp_forward() if COMPILER in sys.modules else _forward(self)


_forward = contextmanager(inspect.unwrap(DistributedDataParallel._inside_ddp_forward))


def _called(method: Any, *arguments: Any) -> Any:
    """Call a method of torch's, without the wrappers that import the compiler."""
    return (method if COMPILER in sys.modules else _unwrapped(method))(*arguments)


# Each step asks for two of them.
_unwrapped = functools.cache(inspect.unwrap)


class _Options(ModuleType):
    """Stands for the compiler while it is asked for nothing but its option for gradients; all else imports it."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: GRADIENT_REDUCTION)

    def __getattr__(self, name: str) -> Any:
        import torch._dynamo as compiler

        return getattr(compiler, name)


@contextmanager
def _compiler_options() -> Iterator[None]:
    """Let torch read the compiler's option in this block without importing the compiler."""
    if COMPILER in sys.modules:
        yield
        return
    name = COMPILER.rpartition(".")[2]
    options = _Options(COMPILER)
    setattr(torch, name, options)
    try:
        yield
    finally:
        # An import in the block has put the module itself there.
        if vars(torch).get(name) is options:
            delattr(torch, name)
