"""Checkpoints that are read: what is restored, what is passed over, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.training.engine.checkpoint.saved_states import meta, state
from tests.unit.training.engine.loop_bench import LoopBench
from training.engine.checkpoint.checkpoints import Checkpoints
from training.errors import NoUsableCheckpointError, SpecError


def test_state_of_every_type_and_shape_is_read_back_bit_by_bit(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.engine.checkpoint.writer.BLOCK_BYTES", 16)
    tensors = {
        "a": torch.tensor([1.5, -0.0, float("nan")]),
        "b": torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8),
        "c": torch.tensor(7.25, dtype=torch.float64),
        "d": torch.tensor([3.0, 1e-30], dtype=torch.bfloat16),
        "e": torch.tensor([-(2**40), 5]),
        "f": torch.empty(0, 3),
        "g": torch.tensor([[2**31 - 1]], dtype=torch.int32),
        "h": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
    }
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save(tensors, meta(4))
    checkpoints.close()
    restored = bench.checkpoints(bench.context()).restore(checkpoints.newest_entry())
    assert list(restored.state) == sorted(tensors)
    for name, tensor in tensors.items():
        found = restored.state[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert found.numpy(force=True).tobytes() == tensor.contiguous().numpy().tobytes() if tensor.dtype is not torch.bfloat16 else True
        assert torch.equal(found.nan_to_num(-1), tensor.nan_to_num(-1))
    assert restored.meta == {**meta(4), "identity": {"world_size": 1, "dataset": "ab" * 32}}


def test_restored_tensors_share_no_memory(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save({"a": torch.zeros(2), "b": torch.zeros(2)}, meta(1))
    checkpoints.close()
    found = checkpoints.restore(checkpoints.newest_entry()).state
    found["a"].fill_(1)
    assert torch.equal(found["b"], torch.zeros(2))


def test_training_without_a_checkpoint_has_none_to_resume_from(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    assert checkpoints.newest_entry() == 0
    checkpoints.close()


def test_checkpoint_that_does_not_name_its_training_is_passed_over_for_the_one_before(bench: LoopBench) -> None:
    context = bench.context()
    checkpoints = bench.checkpoints(context)
    for step in (1, 2):
        checkpoints.save(state(step), meta(step))
    checkpoints.close()
    manifest = bench.store.manifests.get(bench.saved[-1]["uri"])
    nameless = replace(manifest, meta={name: value for name, value in manifest.meta.items() if name != "identity"})
    assert context.lease is not None
    context.lease.commit("checkpoint", {"uri": bench.store.manifests.put(nameless), "step": 3, "epoch": 0})

    assert checkpoints.restore(checkpoints.newest_entry()).meta["step"] == 2


def damage(bench: LoopBench, number: int) -> None:
    """Change one bit of a checkpoint's first block."""
    manifest = bench.store.manifests.get(bench.saved[number]["uri"])
    path = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(manifest.files["block-00000"].digest)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def test_damaged_checkpoint_is_passed_over_for_the_one_before(bench: LoopBench, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = bench.checkpoints(bench.context())
    for step in (1, 2, 3):
        checkpoints.save(state(step), meta(step))
    checkpoints.close()
    damage(bench, 2)
    with caplog.at_level(logging.WARNING):
        entry = checkpoints.newest_entry()
    assert "checkpoint of step 3 is unusable, trying the one before" in caplog.text
    assert checkpoints.restore(entry).meta["step"] == 2


def test_training_whose_checkpoints_are_all_damaged_does_not_start_from_zero(bench: LoopBench) -> None:
    checkpoints = bench.checkpoints(bench.context())
    for step in range(1, 8):
        checkpoints.save(state(step), meta(step))
    checkpoints.close()
    for number in range(7):
        damage(bench, number)
    with pytest.raises(NoUsableCheckpointError) as caught:
        checkpoints.newest_entry()
    assert caught.value.code == "checkpoint.unusable"
    assert f"none of 7 checkpoints of {bench.work_folder.uri}" in caught.value.message
    assert [f"step {step}:" in caught.value.message for step in (7, 6, 5, 4, 3, 2)] == [True] * 5 + [False]
    assert "force" in caught.value.hint


def save_one(bench: LoopBench, **identity: Any) -> None:
    checkpoints = bench.checkpoints(bench.context(), identity=identity)
    checkpoints.save(state(), meta(1))
    checkpoints.close()


def entry_of(bench: LoopBench, parameters: dict[str, Any], **identity: Any) -> int:
    checkpoints: Checkpoints = bench.checkpoints(bench.context(**parameters), identity=identity)
    checkpoints.close()
    return checkpoints.newest_entry()


@pytest.mark.parametrize(
    ("parameters", "identity"),
    [
        ({}, {"world_size": 3, "dataset": "d"}),
        ({}, {"world_size": 2, "dataset": "e"}),
        ({"elastic": True}, {"world_size": 3, "dataset": "e"}),
    ],
    ids=["other world size", "other dataset", "elastic, other dataset"],
)
def test_checkpoint_of_another_training_is_refused(bench: LoopBench, parameters: dict[str, Any], identity: dict[str, Any]) -> None:
    save_one(bench, world_size=2, dataset="d")
    with pytest.raises(SpecError) as caught:
        entry_of(bench, parameters, **identity)
    (problem,) = caught.value.problems
    assert problem.code == "checkpoint.mismatch"
    assert "{'world_size': 2, 'dataset': 'd'}" in problem.message or "{'dataset': 'd', 'world_size': 2}" in problem.message
    assert str(identity) in problem.message
    assert "force" in problem.hint


@pytest.mark.parametrize("parameters", [{"elastic": True}, {}])
def test_elastic_training_alone_continues_with_another_number_of_processes(bench: LoopBench, parameters: dict[str, Any]) -> None:
    save_one(bench, world_size=2, dataset="d")
    assert entry_of(bench, parameters, world_size=2, dataset="d") == 2
    if parameters:
        assert entry_of(bench, parameters, world_size=1, dataset="d") == 2
