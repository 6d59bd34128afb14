"""Checkpoints over every dtype of torch: what can be restored is, bit by bit; what cannot is refused before anything is written."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.unit.training.engine.loop_bench import Line, LoopBench
from training.contracts import ExitCode
from training.engine.checkpoint.format import ITEM_BYTES
from training.engine.checkpoint.tensors import DTYPES, check_savable
from training.errors import NoUsableCheckpointError, SpecError
from training.store import Manifest

ALL_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
HELD = [dtype for dtype in ALL_DTYPES if dtype in DTYPES.values()]
REFUSED = [dtype for dtype in ALL_DTYPES if dtype not in DTYPES.values()]
META = {"step": 1, "epoch": 0}


def bits(tensor: torch.Tensor) -> list[int]:
    numbers: list[int] = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    return numbers


def values_of(dtype: torch.dtype) -> torch.Tensor:
    """Return a [2, 3] tensor of a dtype whose bytes are all different; of bool, both values."""
    if dtype is torch.bool:
        return torch.tensor([[True, False, True], [False, False, True]])
    return torch.arange(1, 1 + 6 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(2, 3)


def saved_and_restored(bench: LoopBench, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save(state, META)
    checkpoints.close()
    reader = bench.checkpoints(bench.context())
    reader.close()
    return reader.restore(reader.newest_entry()).state


def test_checkpoints_hold_what_safetensors_can_hold() -> None:
    assert set(DTYPES.values()) == set(safetensors.torch._TYPES.values())
    assert {torch.bool, torch.float16, torch.int8, torch.int16} <= set(HELD)
    assert len(HELD) == 18
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEM_BYTES
    assert REFUSED


@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_tensor_of_a_dtype_that_is_held_is_restored_bit_by_bit(bench: LoopBench, dtype: torch.dtype) -> None:
    tensor = values_of(dtype)
    state = {"a": torch.ones(3, dtype=torch.uint8), "b": tensor, "c": tensor[0, 0], "d": tensor.t(), "e": tensor[:0]}
    found = saved_and_restored(bench, state)
    for name, before in state.items():
        assert (found[name].dtype, found[name].shape) == (before.dtype, before.shape)
        assert bits(found[name]) == bits(before)


def test_tensors_of_all_dtypes_fit_into_one_checkpoint(bench: LoopBench) -> None:
    state = {str(dtype): values_of(dtype) for dtype in HELD}
    found = saved_and_restored(bench, state)
    assert {name: bits(tensor) for name, tensor in found.items()} == {name: bits(tensor) for name, tensor in state.items()}


def test_conjugated_view_is_saved_with_the_values_that_it_shows(bench: LoopBench) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    found = saved_and_restored(bench, {"a": tensor.conj(), "b": tensor.conj().imag})
    assert found["a"].tolist() == [1 - 2j, 3 + 4j]
    assert found["b"].tolist() == [-2, 4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_tensor_of_another_dtype_is_refused_at_save_and_nothing_is_written(
    bench: LoopBench, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most of these dtypes cannot be filled, which is what `torch.empty` does among deterministic algorithms.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    checkpoints = bench.checkpoints(bench.context())
    with pytest.raises(SpecError) as caught:
        checkpoints.save({"good": torch.zeros(2), "module/scale": torch.empty(2, dtype=dtype)}, META)
    checkpoints.close()
    (problem,) = caught.value.problems
    assert problem.code == "checkpoint.dtype"
    assert problem.message == f"tensor module/scale has dtype {str(dtype).removeprefix('torch.')}, which a checkpoint cannot hold"
    assert caught.value.exit_code is ExitCode.BAD_SPEC
    assert bench.saved == []
    assert bench.store.bucket.list("objects") == []


def test_all_tensors_that_cannot_be_saved_are_named_at_once() -> None:
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(SpecError) as caught:
        check_savable({"a": torch.empty(1, dtype=torch.complex128), "b": sparse, "c": torch.empty(1, device="meta"), "d": torch.ones(1)})
    assert [problem.code for problem in caught.value.problems] == ["checkpoint.dtype", "checkpoint.layout", "checkpoint.layout"]
    assert ["torch.sparse_coo" in problem.message for problem in caught.value.problems] == [False, True, False]


BOOSTER = bytes(range(256)) + b"end"


def test_bytes_are_stored_as_the_tensor_of_uint8_that_they_were_in_earlier_versions_and_each_is_read_as_the_other(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save({"booster": torch.frombuffer(bytearray(BOOSTER), dtype=torch.uint8), "more": torch.ones(3, dtype=torch.uint8)}, META)
    checkpoints.save_bytes({"more": b"\1\1\1", "booster": BOOSTER}, META)
    checkpoints.close()
    assert bench.saved[0]["uri"] == bench.saved[1]["uri"], "the same manifest of the same blocks"
    restored = checkpoints.restore(checkpoints.newest_entry())
    assert restored.bytes_of("booster") == BOOSTER
    assert restored.bytes_of("more") == b"\1\1\1"
    assert bytes(restored.state["booster"].tolist()) == BOOSTER


class Wide(Line):
    """A line with a buffer of a type that no checkpoint holds."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2, dtype=torch.complex128), persistent=persistent)


