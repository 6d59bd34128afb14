"""A checkpoint of any layout is loaded into any other: the same bits in every tensor. Real processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.training.large.checkpoint.sharded_ranks import LAYOUTS, PLACEMENTS, whole_state
from training.engine.checkpoint.catalog import opened
from training.engine.checkpoint.safetensors_export import export
from training.runtime.provenance import CHECKOUT
from training.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every layout has saved and loaded."""
    folder = tmp_path_factory.mktemp("layouts")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/plugins"}
    command = [sys.executable, "-m", "tests.unit.training.large.checkpoint.sharded_ranks", str(folder)]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "was not saved" not in done.stderr
    return folder


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_tensors_have_the_same_bits_whatever_layout_they_were_saved_in(folder: Path, source: str, target: str) -> None:
    assert json.loads((folder / "outcome.json").read_text())[f"{source}/{target}"] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_exported_file_has_the_whole_tensors_whatever_layout_they_were_saved_in(folder: Path, layout: str, tmp_path: Path) -> None:
    store = Store(str(folder / layout / "store"))
    head = store.run_ref("p", "r", "checkpoints/epoch_2").read()
    assert head is not None
    export(opened(store, head.value)[1], store.objects, tmp_path / "out", what="all", metadata={})
    found = load_file(tmp_path / "out")
    assert {name: bits(tensor) for name, tensor in found.items()} == {name: bits(tensor) for name, tensor in whole_state().items()}


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("layout", PLACEMENTS)
def test_manifest_has_every_item_once_and_less_than_a_kilobyte_for_a_tensor(folder: Path, layout: str) -> None:
    store = Store(str(folder / layout / "store"))
    head = store.run_ref("p", "r", "checkpoints/epoch_2").read()
    assert head is not None
    manifest = store.manifests.get(head.value)
    assert manifest.meta["format"] == 2
    num_items = sum(entry.size_bytes for entry in manifest.files.values())
    whole = 4 * (8 * 6 + 7 * 5 + 3 + 3 * 4 * 2 + 3) + 2 * 9 * 4 + 1030 * 1021 + 8
    assert num_items == whole, "replicas are written once"
    assert len(manifest.to_json()) < 1024 * len(manifest.meta["tensors"])
