"""A ranker that hangs once in C code, holding the GIL, on one rank: `tests.distributed.hanging_model:HangingRanker`.

`HANG` is `<rank> <training|validating> <call>`; the file that `HANG_NOTE` names is made first, and where it exists nothing hangs.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch
from torch import nn

from tests.unit.training.runtime.hanging_stage import hang_in_c
from training.data.dataset.loader import Batch
from training.models.ranker.module import Ranker


class HangingRanker(Ranker):
    """As `ranker`, with a hang in `loss`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = {"training": 0, "validating": 0}

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        mode = "training" if module.training else "validating"
        self._calls[mode] += 1
        note = Path(os.environ["HANG_NOTE"])
        if os.environ["HANG"] == f"{os.environ['RANK']} {mode} {self._calls[mode]}" and not note.exists():
            note.touch()
            hang_in_c(ctypes.PyDLL(None))
        return super().loss(module, batch)