class Masked(Line):
    """A line with buffers of small types."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("table", torch.tensor([1, -2, 3], dtype=torch.int16))


def test_training_that_could_not_be_saved_ends_before_its_first_step(bench: LoopBench) -> None:
    loop = bench.loop(Wide(persistent=True))
    with pytest.raises(SpecError, match="module/scale"):
        loop.train()
    loop._parts.checkpoints.close()
    assert loop.progress.step == 0
    assert bench.train(Wide(persistent=False), epochs=1).progress.step == 4


def test_training_with_a_mask_and_a_table_of_small_integers_is_resumed(bench: LoopBench) -> None:
    bench.train(Masked(), epochs=1)
    loop = bench.train(Masked(), epochs=2)
    assert [saved["step"] for saved in bench.saved] == [4, 8], "the second attempt began after step 4"
    assert loop._parts.module.get_buffer("table").dtype is torch.int16
    assert loop.best["mask"].tolist() == [True, False]


def rewrite(bench: LoopBench, change: Any) -> None:
    """Commit a checkpoint of step 2 that is the newest one with its meta changed."""
    manifest = bench.store.manifests.get(bench.saved[-1]["uri"])
    meta: dict[str, Any] = {**manifest.meta, "step": 2}
    change(meta)
    uri = bench.store.manifests.put(Manifest(kind="checkpoint", files=manifest.files, meta=meta))
    lease = bench.context().lease
    assert lease is not None
    lease.commit("checkpoint", {"uri": uri, "step": 2, "epoch": 0})


CHANGES: dict[str, Any] = {
    "dtype that this version does not know": lambda meta: meta["tensors"]["w"].update(dtype="float4_e2m1fn_x2"),
    "bytes beyond the end": lambda meta: meta["tensors"]["w"].update(offset=10**6),
    "more items than bytes": lambda meta: meta["tensors"]["w"].update(shape=[10**6]),
    "offset below 0": lambda meta: meta["tensors"]["w"].update(offset=-8),
    "shape below 0": lambda meta: meta["tensors"]["w"].update(shape=[-1]),
    "offset that is not a number": lambda meta: meta["tensors"]["w"].update(offset="8"),
    "entry without a shape": lambda meta: meta["tensors"]["w"].pop("shape"),
    "no tensors": lambda meta: meta.pop("tensors"),
    "no identity": lambda meta: meta.pop("identity"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_record_that_cannot_be_read_is_passed_over_for_the_one_before(
    bench: LoopBench, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save({"w": torch.ones(4)}, META)
    checkpoints.close()
    rewrite(bench, change)
    with caplog.at_level(logging.WARNING):
        entry = checkpoints.newest_entry()
    assert "checkpoint of step 2 is unusable, trying the one before" in caplog.text
    assert checkpoints.restore(entry).meta["step"] == 1


def test_training_with_no_record_that_can_be_read_does_not_start_from_zero(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save({"w": torch.ones(4)}, META)
    checkpoints.close()
    rewrite(bench, CHANGES["no tensors"])
    manifest = bench.store.manifests.get(bench.saved[0]["uri"])
    bench.store.bucket.delete(bench.store.objects.key(manifest.files["block-00000"].digest))
    with pytest.raises(NoUsableCheckpointError, match="none of 2 checkpoints") as caught:
        checkpoints.newest_entry()
    assert caught.value.code == "checkpoint.unusable"
