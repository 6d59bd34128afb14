"""Compression of the gradients that data parallel processes exchange, by torch's communication hooks.

`fp16` and `bf16` halve the bytes; PowerSGD sends two thin matrices for each matrix, and adds what that leaves out to the next step's
gradient (Vogels et al., PowerSGD, 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from training.errors import spec_error

POWERSGD_RANK: Final = 4
UNCOMPRESSED_STEPS: Final = 10
"""Before PowerSGD begins, at the start and after each resume: torch needs two, and the first gradients are the largest."""
EPSILON: Final = 1e-8
"""Keeps the matrices finite where a gradient is zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """`train.gradient_compression` and what belongs to it."""

    kind: Literal["fp16", "bf16", "powersgd"]
    rank: int = POWERSGD_RANK
    """Columns of PowerSGD's matrices."""

    def register_hook(self, wrapped: DistributedDataParallel) -> None:
        """Let a wrapped model exchange compressed gradients. To be called once, before its first step.

        Raises:
            SpecError: `compression.unsupported`: the gang's backend cannot send the type.
        """
        if self.kind == "powersgd":
            state = PowerSGDState(
                process_group=None,
                matrix_approximation_rank=self.rank,
                start_powerSGD_iter=UNCOMPRESSED_STEPS,
                orthogonalization_epsilon=EPSILON,
            )
            wrapped.register_comm_hook(state, powerSGD_hook)
            return
        if self.kind == "bf16" and dist.get_backend() != "nccl":
            message = f"gradient_compression bf16 needs NCCL: {dist.get_backend()}, which processes without GPUs use, adds up no bf16"
            raise spec_error(
                "train.gradient_compression", "compression.unsupported", message, hint="set gradient_compression to fp16 or powersgd"
            )
        wrapped.register_comm_hook(None, fp16_compress_hook if self.kind == "fp16" else bf16_compress_hook)
