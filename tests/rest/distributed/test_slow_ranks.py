"""One rank is slower between steps than a collective may take: the training goes on, and ends in the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.distributed

TORCHRUN = ("-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0")
WAIT_SECONDS = 300.0
COLLECTIVE_SECONDS = 5.0
SLOW_SECONDS = COLLECTIVE_SECONDS + 2


def train(folder: Path, last_epoch: int, *slow: str, collective_seconds: float = COLLECTIVE_SECONDS) -> dict[str, Any]:
    """Train two ranks until `last_epoch` of three; return what rank 0 found."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS": str(collective_seconds)}
    command = [sys.executable, *TORCHRUN, "-m", "tests.distributed.slow_ranks", str(folder), str(last_epoch), str(SLOW_SECONDS), *slow]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    outcome: dict[str, Any] = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    return outcome


def test_late_rank_slow_validation_upload_and_restore_outlast_the_collective_time_out_and_change_no_bit(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "undisturbed" / "a1", 3, collective_seconds=120)
    slow = train(tmp_path / "slow" / "a1", 2, "join", "validation", "upload")
    resumed = train(tmp_path / "slow" / "a2", 3, "restore")
    assert resumed["steps"][0] == slow["steps"][-1] + 1, "the second attempt began where the first one ended"
    assert slow["validation"] == undisturbed["validation"][:2]
    assert resumed["weights"] == undisturbed["weights"]
    assert resumed["validation"] == undisturbed["validation"], "in all bits, though the ranks came in another order"
    assert undisturbed["validation"] == pytest.approx(undisturbed["alone"], rel=1e-6), "as one rank alone, but for the order of sums"
