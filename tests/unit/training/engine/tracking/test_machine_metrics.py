"""Samples of the machine: what the processes and GPUs use, each 30 s. The driver's library is a double; `/proc` is real."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pynvml
import pytest

from training.engine.tracking.machine_metrics import SAMPLE_SECONDS, MachineMetrics
from training.engine.tracking.nvml import GpuUse, Nvml

GPUS = {0: (90, 3 * 2**30), 1: (50, 5 * 2**30), 2: (1, 2**20)}
"""Number of a GPU to its use and its memory in use; the UUID of number 2 is GPU-c."""
UUIDS = {"GPU-c": 2}


class Library:
    """Answers as pynvml does; the part 1 of a GPU has no rates."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *, is_broken: bool = False, silent: int | None = None) -> None:
        self.is_broken, self.silent = is_broken, silent

    def nvmlInit(self) -> None:
        if self.is_broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self) -> int:
        return len(GPUS)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        if number not in GPUS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return number

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in UUIDS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return UUIDS[uuid]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        if handle == self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=GPUS[handle][0])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=GPUS[handle][1])


def nvml(visible: str, **library: Any) -> Nvml:
    with mock.patch.dict(sys.modules, {"pynvml": Library(**library)}):
        return Nvml(visible)


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
