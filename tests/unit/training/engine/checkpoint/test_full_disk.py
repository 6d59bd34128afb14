"""A store on a file system that is full: which rank, node and step could not be saved is named, and the checkpoint before stays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.training.engine.loop_bench import LoopBench
from training.engine.checkpoint.format import Position
from training.errors import UnavailableError
from training.store import Store

SIZE_BYTES = 8 * 2**20
NUM_CELLS = 2**20
"""Of 4 bytes: one state fits into the file system, a second one does not."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system of its own can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


def position(step: int) -> Position:
    return {"step": step, "epoch": 0, "best_epoch": 0}  # type: ignore[typeddict-item]


def test_full_disk_is_named_with_rank_node_and_step_and_the_checkpoint_before_is_resumed(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_NODE", "node-7")
    bench = LoopBench(tmp_path / "rows")
    bench.store = Store(str(small_disk / "store"))
    checkpoints = bench.checkpoints(bench.context())
    checkpoints.save({"weights": torch.full((NUM_CELLS,), 1.0)}, position(1))
    checkpoints.wait()
    for step in (2, 3):
        checkpoints.save({"weights": torch.full((NUM_CELLS,), float(step))}, position(step))
        checkpoints.wait()
    checkpoints.save({"weights": torch.full((NUM_CELLS,), 4.0)}, position(4))
    with pytest.raises(UnavailableError) as caught:
        checkpoints.wait()
    checkpoints.close()
    assert caught.value.code == "storage.full"
    assert caught.value.message.startswith("rank 0 (node node-7): the checkpoint of step 4 was not saved, as 2 before it: ")
    assert "No space left" in caught.value.message
    again = bench.checkpoints(bench.context())
    restored = again.restore(again.newest_entry())
    again.close()
    assert restored.meta["step"] == 1
    assert torch.equal(restored.state["weights"], torch.full((NUM_CELLS,), 1.0))
