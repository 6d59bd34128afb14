"""Checkpoints of the version before engine/parallel/strategy.py and engine/checkpoint/{format,writer,reader}.py are still resumed.

`checkpoints.tar.gz` holds the stores of three trainings that were stopped, `checkpoints.json` what they came to undisturbed. Both were made
by `LoopBench` and `FamilyBench` with the code of that version.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import LoopBench, Noisy, Normalized, outcome
from tests.unit.training.models.family_bench import FamilyBench
from training.models.base import load_family
from training.store import records

HERE = Path(__file__).parent
RECORDED_AT = "file:///tmp/recorded/"


def relocate(store: Path, recorded_at: str) -> None:
    """Let the records of a store that was copied name its objects where they are now."""
    for path in [*store.glob("stages/**/*.json"), *store.glob("runs/**/*.json")]:
        key, data = path.relative_to(store).as_posix(), path.read_bytes()
        value = records.decode(key, data, uri=path.as_uri(), hint="")
        path.write_bytes(records.encode(key, json.loads(json.dumps(value).replace(recorded_at, store.as_uri()))))


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path) -> dict[str, Any]:
    """Unpack the stores below `tmp_path`; return the outcomes."""
    torch.set_num_threads(1)
    with tarfile.open(HERE / "checkpoints.tar.gz") as files:
        files.extractall(tmp_path, filter="data")
    for store in tmp_path.rglob("store"):
        relocate(store, RECORDED_AT + store.relative_to(tmp_path).as_posix())
    outcomes: dict[str, Any] = json.loads((HERE / "checkpoints.json").read_text(encoding="utf-8"))
    return outcomes


@pytest.mark.parametrize(("name", "module"), [("plain", Noisy), ("buffers", Normalized)])
def test_loop_continues_from_the_step_of_an_earlier_checkpoint(
    tmp_path: Path, recorded: dict[str, Any], name: str, module: type[nn.Module]
) -> None:
    bench = LoopBench(tmp_path / name)
    bench.num_attempts = 1
    assert bench.saved[-1]["step"] == 5
    loop = bench.train(module())
    assert [entry["done"] for entry in loop._parts.stage.__dict__["reported"]] == list(range(6, 13))
    found, expected = outcome(loop), recorded[name]
    # Other processors round otherwise.
    assert found["history"] == [pytest.approx(epoch, rel=1e-5) for epoch in expected["history"]]
    for part in ("weights", "best"):
        for tensor, values in expected[part].items():
            torch.testing.assert_close(torch.tensor(found[part][tensor]), torch.tensor(values), rtol=1e-5, atol=1e-7)


def test_trees_continue_from_the_round_of_an_earlier_checkpoint(tmp_path: Path, recorded: dict[str, Any]) -> None:
    bench = FamilyBench(tmp_path / "trees", "binary")
    bench.num_attempts = 1
    assert bench.saved[-1]["step"] == 4
    context = bench.fit_context("boosted_trees", epochs=8)
    result = load_family("boosted_trees").fit(context)
    context.checkpoints.close()
    rounds: Any = bench.tracker.logged
    assert [number for number, _losses in rounds] == [5, 6, 7, 8]
    assert result.num_steps == 8
    assert list(result.history) == [pytest.approx(entry, rel=1e-5) for entry in recorded["trees"]["history"]]
    assert hashlib.sha256(result.weights).hexdigest() == recorded["trees"]["weights_sha256"]
