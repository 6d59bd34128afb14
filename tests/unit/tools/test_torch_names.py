"""Names of torch that another version lacks: found in its sources, without running it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools.torch_names import Torch, absent, sources_of

OLD = {
    "torch/__init__.py": "from torch._C import *",
    "torch/_C/__init__.pyi": "def empty(size): ...",
    "torch/optim/__init__.py": "from torch.optim.adamw import AdamW",
    "torch/optim/adamw.py": "class AdamW:\n    def step(self, closure): ...",
}
NEW = {**OLD, "torch/optim/muon.py": "class Muon:\n    def step(self, closure, *, nesterov): self._groups = []"}


def found(text: str) -> list[str]:
    return list(absent({"ours.py": text}, Torch(OLD), Torch(NEW)))


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.empty(3)",
        "from torch import optim\noptim.AdamW",
        "from torch.optim import AdamW as Adam\nAdam(3).step(closure=1)",
        "import numpy\nimport torch\ntorch.empty(numpy._groups)",
    ],
)
def test_name_that_both_versions_have_is_not_reported(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch\n\ntorch.optim.Muon", "ours.py:3: torch.optim.Muon"),
        ("from torch.optim import Muon", "ours.py:1: torch.optim.Muon"),
        ("from torch import optim as o\no.Muon.step", "ours.py:2: torch.optim.Muon.step"),
        ("import torch\ndef read(optimizer):\n    return optimizer._groups", "ours.py:3: ._groups"),
        ("import torch\ndef step(optimizer):\n    optimizer.step(nesterov=True)", "ours.py:3: .nesterov"),
    ],
)
def test_name_that_came_later_is_reported_with_its_place(text: str, name: str) -> None:
    assert name in found(text)


def test_word_of_our_own_is_not_taken_for_torchs() -> None:
    assert found("import torch\nclass One:\n    nesterov: bool\nOne().nesterov") == []


def test_file_that_does_not_use_torch_is_left_out() -> None:
    assert found("optimizer._groups") == []


def test_sources_are_those_of_a_wheel_as_of_a_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "torch-1.whl", "w") as archive:
        for name, text in {**OLD, "torch/lib/torch.so": "binary"}.items():
            archive.writestr(name, text)
    with zipfile.ZipFile(tmp_path / "torch-1.whl") as archive:
        archive.extractall(tmp_path / "folder")
    assert sources_of(tmp_path / "torch-1.whl") == sources_of(tmp_path / "folder") == OLD
