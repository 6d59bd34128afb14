"""The loop's optimizer and wrapper of gradients have torch's bits, without torch's compiler, and with it for models that are compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.runtime.provenance import CHECKOUT

TRAINS = """
import hashlib, json, sys
import torch
import torch.distributed as dist
from torch import nn

kind, when, name = sys.argv[1:]
graphs = []


def backend(graph, _inputs):
    graphs.append(graph)
    return graph.forward


if kind == "ours":
    from training.engine import optimizers
    from training.engine.parallel.ddp import GradientReducer
else:
    from torch.nn.parallel import DistributedDataParallel as GradientReducer
    from torch import optim as optimizers


class Net(nn.Module):
    \"\"\"torch compiles no module of its own.\"\"\"

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, cells):
        return self.layers(cells)


class Late(nn.Module):
    \"\"\"Imports torch's compiler in its third call, within the wrapper's own forward.\"\"\"

    def __init__(self):
        super().__init__()
        self.inner, self.calls = Net(nn.Linear(8, 1)), 0

    def forward(self, cells):
        self.calls += 1
        if self.calls == 3:
            self.inner.compile(backend=backend)
        return self.inner(cells)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(7)
module = Net(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), Late() if when == "in a step" else nn.Linear(8, 1))
if when == "before":
    module.compile(backend=backend)
options = {"AdamW": {"fused": True}, "SGD": {"foreach": True, "momentum": 0.9}, "Muon": {}}[name]
updated = [parameter for parameter in module.parameters() if name != "Muon" or parameter.ndim == 2]
optimizer = getattr(optimizers, name)(updated, lr=1e-2, weight_decay=0.1, **options)
wrapped = GradientReducer(module, gradient_as_bucket_view=True)
for step in range(8):
    torch.manual_seed(step)
    optimizer.zero_grad(set_to_none=True)
    wrapped(torch.randn(5, 4)).square().sum().backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
imported = [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
moments = [value for parameter in module.parameters() for _, value in sorted(optimizer.state[parameter].items())]
tensors = [*module.state_dict().values(), *moments]
digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()
print(json.dumps({"digest": digest, "imported": imported, "graphs": len(graphs), "is_torchs": "_Options" != type(torch._dynamo).__name__}))
# Its threads must not outlive the interpreter: an abort once in many runs.
dist.destroy_process_group()
"""


def trained(folder: Path, kind: str, compiled: str, optimizer: str = "AdamW") -> dict[str, Any]:
    """Train in a new process; return the digest of weights and moments, what it imported, and how much was compiled."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}
    # A file: torch compiles no function of a program in an argument.
    (program := folder / "trains.py").write_text(TRAINS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program), kind, compiled, optimizer], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert facts["is_torchs"]
    return facts


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Muon"])
def test_the_bits_are_torchs_and_its_compiler_is_not_imported(tmp_path: Path, optimizer: str) -> None:
    ours, torchs = trained(tmp_path, "ours", "never", optimizer), trained(tmp_path, "torch", "never", optimizer)
    assert ours["digest"] == torchs["digest"]
    assert ours["imported"] == []
    # Where this no longer holds, the module has no purpose.
    assert "torch._dynamo" in torchs["imported"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "in a step"])
def test_a_compiled_model_is_compiled_and_has_the_bits_of_torchs_own_classes(tmp_path: Path, when: str) -> None:
    ours, torchs = trained(tmp_path, "ours", when), trained(tmp_path, "torch", when)
    assert ours == torchs
    assert ours["graphs"] > 0
