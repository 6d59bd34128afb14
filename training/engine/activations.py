"""Activation checkpointing: a block keeps its inputs, and computes its activations again in the backward pass (Chen et al., 2016).

Weights, losses and gradients keep their bits: random numbers are drawn again from the state that the first computation had.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from training.errors import spec_error

logger = logging.getLogger(__name__)

Mode = Literal["none", "selective", "full"]
EVERY: Final = {"full": 1, "selective": 2}
"""Each block, or every second one. torch's policy by operators is not used: it intercepts every operator in Python."""


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a model, in its order: members of its ModuleLists and Sequentials that consist of several layers.

    Of nested containers, the members of the inner ones. A single layer is no block: it keeps its input in any case.
    """
    for child in module.children():
        inner = list(repeated_blocks(child)) if _is_container(child) or not _is_container(module) else []
        if inner:
            yield from inner
        elif _is_container(module) and next(child.children(), None) is not None:
            yield child


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)


def checkpoint_activations(blocks: Sequence[nn.Module], mode: Mode) -> int:
    """Let blocks compute their activations twice; return how many of them. To be called once, before the model is wrapped.

    A block with a batch norm is left out: its running statistics would be updated twice.

    Raises:
        SpecError: `activations.blocks`: there is no block to do this for.
    """
    if mode == "none":
        return 0
    fitting = [block for block in blocks if not _has_running_statistics(block)]
    if not fitting:
        found = (
            f"each of its {len(blocks)} blocks has a batch norm" if blocks else "it has no ModuleList or Sequential of several layers each"
        )
        message = f"activation_checkpointing is {mode}, and the model has no block for it: {found}"
        hint = "remove the key, or return the blocks from the method blocks of your class"
        raise spec_error("train.activation_checkpointing", "activations.blocks", message, hint=hint)
    chosen = fitting[:: EVERY[mode]]
    for block in chosen:
        block.forward = functools.partial(_twice, block.forward)
    logger.info("%d of %d blocks compute their activations again in the backward pass", len(chosen), len(blocks))
    return len(chosen)


def _has_running_statistics(block: nn.Module) -> bool:
    return any(isinstance(layer, _NormBase) and layer.track_running_stats for layer in block.modules())


def _twice(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    # Its first call imports torch's compiler, whose options it reads: 1.6 CPU seconds in each process.
    return checkpoint(forward, *arguments, use_reentrant=False, **options)
