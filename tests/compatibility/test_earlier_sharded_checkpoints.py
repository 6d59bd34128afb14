"""Checkpoints of format 2 that an earlier version wrote are read bit for bit, and resumed; see record_sharded_checkpoints.py."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.record_sharded_checkpoints import HERE, LAYOUT, ROOT, WIDTH, newest
from tests.compatibility.test_earlier_checkpoints import relocate
from tests.unit.training.engine.parallel.kill_points import train_once
from tests.unit.training.engine.parallel.ranks import run_ranks
from training.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(HERE / "sharded_checkpoints.tar.gz") as files:
        files.extractall(tmp_path, filter="data")
    found = tmp_path / "sharded/store"
    relocate(found, (ROOT / "sharded/store").as_uri())
    return found


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "sharded_checkpoints.json").read_text(encoding="utf-8"))
    return found


def test_every_tensor_of_an_earlier_checkpoint_is_read_bit_for_bit(tmp_path: Path, store: Path, recorded: dict[str, Any]) -> None:
    step, tensors = newest(Store(str(store)), tmp_path / "reading")
    assert step == recorded["step"] > 0
    assert tensors == recorded["tensors"]
    assert {name.partition("/")[0] for name in tensors} == {"module", "best", "optimizer"}


def test_training_of_two_processes_continues_from_an_earlier_checkpoint(store: Path, recorded: dict[str, Any]) -> None:
    folder = store.parent
    _, first_step = run_ranks(train_once, LAYOUT.world_size, folder / "meet", str(folder), LAYOUT, 2, None, WIDTH, False)[0]
    assert first_step == recorded["step"]
