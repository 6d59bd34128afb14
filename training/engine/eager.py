"""Calls of torch's optimizers and wrappers without torch's compiler, as long as the model does not use it.

torch.optim and DistributedDataParallel import torch._dynamo at their first use, only to say that it must not trace them: 1.6 CPU seconds in
each rank. Here their own code runs without that. Where torch._dynamo is imported already, as by a model that calls `torch.compile`, the
calls are torch's as they are. `training.engine.optim` and `training.engine.parallel.ddp` use it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeVar

import torch

COMPILER: Final = "torch._dynamo"
GRADIENT_REDUCTION: Final = "ddp_optimizer"
"""`torch._dynamo.config.optimize_ddp` as torch sets it: DistributedDataParallel reduces gradients itself, so it needs only this value."""

Answer = TypeVar("Answer")


def is_compiler_imported() -> bool:
    return COMPILER in sys.modules


def called(method: Callable[..., Answer], *arguments: object) -> Answer:
    """Call a method of torch's, without the wrappers that import the compiler."""
    return (method if is_compiler_imported() else _unwrapped(method))(*arguments)


# Each step reads two of them.
_unwrapped = functools.cache(inspect.unwrap)


class _Options(ModuleType):
    """Stands for the compiler while only its option for gradients is read; everything else imports it."""

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: GRADIENT_REDUCTION)

    def __getattr__(self, name: str) -> Any:
        import torch._dynamo as compiler

        return getattr(compiler, name)


@contextmanager
def compiler_options() -> Iterator[None]:
    """In this block torch reads the compiler's option without importing the compiler."""
    if is_compiler_imported():
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
