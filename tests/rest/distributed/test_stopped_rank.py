"""A rank that stops without an end (SIGSTOP): the others name it, its node, the step and the limit, whatever the layout."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.distributed.launched import WAIT_SECONDS, await_condition, processes_of, rank_of, start
from tests.training_bench import Bench

pytestmark = pytest.mark.distributed

LIMIT_SECONDS = 6


@pytest.mark.parametrize("parallel", ["", "{shard: 2}"], ids=["ddp", "fsdp"])
def test_stopped_rank_is_named_with_node_step_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS", str(LIMIT_SECONDS))
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    bench = Bench(tmp_path, epochs=500, batch_size=50, processes=2, every="1s", parallel=parallel)
    process = start(bench, "stopped", "a1")
    try:
        await_condition(lambda: len(bench.checkpoints("stopped")) >= 2 or process.poll() is not None, "a checkpoint")
        os.kill(rank_of(process.pid, 1), signal.SIGSTOP)
        assert process.wait(WAIT_SECONDS) != 0
    finally:
        process.kill()
        process.wait()
    work_folder = bench.work_folder("train", "stopped")
    await_condition(lambda: processes_of(work_folder.uri) == [], "the ranks to end")
    error = work_folder.error("a1")
    assert error is not None
    assert (error["code"], error["rank"]) == ("peer.lost", 0)
    message = str(error["message"])
    assert message.startswith(f"rank 1 (node {socket.gethostname()}) is lost after step ")
    assert f"NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS = {LIMIT_SECONDS} s" in message
