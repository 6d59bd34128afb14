"""A large ranker whose processes write blocks to a store of a given speed: `tests.distributed.slow_store:SlowStoreRanker`."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from torch import nn

from benchmarks.large_ranker import LargeRanker
from training.models.torch_family import TorchArchitecture
from training.store.objects import Objects

BYTES_PER_SECOND: Final = "SLOW_STORE_BYTES_PER_SECOND"
"""Of each process."""


class SlowStoreRanker(LargeRanker):
    """Slows down the store of its process when the module is built."""

    def build(self, architecture: TorchArchitecture) -> nn.Module:
        limit_store(float(os.environ[BYTES_PER_SECOND]))
        return super().build(architecture)


def limit_store(bytes_per_second: float) -> None:
    """Let every block take the time that a store of this speed takes."""
    original = Objects.put_block
    if original.__name__ == "slow_put_block":
        return

    def slow_put_block(store: Objects, data: memoryview) -> Any:
        time.sleep(len(data) / bytes_per_second)
        return original(store, data)

    Objects.put_block = slow_put_block  # type: ignore[method-assign]
