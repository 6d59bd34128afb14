"""The buffer of checkpoints is there, all of it, before the first save needs it."""

from __future__ import annotations

import ctypes
import mmap
import threading

import pytest
import torch

from tests.unit.training.engine.loop_bench import LoopBench
from training.engine.checkpoint import tensors

META = {"step": 1, "epoch": 0}


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Thread and size of each buffer that is allocated."""
    found: list[tuple[str, int]] = []
    allocate = tensors._allocated

    def noted(num_bytes: int) -> torch.Tensor:
        found.append((threading.current_thread().name, num_bytes))
        return allocate(num_bytes)

    monkeypatch.setattr(tensors, "_allocated", noted)
    return found


@pytest.mark.slow
def test_a_training_allocates_one_buffer_and_not_in_its_own_thread(bench: LoopBench, allocations: list[tuple[str, int]]) -> None:
    bench.train(epochs=2)
    ((thread, num_bytes),) = allocations
    assert thread.startswith("checkpoint")
    assert num_bytes > 0


def test_a_save_uses_the_buffer_that_was_reserved(bench: LoopBench, allocations: list[tuple[str, int]]) -> None:
    state = {"module/w": torch.arange(1000.0)}
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.reserve(state)
    checkpoints.save(state, META)
    checkpoints.close()
    assert [num_bytes for _, num_bytes in allocations] == [4000]
    reader = bench.checkpoints(bench.context())
    restored = reader.restore(reader.newest_entry())
    assert torch.equal(restored.state["module/w"], state["module/w"])


def test_a_state_larger_than_reserved_is_saved(bench: LoopBench, allocations: list[tuple[str, int]]) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.reserve({"module/w": torch.zeros(10)})
    checkpoints.save({"module/w": torch.ones(1000)}, META)
    checkpoints.close()
    assert [num_bytes for _, num_bytes in allocations] == [40, 4000]


def test_the_pages_of_a_new_buffer_are_in_memory() -> None:
    num_pages = 64
    buffer = tensors._allocated((num_pages + 2) * mmap.PAGESIZE)
    first_page = -(-buffer.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    found = (ctypes.c_ubyte * num_pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(first_page), ctypes.c_size_t(num_pages * mmap.PAGESIZE), found) == 0
    assert all(page & 1 for page in found)
