"""The buffer of checkpoints is there, all of it, before the first save needs it."""

from __future__ import annotations

import ctypes
import mmap
import threading
import tracemalloc

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.unit.training.engine.loop_bench import LoopBench
from training.engine.checkpoint import tensors
from training.large.checkpoint.savers import Savers

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


@pytest.mark.parametrize("is_sharded", [False, True], ids=["format 1", "format 2"])
def test_a_save_uses_the_buffer_that_was_reserved_in_the_background(
    bench: LoopBench, allocations: list[tuple[str, int]], is_sharded: bool
) -> None:
    state = {"module/w": torch.arange(1000.0)}
    checkpoints = bench.checkpoints(bench.context(), savers=Savers(0, 1, HashStore()) if is_sharded else None)
    checkpoints.reserve(state)
    checkpoints.save(state, META)
    checkpoints.wait()
    checkpoints.close()
    ((thread, num_bytes),) = allocations
    assert thread.startswith("checkpoint")
    assert 4000 <= num_bytes < 4064, "of format 2, aligned"
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


def test_a_checkpoint_is_verified_block_by_block_and_read_without_a_second_copy(bench: LoopBench) -> None:
    state = {f"module/{number}": torch.rand(1 << 20) for number in range(8)}
    size = sum(tensor.nbytes for tensor in state.values())
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save(state, META)
    checkpoints.close()
    reader = bench.checkpoints(bench.context())
    tracemalloc.start()
    try:
        entry = reader.newest_entry()
        assert tracemalloc.get_traced_memory()[1] < size / 2, "one block at a time"
        tracemalloc.reset_peak()
        restored = reader.restore(entry)
        # The tensors' own memory is torch's, which is not counted.
        assert tracemalloc.get_traced_memory()[1] < size * 1.6
    finally:
        tracemalloc.stop()
    assert all(torch.equal(tensor, state[name]) for name, tensor in restored.state.items())
