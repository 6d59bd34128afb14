"""Use and memory of GPUs, by the driver's own library (NVML) through nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

NO_GPU: Final = "-1"
"""A value of CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """One GPU now."""

    utilization_pct: float
    """Share of the last sampling period in which a kernel ran, 0 to 100."""
    used_bytes: int
    """Of its memory, by all processes."""


class Nvml:
    """The library, and the GPUs that a process may use."""

    def __init__(self, visible: str) -> None:
        """Open the library; without it, or without a driver, there are no GPUs.

        Args:
            visible: value of CUDA_VISIBLE_DEVICES: numbers or UUIDs, comma-separated; empty: all of the machine.
        """
        # Trainings on CPUs need none of it.
        import pynvml

        self._nvml = pynvml
        self._handles: list[Any] = []
        try:
            pynvml.nvmlInit()
            self._handles = list(self._found(visible))
        except pynvml.NVMLError:
            return

    def uses(self) -> list[GpuUse]:
        """Return the use of each GPU; one that does not answer, such as a part of a GPU (MIG), is left out."""
        found = []
        for handle in self._handles:
            try:
                rates, memory = self._nvml.nvmlDeviceGetUtilizationRates(handle), self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError:
                continue
            found.append(GpuUse(utilization_pct=float(rates.gpu), used_bytes=int(memory.used)))
        return found

    def _found(self, visible: str) -> Iterator[Any]:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        for name in names or map(str, range(self._nvml.nvmlDeviceGetCount())):
            if name == NO_GPU:
                # CUDA ignores what follows.
                return
            try:
                if name.isdecimal():
                    yield self._nvml.nvmlDeviceGetHandleByIndex(int(name))
                else:
                    yield self._nvml.nvmlDeviceGetHandleByUUID(name)
            except self._nvml.NVMLError:
                continue
