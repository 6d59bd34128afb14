"""Samples of the machine: what the processes and GPUs use, each 30 s. The driver's library is a double; `/proc` is real."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

from training.engine.machine_metrics import SAMPLE_SECONDS, MachineMetrics
from training.engine.nvml import LIBRARY, GpuUse, Nvml

GPUS = {0: (90, 3 * 2**30), 1: (50, 5 * 2**30), 2: (1, 2**20)}
"""Number of a GPU to its use and its memory in use; the UUID of number 2 is GPU-c."""
UUIDS = {b"GPU-c": 2}
UNKNOWN = 6


class Library:
    """Answers as NVML does; the part 1 of a GPU has no rates."""

    def __init__(self, *, is_broken: bool = False, silent: int | None = None) -> None:
        self.is_broken, self.silent = is_broken, silent

    def nvmlInit_v2(self) -> int:
        return UNKNOWN if self.is_broken else 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(GPUS)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: Any, handle: Any) -> int:
        handle._obj.value = number.value + 1
        return 0 if number.value in GPUS else UNKNOWN

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = UUIDS.get(uuid, 0) + 1
        return 0 if uuid in UUIDS else UNKNOWN

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        number = handle.value - 1
        rates._obj.gpu = GPUS[number][0]
        return UNKNOWN if number == self.silent else 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used = GPUS[handle.value - 1][1]
        return 0


def nvml(visible: str, **library: Any) -> Nvml:
    def load(name: str) -> Library:
        assert name == LIBRARY
        return Library(**library)

    return Nvml(visible, load=load)


def use(number: int) -> GpuUse:
    utilization, used = GPUS[number]
    return GpuUse(utilization_pct=utilization, used_bytes=used)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", [0, 1, 2]), ("1", [1]), ("2, 0", [2, 0]), ("GPU-c", [2]), ("0,-1,1", [0]), ("-1", []), ("7,GPU-x,1", [1])],
)
def test_gpus_are_those_that_the_process_may_use(visible: str, expected: list[int]) -> None:
    assert nvml(visible).uses() == [use(number) for number in expected]


def test_gpu_that_does_not_answer_is_left_out() -> None:
    assert nvml("", silent=1).uses() == [use(0), use(2)]


def test_machine_without_a_driver_has_no_gpus() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    assert Nvml("", load=missing).uses() == []
    assert nvml("", is_broken=True).uses() == []


def test_sample_is_due_each_30_s_and_has_cores_memory_and_gpus() -> None:
    now = [0.0]
    machine = MachineMetrics(nvml(""), clock=lambda: now[0])
    now[0] = SAMPLE_SECONDS - 1
    assert machine.sample_if_due() == {}
    block = bytearray(b"x" * (64 * 2**20))
    begun = time.process_time()
    while time.process_time() < begun + 0.2:
        pass
    now[0] = SAMPLE_SECONDS
    found = machine.sample_if_due()
    assert found["cpu_cores_used"] >= 0.15 / SAMPLE_SECONDS
    assert found["memory_bytes"] > len(block)
    assert (found["gpu_utilization_pct"], found["gpu_memory_used_bytes"]) == (47.0, 5.0 * 2**30)
    assert machine.sample_if_due() == {}


def test_training_on_cpus_has_no_metrics_of_gpus() -> None:
    now = [0.0]
    machine = MachineMetrics(None, clock=lambda: now[0])
    now[0] = SAMPLE_SECONDS
    assert set(machine.sample_if_due()) == {"cpu_cores_used", "memory_bytes"}
