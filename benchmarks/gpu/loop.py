"""The loop that trains in production, with a transformer of 354 million parameters: its rate, and what the card does meanwhile."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

from benchmarks.gpu.bench import Bench, ByHand, Figures
from benchmarks.gpu.language_model import LanguageModel, compiled, compiled_loss, random_batch, walks
from benchmarks.gpu.trainings import EnoughError, TimedLoader, Training, write_tokens
from training.engine.tracking.nvml import Nvml
from training.installation import GPUS

WARM_UP_STEPS: Final = 10
SAMPLE_SECONDS: Final = 0.1


class Utilization:
    """Samples of NVML at 10 Hz: the share of its last period in which any kernel ran."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        nvml = Nvml(GPUS.value())
        while not self._done.wait(SAMPLE_SECONDS):
            self.samples += [use.utilization_pct for use in nvml.uses()[:1]]


class Watch:
    """Times of the steps of a loop after its first ones, until enough have been seen."""

    def __init__(self, bench: Bench, loader: TimedLoader, use: Utilization, *, seconds: float) -> None:
        self._bench, self._loader, self._use, self._seconds = bench, loader, use, seconds
        self.times: list[float] = []
        self.wait_seconds = 0.0

    def on_step(self, number: int) -> None:
        if number < WARM_UP_STEPS:
            return
        now = time.perf_counter()
        if not self.times:
            # What was compiled, and what the first batches waited for, is left out.
            self._use.samples.clear()
            self._loader.wait_seconds = 0.0
        self.times.append(now)
        if now - self.times[0] > self._seconds:
            raise EnoughError

    def figures(self, rows: int, num_parameters: int) -> Figures:
        steps, total = len(self.times) - 1, self.times[-1] - self.times[0]
        between = [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]
        samples = self._use.samples
        return {
            "steps": steps,
            **self._bench.rate(total / steps, rows, num_parameters),
            "median_step_seconds": statistics.median(between),
            "waits_for_data": self._loader.wait_seconds / total,
            "utilization_pct": statistics.fmean(samples) if samples else None,
            "utilization_samples": len(samples),
        }


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    rows, seconds = (16, 20.0) if bench.is_gpu else (2, 0.5)
    module = compiled(LanguageModel(bench.shape), bench.device)
    yield {"parameters": module.num_parameters, "rows": rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = {"train": walks(bench.shape, 1000 * rows, seed=1), "validation": walks(bench.shape, rows, seed=2)}
        training = Training(folder=folder, meta=write_tokens(folder, tokens, bench.shape.vocabulary), gang=bench.gang, batch_size=rows)
        loss = compiled_loss(bench.device)
        with training.attempt(module, loss) as loop, Utilization() as use:
            parts: Any = loop._parts
            watch = Watch(bench, parts.loader, use, seconds=seconds)
            parts.progress.__self__.on_step = watch.on_step
            with suppress(EnoughError):
                loop.train()
            found = watch.figures(rows, module.num_parameters)
            yield found
            yield {"precision": parts.strategy.precision, "optimizer_state_on": places(loop._optimizer.state())}
    if bench.is_gpu:
        yield {"peak_bytes": torch.cuda.max_memory_allocated()}
    del loop, module
    by_hand = ByHand(bench, compiled(LanguageModel(bench.shape), bench.device), loss=loss)
    batch = random_batch(bench.shape, rows)
    bench.block_seconds(lambda: by_hand.step(batch), 5)
    hand_seconds = bench.block_seconds(lambda: by_hand.step(batch), 20)
    yield {"by_hand_tokens_per_second": rows * bench.shape.length / hand_seconds, "beside_by_hand": hand_seconds / found["step_seconds"]}


def places(state: dict[str, torch.Tensor]) -> list[str]:
    return sorted({tensor.device.type for tensor in state.values()})
