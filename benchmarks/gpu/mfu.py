"""What each means adds to a step, from fp32 to bf16 with fused attention and compiled blocks, and a loop written by hand beside it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Final

import torch

from benchmarks.gpu.bench import Bench, ByHand, Figures
from benchmarks.gpu.language_model import LanguageModel, compiled, compiled_loss, next_token_loss, random_batch

BLOCK_STEPS: Final = 20
ROUNDS: Final = 3


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    yield {"floors": floors(bench)}
    # What counts most comes first: a part may end at its limit.
    yield from beside_by_hand(bench)
    rungs: dict[str, Figures] = {
        "fp32": {"precision": "fp32", "steps": 10},
        "tf32": {"precision": "fp32", "tf32": True},
        "bf16": {},
        "bf16, compiled": {"is_compiled": True},
        "bf16, compiled, fused attention": {"is_compiled": True, "is_fused": True},
        "the same, 32 rows": {"is_compiled": True, "is_fused": True, "rows": 32},
        "the same, not deterministic": {"is_compiled": True, "is_fused": True, "rows": 32, "is_deterministic": False},
    }
    for name, rung in rungs.items():
        yield {name: rate(bench, **rung)}


def floors(bench: Bench) -> Figures:
    """Return what the card does at most: products of bf16 matrices, and copies within its memory."""
    size, num_bytes = (8192, 2**30) if bench.is_gpu else (64, 2**20)
    left, right = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    product = bench.seconds(lambda: torch.mm(left, right), steps=20)
    cells = torch.ones(num_bytes, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(cells)
    copied = bench.seconds(lambda: target.copy_(cells), steps=10)
    return {"bf16_tflops": 2 * size**3 / product / 1e12, "copy_gb_per_second": 2 * num_bytes / copied / 1e9}


def beside_by_hand(bench: Bench) -> Iterator[Figures]:
    """Yield the rate of both, in turns: the best that the project has, and the same model in a loop of its own."""
    rows, loss = 16 if bench.is_gpu else 2, compiled_loss(bench.device)
    batch = random_batch(bench.shape, rows)
    module = compiled(LanguageModel(bench.shape), bench.device)
    ours = bench.training(module, loss=loss)
    peer = ByHand(bench, compiled(LanguageModel(bench.shape), bench.device), loss=loss)
    seconds: dict[str, list[float]] = {"ours": [], "by hand": []}
    for step in (ours.step, peer.step):
        bench.block_seconds(lambda step=step: step(batch), 5)
    for _ in range(ROUNDS):
        for name, step in (("ours", ours.step), ("by hand", peer.step)):
            seconds[name].append(bench.block_seconds(lambda step=step: step(batch), BLOCK_STEPS if bench.is_gpu else 2))
    best = {name: min(found) for name, found in seconds.items()}
    for name, found in best.items():
        yield {f"{name}: bf16, compiled, fused attention": bench.rate(found, rows, module.num_parameters)}
    yield {"ours_beside_by_hand": best["by hand"] / best["ours"]}


def rate(
    bench: Bench,
    *,
    precision: str = "bf16",
    tf32: bool = False,
    is_compiled: bool = False,
    is_fused: bool = False,
    is_deterministic: bool = True,
    rows: int = 4,
    steps: int = BLOCK_STEPS,
) -> Figures:
    # Whole attention matrices of more than four rows in fp32 are more than a card has.
    gc.collect()
    if bench.is_gpu:
        torch.cuda.empty_cache()
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.use_deterministic_algorithms(is_deterministic)
    # One out of memory is a figure too.
    try:
        module = LanguageModel(bench.shape, fused_attention=is_fused)
        loss = compiled_loss(bench.device) if is_compiled else next_token_loss
        training = bench.training(compiled(module, bench.device) if is_compiled else module, precision=precision, loss=loss)
        batch = random_batch(bench.shape, rows)
        bench.block_seconds(lambda: training.step(batch), 3)
        seconds = bench.block_seconds(lambda: training.step(batch), steps if bench.is_gpu else 2)
    except torch.OutOfMemoryError as err:
        return {"error": str(err)[:200]}
    return bench.rate(seconds, rows, module.num_parameters) | {"loss": training.losses[-1]}
