"""Runs a function in several processes of one gang, on gloo; each is forked from a server that has imported torch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.engine.parallel.gang import Gang

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "training.engine.parallel.gang"])
LIMIT = timedelta(minutes=5)


def run_ranks(function: Callable[..., Any], world_size: int, folder: Path, *arguments: object) -> list[Any]:
    """Return what `function(gang, *arguments)` returned in each of `world_size` processes.

    Args:
        function: of a module that the processes can import.
        folder: for the file through which the processes find each other; a new one for each call.
        arguments: and results are pickled: numbers, texts, lists; no tensors.

    Raises:
        AssertionError: a process ended with an error, or without an answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    members = []
    for rank in range(world_size):
        answers, ours = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_member, args=(ours, function, rank, world_size, str(folder / "meeting"), arguments))
        process.start()
        ours.close()
        members.append((process, answers))
    found = []
    try:
        for rank, (_, answers) in enumerate(members):
            try:
                is_error, answer = answers.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} ended without an answer") from None
            assert not is_error, f"rank {rank}: {answer}"
            found.append(answer)
    finally:
        for process, _ in members:
            if len(found) < world_size:
                process.kill()
            process.join()
    return found


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
        answers.send((True, traceback.format_exc()))
        raise
    answers.send((False, answer))
    dist.destroy_process_group()
