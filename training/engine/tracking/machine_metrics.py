"""What a training uses of its machine, as metrics: cores, memory, GPUs. A sample each 30 s, by the tracker's thread, never in a step.

Of several machines it is that of the first rank. `/proc` and the GPUs' driver count; nothing of torch or CUDA is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from training.engine.tracking.nvml import Nvml
from training.runtime.resource_usage import UsageMeter

SAMPLE_SECONDS: Final = 30.0


class MachineMetrics:
    """Samples of one training's processes on this machine."""

    def __init__(self, gpus: Nvml | None, *, meter: UsageMeter | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to measure.

        Args:
            gpus: those that the training may use; None: it runs on CPUs.
        """
        self._gpus = gpus
        self._meter = meter or UsageMeter()
        self._clock = clock
        self._looked_at = clock()
        self._cpu_seconds = self._meter.usage().cpu_seconds

    def sample_if_due(self) -> dict[str, float]:
        """Return the metrics of the time since the last sample; nothing where that is less than 30 s ago.

        `cpu_cores_used` is CPU time by time, `memory_bytes` the processes' resident memory now, in which pages that they share count for
        each. `gpu_utilization_pct` is the mean of the GPUs, `gpu_memory_used_bytes` that of the fullest one.
        """
        now = self._clock()
        seconds = now - self._looked_at
        if seconds < SAMPLE_SECONDS:
            return {}
        processes = self._meter.look()
        cpu_seconds = sum(process.cpu_seconds for process in processes)
        # The CPU time of a process that has ended is in its parent's numbers, unless the parent is not looked at.
        cores = max(0.0, cpu_seconds - self._cpu_seconds) / seconds
        self._looked_at, self._cpu_seconds = now, cpu_seconds
        found = {"cpu_cores_used": cores, "memory_bytes": float(sum(process.resident_bytes for process in processes))}
        uses = [] if self._gpus is None else self._gpus.uses()
        if uses:
            found["gpu_utilization_pct"] = sum(use.utilization_pct for use in uses) / len(uses)
            found["gpu_memory_used_bytes"] = float(max(use.used_bytes for use in uses))
        return found
