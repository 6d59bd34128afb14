"""Whether trainings work on this machine's GPUs, in two minutes: python benchmarks/gpu_smoke.py > gpu.json

Prints one JSON: the device; steps a second in fp32 and bf16, and how many times the matrix products alone a step takes (`floors`); peak
memory; whether a training that was stopped and resumed ends in the same bits; an all-reduce over all GPUs by NCCL, and one of two processes
that share a GPU by gloo. Ends with 1 where something is wrong (`problems`). Without a GPU it prints `gpu.absent` and ends with 0, or with 1
if `--require-gpu` is given. `--device cpu` rehearses it: the figures mean nothing then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.unit.training.engine.loop_bench import LoopBench, Noisy, outcome, stop_after  # noqa: E402
from training.engine.devices import device_words  # noqa: E402
from training.engine.parallel.gang import Gang  # noqa: E402
from training.engine.precision import autocast  # noqa: E402
from training.errors import PreemptedError  # noqa: E402

NUM_LAYERS: Final = 4
WARM_UP_STEPS: Final = 3
RANKS_SECONDS: Final = 120.0
REDUCED_BYTES: Final = {"cuda": 256 * 2**20, "cpu": 2**20}
SIZES: Final = {"cuda": 8192, "cpu": 64}
"""Rows of a batch, and width of each layer."""
MAX_FLOORS: Final = 3.0
"""A step that takes more times the matrix products alone is a problem: its time goes elsewhere."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--require-gpu", action="store_true", help="end with 1 where there is no GPU")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return run_rank(arguments.device)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        message = f"no GPU: torch {torch.__version__} finds none (check the driver, CUDA_VISIBLE_DEVICES and torch's build)"
        print(json.dumps({"code": "gpu.absent", "skipped": message}))
        print(f"[gpu.absent] {message}", file=sys.stderr)
        return 1 if arguments.require_gpu else 0
    record = measured(arguments.device, arguments.seconds)
    print(json.dumps(record, indent=2))
    for problem in record["problems"]:
        print(f"[gpu.problem] {problem}", file=sys.stderr)
    return 1 if record["problems"] else 0


def measured(kind: str, seconds: float) -> dict[str, Any]:
    began_at = time.perf_counter()
    gang = Gang.join(use_gpus=kind == "cuda")
    num_gpus = torch.cuda.device_count() if kind == "cuda" else 0
    record: dict[str, Any] = {"device": facts(gang.device), "num_gpus": num_gpus}
    # Before the steps: an error here is cheaper to find.
    record["resume"] = {precision: resumed(gang.device, precision) for precision in ("fp32", "bf16")}
    record["steps"] = {precision: steps(gang.device, precision, seconds) for precision in ("fp32", "bf16")}
    record["all_reduce"] = ranks(kind, num_gpus) if num_gpus > 1 else {"skipped": f"{num_gpus} GPUs: NCCL needs two"}
    record["shared_gpu"] = ranks(kind, 2, visible="0")
    record["seconds"] = round(time.perf_counter() - began_at, 1)
    record["problems"] = problems_of(record, kind)
    return record


