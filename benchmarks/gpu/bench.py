"""The device of a part, how its work is timed, and a step of the training loop without the loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from benchmarks.gpu.language_model import MEDIUM, SMALL, TINY, Shape, next_token_loss
from training.data.dataset.loader import Batch
from training.engine.optim import MAX_GRAD_NORM, Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import Strategy, SumLoss

Figures = dict[str, Any]
PEAK_TFLOPS: Final = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
"""Of dense bf16 products, by a word of the device's name."""


class Bench:
    """Sizes that fit a device, and clocks. A process makes one: as in a training, algorithms are deterministic from then on."""

    def __init__(self, kind: str) -> None:
        """Take the device; `kind` is `cuda` or `cpu`."""
        self.is_gpu = kind == "cuda"
        self.gang = Gang.join(use_gpus=self.is_gpu)
        self.device = self.gang.device
        if self.device.type != kind:
            raise RuntimeError(f"{kind} was asked for, torch {torch.__version__} has {self.device.type}")
        self.shape: Shape = MEDIUM if self.is_gpu else TINY
        self.small_shape: Shape = SMALL if self.is_gpu else TINY

    def wait(self) -> None:
        """Return once the device has done all that it was given."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], *, steps: int, warm_up: int = 5) -> float:
        """Return the median seconds of a call, after some that are not counted."""
        for _ in range(warm_up):
            work()
        found = []
        for _ in range(steps):
            self.wait()
            started_at = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - started_at)
        return statistics.median(found)

    def block_seconds(self, work: Callable[[], object], steps: int) -> float:
        """Return the seconds of a call in a block of them, as a training makes them: the device is awaited at the end alone."""
        self.wait()
        started_at = time.perf_counter()
        for _ in range(steps):
            work()
        self.wait()
        return (time.perf_counter() - started_at) / steps

    def rate(self, step_seconds: float, rows: int, num_parameters: int) -> Figures:
        """Return tokens per second, and the share of the device's peak (MFU) where that is known."""
        tokens = rows * self.shape.length / step_seconds
        found: Figures = {"step_seconds": step_seconds, "tokens_per_second": tokens}
        name = torch.cuda.get_device_name(self.device) if self.is_gpu else ""
        peak = next((value for word, value in PEAK_TFLOPS.items() if word in name), None)
        if peak is not None:
            found["mfu"] = tokens * self.shape.flops_per_token(num_parameters) / (peak * 1e12)
        return found

    def training(
        self, module: nn.Module, *, precision: str = "bf16", loss: SumLoss = next_token_loss, strategy: Strategy | None = None
    ) -> Steps:
        return Steps(strategy or ReplicatedModel(self.gang, precision=precision), module, loss)


class Steps:
    """What `training.engine.loop` does between two batches, for parts that need single steps."""

    def __init__(self, strategy: Strategy, module: nn.Module, loss: SumLoss) -> None:
        self.strategy, self.loss, self.losses = strategy, loss, list[float]()
        parameters = strategy.place(module)
        self.optimizer = ScheduledOptimizer(parameters, Schedule(learning_rate=1e-4, total_steps=10**6), OptimizerSettings())
        self.number = 0

    def step(self, batch: Batch) -> None:
        self.optimizer.clear_gradients()
        rows = len(batch["label"])
        total = self.strategy.backward([batch], self.loss, rows)
        self.strategy.clip(MAX_GRAD_NORM)
        self.losses.append(float(total) / rows)
        self.optimizer.step(self.number)
        self.number += 1

    def state(self) -> dict[str, torch.Tensor]:
        module = {f"module/{name}": tensor for name, tensor in self.strategy.state().items()}
        return module | {f"optimizer/{name}": tensor for name, tensor in self.optimizer.state().items()}


class ByHand:
    """A training step as a script has it that serves no other model: the peer of `Steps` and of the loop."""

    def __init__(self, bench: Bench, module: nn.Module, *, loss: SumLoss = next_token_loss) -> None:
        self._device, self._module, self._loss = bench.device, module.to(bench.device), loss
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.0, fused=True)

    def step(self, batch: Batch) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        moved = {name: cells.to(self._device, non_blocking=True) for name, cells in batch.items()}
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            loss = self._loss(self._module, moved) / len(batch["label"])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._module.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        loss.item()
