"""A small ranker, whose step is many short kernels: one by one, and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu import rankers
from benchmarks.gpu.bench import Bench, Figures


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    rows, steps = (4096, 100) if bench.is_gpu else (64, 5)
    batch = rankers.batch_of(rows)
    seconds = {}
    for name in ("eager", "default", "reduce-overhead"):
        module = rankers.ranker(is_large=bench.is_gpu)
        if name != "eager":
            # A rehearsal traces it and compiles nothing.
            module.compile(**({"mode": name} if bench.is_gpu else {"backend": "eager"}))
        training = bench.training(module, loss=rankers.loss)
        bench.block_seconds(lambda training=training: training.step(batch), 10)
        seconds[name] = bench.block_seconds(lambda training=training: training.step(batch), steps)
        yield {f"{name}_step_seconds": seconds[name], f"{name}_loss": training.losses[-1]}
    yield {"rows_per_second": rows / min(seconds.values()), "graphs_beside_eager": seconds["eager"] / seconds["reduce-overhead"]}