def facts(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {"words": device_words(device), "torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"memory_bytes": properties.total_memory, "capability": list(torch.cuda.get_device_capability(device))}
        found |= {"nccl": list(torch.cuda.nccl.version()), "bf16": torch.cuda.is_bf16_supported()}
    return found


def resumed(device: torch.device, precision: str) -> dict[str, Any]:
    """Return whether a training of the project's loop that is stopped after five steps and resumed ends as the undisturbed one."""
    parts: dict[str, Any] = {"gang": Gang(0, 1, device), "precision": precision}
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as stopped:
        undisturbed = outcome(LoopBench(Path(whole)).train(Noisy(), **parts))
        bench = LoopBench(Path(stopped))
        loop = stop_after(bench.loop(Noisy(), **parts), 5)
        try:
            loop.train()
        except PreemptedError:
            loop._parts.checkpoints.close()
        again = bench.train(Noisy(), **parts)
        places = sorted({tensor.device.type for tensor in again._optimizer.state().values()})
        return {"equal": outcome(again) == undisturbed, "optimizer_state_on": places}


def steps(device: torch.device, precision: str, seconds: float) -> dict[str, Any]:
    """Return steps a second of a multi-layer perceptron with the project's optimizer, the floor of a step, and the peak of memory."""
    size = SIZES[device.type]
    module = nn.Sequential(*(layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(size, size), nn.ReLU()))).to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    rows = torch.randn(size, size, device=device)
    losses: list[float] = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            loss = module(rows).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step_seconds = median_seconds(step, device, seconds)
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    floor_seconds = products_seconds(device, precision, size, seconds)
    return {
        "steps_per_second": round(1 / step_seconds, 2),
        "floors": round(step_seconds / floor_seconds, 3),
        "tflops_of_products": round(3 * NUM_LAYERS * 2 * size**3 / floor_seconds / 1e12, 3),
        "loss_falls": losses[-1] < losses[0],
        "peak_bytes": peak_bytes,
    }


def products_seconds(device: torch.device, precision: str, size: int, seconds: float) -> float:
    """Return how long the matrix products of a step take alone: for each layer one forward and two backward."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    result = torch.empty(size, size, device=device, dtype=dtype)

    def products() -> None:
        for _ in range(3 * NUM_LAYERS):
            torch.mm(left, right, out=result)

    return median_seconds(products, device, seconds / 2)


def median_seconds(work: Callable[[], None], device: torch.device, seconds: float) -> float:
    for _ in range(WARM_UP_STEPS):
        work()
    found: list[float] = []
    until = time.perf_counter() + seconds
    while not found or time.perf_counter() < until:
        synchronize(device)
        started_at = time.perf_counter()
        work()
        synchronize(device)
        found.append(time.perf_counter() - started_at)
    return statistics.median(found)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ranks(kind: str, count: int, *, visible: str | None = None) -> dict[str, Any]:
    """Run `run_rank` in as many processes under torchrun; return what the first says, or why it failed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "--max-restarts=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    if visible is not None and kind == "cuda":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        environment["CUDA_VISIBLE_DEVICES"] = first or visible
    try:
        done = subprocess.run(
            [*command, __file__, "--rank", "--device", kind],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RANKS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {RANKS_SECONDS:.0f} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not answers:
        return {"error": (done.stderr or done.stdout)[-2000:]}
    found: dict[str, Any] = json.loads(answers[-1])
    return found


def run_rank(kind: str) -> int:
    """Join as a training does, reduce a known sum, train one step by DDP; the first rank prints what came of it."""
    gang = Gang.join(use_gpus=kind == "cuda")
    cells = torch.full((REDUCED_BYTES[kind] // 4,), float(gang.rank + 1), device=gang.device)
    expected = gang.world_size * (gang.world_size + 1) / 2
    dist.all_reduce(cells)
    is_right = bool((cells == expected).all())
    synchronize(gang.device)
    started_at = time.perf_counter()
    dist.all_reduce(cells)
    synchronize(gang.device)
    seconds = time.perf_counter() - started_at
    torch.manual_seed(7)
    module = nn.Linear(8, 8).to(gang.device)
    # Kept: without the wrapper there is nothing that averages.
    wrapped = DistributedDataParallel(module)
    wrapped(torch.full((4, 8), float(gang.rank), device=gang.device)).square().mean().backward()
    own = float(sum(p.grad.double().sum() for p in module.parameters() if p.grad is not None))
    total = gang.sum(own)[0]
    if gang.is_first:
        share = 2 * (gang.world_size - 1) / gang.world_size
        answer = {
            "ranks": gang.world_size,
            "backend": dist.get_backend(),
            "right": is_right,
            "same_gradients": total == own * gang.world_size,
            "bus_gb_per_second": round(REDUCED_BYTES[kind] * share / seconds / 1e9, 3),
        }
        print(json.dumps(answer), flush=True)
    if gang.world_size > 1:
        dist.destroy_process_group()
    return 0


def problems_of(record: dict[str, Any], kind: str) -> list[str]:
    found = []
    for precision, resume in record["resume"].items():
        if not resume["equal"]:
            found.append(f"{precision}: a resumed training ends in other bits than the undisturbed one")
        if resume["optimizer_state_on"] != [kind]:
            found.append(f"{precision}: the optimizer's state is on {', '.join(resume['optimizer_state_on'])}")
    for precision, figures in record["steps"].items():
        if not figures["loss_falls"]:
            found.append(f"{precision}: the loss does not fall")
        if kind == "cuda" and figures["floors"] > MAX_FLOORS:
            found.append(f"{precision}: a step takes {figures['floors']} times its matrix products (limit {MAX_FLOORS})")
    return (
        found
        + problems_of_ranks("all_reduce", record["all_reduce"], "nccl")
        + problems_of_ranks("shared_gpu", record["shared_gpu"], "gloo")
    )


def problems_of_ranks(name: str, answer: dict[str, Any], backend: str) -> list[str]:
    if "error" in answer:
        return [f"{name}: {answer['error'].strip().splitlines()[-1]}"]
    if "skipped" in answer or (answer["right"] and answer["same_gradients"] and answer["backend"] == backend):
        return []
    return [f"{name}: wrong sum or gradients, or not by {backend}: {answer}"]


if __name__ == "__main__":
    sys.exit(main())
