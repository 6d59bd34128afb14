"""A rank whose memory is used up says so, with its step; the other one loses it."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from tests.unit.training.engine.loop_bench import Line, LoopBench
from tests.unit.training.engine.parallel.ranks import run_ranks
from training.contracts import ExitCode
from training.data.dataset.loader import Batch
from training.engine.parallel.gang import Gang
from training.errors import NightshiftError
from training.models.strategy_choice import strategy_for

MEBIBYTE = 2**20
STEP = 3


class Greedy(Line):
    """Allocates 1 GiB in one forward pass."""

    def __init__(self, *, is_greedy: bool) -> None:
        super().__init__()
        self._is_greedy = is_greedy
        self._num_calls = 0

    def forward(self, batch: Batch) -> torch.Tensor:
        self._num_calls += 1
        if self._is_greedy and self._num_calls == STEP:
            torch.empty(1024 * MEBIBYTE, dtype=torch.uint8)
        return super().forward(batch)


def train(gang: Gang, folder: str) -> tuple[str, int, str]:
    """Return code, exit code and message of the training's error; rank 1 may have 256 MiB more than it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    if gang.rank == 1:
        limit = pages * resource.getpagesize() + 256 * MEBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bench = LoopBench(Path(folder) / str(gang.rank))
    strategy = strategy_for(gang, precision="fp32")
    loop = bench.loop(Greedy(is_greedy=gang.rank == 1), stage=bench.context(rank=gang.rank), strategy=strategy)
    try:
        loop.train()
    except NightshiftError as err:
        return err.code, int(err.exit_code), err.message
    finally:
        loop._parts.checkpoints.close()
    return "", 0, ""


def test_rank_that_runs_out_of_memory_is_named_with_its_step_and_what_it_wanted(tmp_path: Path) -> None:
    found = run_ranks(train, 2, tmp_path / "meet", str(tmp_path))
    code, exit_code, message = found[1]
    assert (code, exit_code) == ("train.oom", int(ExitCode.OUT_OF_MEMORY))
    assert message.startswith(f"rank 1: out of memory on cpu in step {STEP}: ")
    assert f"{1024 * MEBIBYTE} bytes" in message
    assert found[0][0] == "peer.lost"
    assert f"after step {STEP - 1}" in found[0][2]
