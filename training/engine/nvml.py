"""Use and memory of GPUs, from the driver's own library (NVML) by ctypes: no package of Python has to be installed for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
SUCCESS: Final = 0
NO_GPU: Final = "-1"
"""A value of CUDA_VISIBLE_DEVICES."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """One GPU now."""

    utilization_pct: float
    """Share of the last sampling period in which a kernel ran, 0 to 100."""
    used_bytes: int
    """Of its memory, by all processes."""


class Nvml:
    """The library, and the GPUs that a process may use."""

    def __init__(self, visible: str, *, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        """Open the library; without it, or without a driver, there are no GPUs.

        Args:
            visible: value of CUDA_VISIBLE_DEVICES: numbers or UUIDs, comma-separated; empty: all of the machine.
        """
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._library = load(LIBRARY)
        except OSError:
            return
        if self._library.nvmlInit_v2() == SUCCESS:
            self._handles = list(self._found(visible))

    def uses(self) -> list[GpuUse]:
        """Return the use of each GPU; one that does not answer, such as a part of a GPU (MIG), is left out."""
        found = []
        for handle in self._handles:
            rates, memory = _Utilization(), _Memory()
            answers = (
                self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)),
                self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
            )
            if answers == (SUCCESS, SUCCESS):
                found.append(GpuUse(utilization_pct=float(rates.gpu), used_bytes=int(memory.used)))
        return found

    def _found(self, visible: str) -> Iterator[ctypes.c_void_p]:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if not names:
            count = ctypes.c_uint()
            self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
            names = [str(number) for number in range(count.value)]
        for name in names:
            if name == NO_GPU:
                # CUDA ignores what follows.
                return
            handle = ctypes.c_void_p()
            if name.isdecimal():
                answer = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                answer = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            if answer == SUCCESS:
                yield handle
