"""Collectives on one card: a group of one rank by NCCL, two processes that share the card by gloo, and both time-outs of a gang.

NCCL refuses two ranks on one card, so what waits for another rank is shown by gloo. That NCCL's own limit ends a process is shown with one
rank: its collective waits for a kernel that only spins.

    python -m benchmarks.gpu.nccl hang                                    the process that NCCL is to end
    python -m torch.distributed.run … -m benchmarks.gpu.nccl shared DEVICE  two processes that share a card
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from benchmarks.gpu.bench import Bench, Figures
from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import COLLECTIVE_LIMIT, SLOW_WORK_LIMIT, Gang
from training.errors import PeerLostError

LIMIT_SECONDS: Final = 3.0
SLOW_LIMIT_SECONDS: Final = 6.0
SPIN_CYCLES: Final = 60 * 1_700_000_000
"""About a minute of a card."""


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    yield {"one_rank": one_rank(bench)}
    yield {"shared": shared(device)}
    if bench.is_gpu:
        yield {"hang": hang_ended()}


def one_rank(bench: Bench) -> Figures:
    """Return what a group of one rank says of itself, and the rate of a reduction, which is a copy then."""
    backend = "nccl" if bench.is_gpu else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=LIMIT_SECONDS))
    patient = dist.new_group(backend="gloo", timeout=timedelta(seconds=SLOW_LIMIT_SECONDS))
    try:
        cells = torch.full((2**26 if bench.is_gpu else 2**16,), 3.0, device=bench.device)
        seconds = bench.seconds(lambda: dist.all_reduce(cells), steps=5)
        numbers = torch.ones(1, dtype=torch.float64)
        dist.all_reduce(numbers, group=patient)
        is_right = bool((cells == 3.0).all()) and float(numbers) == 1.0
        return {"backend": dist.get_backend(), "patient": dist.get_backend(patient), "is_right": is_right, "seconds": seconds}
    finally:
        dist.destroy_process_group()


def shared(device: str) -> Figures:
    """Return what two processes of a gang say that share a card: sums, gradients, and after which time each limit ends a wait."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    limits = {COLLECTIVE_LIMIT.name: str(LIMIT_SECONDS), SLOW_WORK_LIMIT.name: str(SLOW_LIMIT_SECONDS)}
    # Of several cards, NCCL would take two.
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0" if device == "cuda" else "").partition(",")[0]
    found: Figures = {}
    for wait in ("step", "slow"):
        # The second rank leaves without a word, so torchrun's code says nothing.
        done = subprocess.run(
            [*command, "-m", "benchmarks.gpu.nccl", "shared", device, wait],
            env={**os.environ, **limits, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": card},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        for line in done.stdout.splitlines():
            found |= json.loads(line) if line.startswith("{") else {}
    return found


def run_shared(device: str, wait: str) -> None:
    gang = Gang.join(use_gpus=device == "cuda")
    cells = torch.full((1024,), float(gang.rank + 1), device=gang.device)
    dist.all_reduce(cells)
    torch.manual_seed(7)
    module = torch.nn.Linear(8, 8)
    strategy = ReplicatedModel(gang)
    strategy.place(module)
    batch = {"features_float": torch.full((4, 8), float(gang.rank)), "label": torch.zeros(4)}
    strategy.backward([batch], lambda wrapped, rows: wrapped(rows["features_float"]).square().sum(), 8)
    own = float(sum(parameter.grad.double().sum() for parameter in module.parameters() if parameter.grad is not None))
    total = gang.sum(own)[0]
    answer: Figures = {
        "backend": dist.get_backend(),
        "is_right": bool((cells == 3.0).all()),
        "same_gradients": total == own * 2,
        "gradients_on": sorted({str(parameter.grad.device.type) for parameter in module.parameters() if parameter.grad is not None}),
    }
    if not gang.is_first:
        # It is there and never comes, as a process that hangs.
        time.sleep(60)
        return
    started_at = time.perf_counter()
    try:
        if wait == "step":
            gang.gather(1)
        else:
            gang.wait_for_all()
    except PeerLostError:
        answer[f"{wait}_limit_seconds"] = time.perf_counter() - started_at
    print(json.dumps(answer), flush=True)
    # The other one is still asleep: torchrun ends it when this one has failed.
    os._exit(1)


def hang_ended() -> Figures:
    """Return how a process ends whose collective does not, and after which time from its begin on."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.nccl", "hang"], stdout=subprocess.PIPE, text=True) as process:
        # Its one line says that it is about to hang.
        next(iter(process.stdout or ()), "")
        started_at = time.perf_counter()
        try:
            code = process.wait(timeout=LIMIT_SECONDS + 25.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"is_ended": False}
    return {"is_ended": True, "code": code, "limit_seconds": LIMIT_SECONDS, "seconds": time.perf_counter() - started_at}


def hang() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=LIMIT_SECONDS))
    cells = torch.ones(2**20, device="cuda")
    dist.all_reduce(cells)
    torch.cuda.synchronize()
    print("hangs", flush=True)
    torch.cuda._sleep(SPIN_CYCLES)
    dist.all_reduce(cells)
    float(cells[0])


if __name__ == "__main__":
    if sys.argv[1] == "hang":
        hang()
    else:
        run_shared(*sys.argv[2:])
