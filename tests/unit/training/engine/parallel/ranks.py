"""Runs a function in several processes of one gang, on gloo; each is forked from a server that has imported torch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.engine.parallel.gang import Gang

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = (
    "torch.distributed.tensor.parallel",
    "tests.unit.training.engine.loop_bench",
    "training.engine.checkpoint.resharding",
    "training.large.checkpoint.sharded_writer",
    "training.large.sharded",
)
"""Imported once, by the server that processes are forked from."""
CONTEXT.set_forkserver_preload(list(PRELOADED))
LIMIT = timedelta(minutes=5)
LAUNCHER_SECONDS = 30.0
"""After the first death, until the others are killed."""


@dataclass(frozen=True)
class Ended:
    """How a process ended without an answer."""

    words: str
    """The traceback, or that there was none."""


def run_ranks(function: Callable[..., Any], world_size: int, folder: Path, *arguments: object) -> list[Any]:
    """Return what `function(gang, *arguments)` returned in each of `world_size` processes.

    Args:
        function: of a module that the processes can import.
        folder: for the file through which the processes find each other; a new one for each call.
        arguments: and results are pickled: numbers, texts, lists; no tensors.

    Raises:
        AssertionError: a process ended with an error, or without an answer.
    """
    found = run_mortal_ranks(function, world_size, folder, *arguments)
    for rank, answer in enumerate(found):
        assert not isinstance(answer, Ended), f"rank {rank}: {answer.words}"
    return found


def run_mortal_ranks(function: Callable[..., Any], world_size: int, folder: Path, *arguments: object) -> list[Any]:
    """As `run_ranks`, for processes of which some are expected to end early: their answer is an `Ended`."""
    folder.mkdir(parents=True, exist_ok=True)
    members = []
    for rank in range(world_size):
        answers, ours = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_member, args=(ours, function, rank, world_size, str(folder / "meeting"), arguments))
        process.start()
        ours.close()
        members.append((process, answers))
    found: dict[int, Any] = {}
    waiting = {answers: rank for rank, (_, answers) in enumerate(members)}
    try:
        while waiting:
            # A launcher ends the others soon after the first death: a rank may wait without limit for one that is gone.
            limit_seconds = LAUNCHER_SECONDS if any(isinstance(answer, Ended) for answer in found.values()) else None
            ready = multiprocessing.connection.wait(list(waiting), limit_seconds)
            if not ready:
                for rank in waiting.values():
                    members[rank][0].kill()
            for answers in ready:
                rank = waiting.pop(answers)
                try:
                    found[rank] = answers.recv()
                except EOFError:
                    found[rank] = Ended("it ended without an answer")
    finally:
        for process, _ in members:
            process.join(LAUNCHER_SECONDS if len(found) == world_size else 0)
            process.kill()
            process.join()
    return [found[rank] for rank in range(world_size)]


def _member(
    answers: multiprocessing.connection.Connection,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    meeting: str,
    arguments: tuple[object, ...],
) -> None:
    try:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        # Only this machine's own address: others may not be reachable.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", store=dist.FileStore(meeting, world_size), rank=rank, world_size=world_size, timeout=LIMIT)
        gang = Gang(rank, world_size, torch.device("cpu"), dist.new_group(backend="gloo", timeout=LIMIT) if world_size > 1 else None)
        answer = function(gang, *arguments)
    except BaseException:
        answers.send(Ended(traceback.format_exc()))
        raise
    answers.send(answer)
    dist.destroy_process_group()
