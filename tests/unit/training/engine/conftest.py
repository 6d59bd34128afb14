"""A bench for each test of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.unit.training.engine.loop_bench import LoopBench


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As `Gang.join` sets it: sums in another order have other bits."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def bench(tmp_path: Path) -> LoopBench:
    return LoopBench(tmp_path)


@pytest.fixture
def process_group() -> Iterator[None]:
    """A process group of this process alone: collectives and DDP run as they do under torchrun."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
