"""How long a process itself works on a step, without its wait for other processes: what a slow one has more of.

The time of a step is the same on all processes, since each waits for the slowest one in the step's collectives. What is its own:

- The wait for data, by the clock: from the end of a step to the batch of the next. The first batch of an epoch is left out.
- Computing, on the CPU: the time for which the thread that trains runs. A thread that waits in a collective sleeps, wherever in a forward
  or backward pass the collective is: one measure for replicas, shards, tensor groups and stages, which does not depend on what else a
  machine does. In the forward pass of a replicated model without buffers, which has no collective, sleep counts too: a slow disk.
- The wait for a core, as the kernel counts it: the time for which that thread could run, and others or a quota have its core.
- On a GPU the host sees nothing of that, and kernels that wait run like others. There a fixed product of matrices is timed between steps.

Threads that write checkpoints and fetch batches are not counted, but slow down the one that trains: steps in which a checkpoint is being
written are left out.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch

from training.data.dataset.loader import Batch

SCHEDULER_FILE: Final = "/proc/thread-self/schedstat"
TRIMMED_SHARE: Final = 0.2
"""Of the steps of a window, the slowest and the fastest: a collection of garbage, a page of a file."""
PROBE_ITEMS: Final = 2048
"""Rows and columns of the matrices that a GPU multiplies: 17 GFLOP."""
PROBES: Final = 3
NANOSECONDS: Final = 1e-9


class Measured(NamedTuple):
    """Means of a window's steps on one process, in seconds; not a number: too few steps were measured."""

    step: float
    """By the clock, with the wait for data."""
    computing: float
    """On the CPU; on a GPU that of the probe."""
    waiting: float
    """For data."""
    ready: float
    """For a core; 0 where the kernel does not count it."""

    @property
    def own(self) -> float:
        """What the process works on a step itself."""
        return self.computing + self.waiting + self.ready


UNKNOWN: Final = Measured(math.nan, math.nan, math.nan, math.nan)


class ThreadClock:
    """What the kernel counts of the thread that made it."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open(SCHEDULER_FILE, os.O_RDONLY)
        except OSError:
            # Not every kernel counts it.
            self._file = None

    def read(self) -> tuple[float, float]:
        """Return the seconds for which the thread has run, and for which it was ready to run and had no core."""
        # The file's first number, the time that it has run, is only as new as the last tick.
        ready = 0.0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) * NANOSECONDS
        return time.thread_time(), ready

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class LocalStepTimer:
    """Measures the steps of this process, window by window."""

    def __init__(self, device: torch.device, *, is_disturbed: Callable[[], bool]) -> None:
        """Prepare it.

        Args:
            is_disturbed: whether a step that just ended is to be left out.
        """
        self._device = device
        self._is_disturbed = is_disturbed
        self._clock = ThreadClock()
        self._asleep = self._waiting = 0.0
        self._steps: list[Measured] = []
        self._num_left_out = 0
        self._is_measuring = False
        self.num_steps = 0
        """Of the window so far, all that were done."""
        self.every = 1
        """Of so many steps one is measured: measuring a short one takes a part of it."""

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield an epoch's batches, and note how long each but the first is waited for."""
        self._waiting, began_at = 0.0, math.inf
        for batch in batches:
            self._waiting = max(0.0, time.perf_counter() - began_at)
            yield batch
            began_at = time.perf_counter()

    @contextmanager
    def without_collectives(self) -> Iterator[None]:
        """A part of a step in which no other process is waited for: all of its time counts."""
        if not self._is_measuring:
            yield
            return
        began_at, (ran, ready) = time.perf_counter(), self._clock.read()
        yield
        seconds, (ran_since, ready_since) = time.perf_counter() - began_at, self._clock.read()
        self._asleep += max(0.0, seconds - (ran_since - ran) - (ready_since - ready))

    @contextmanager
    def step(self) -> Iterator[None]:
        self.num_steps += 1
        if self.num_steps % self.every:
            yield
            return
        self._asleep, self._is_measuring = 0.0, True
        began_at, (ran, ready) = time.perf_counter(), self._clock.read()
        yield
        seconds, (ran_since, ready_since) = time.perf_counter() - began_at, self._clock.read()
        self._is_measuring = False
        if self._is_disturbed():
            self._num_left_out += 1
            return
        computing = ran_since - ran + self._asleep
        self._steps.append(Measured(seconds + self._waiting, computing, self._waiting, ready_since - ready))

    def window(self) -> Measured:
        """Return the means of the steps since the last call, and begin the next window."""
        steps, num_left_out = self._steps, self._num_left_out
        self._steps, self._num_left_out, self.num_steps = [], 0, 0
        if len(steps) <= num_left_out:
            return UNKNOWN
        means = Measured(*(trimmed_mean(values) for values in zip(*steps, strict=True)))
        return means._replace(computing=probe_seconds(self._device), ready=0.0) if self._device.type == "cuda" else means

    def close(self) -> None:
        self._clock.close()


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the largest and the smallest fifth."""
    left_out = int(len(values) * TRIMMED_SHARE)
    kept = sorted(values)[left_out : len(values) - left_out]
    return sum(kept) / len(kept)


def probe_seconds(device: torch.device) -> float:
    """Return how long a GPU takes for a fixed product of matrices, the shortest of a few times."""
    matrix = torch.ones(PROBE_ITEMS, PROBE_ITEMS, device=device)
    found = []
    for _ in range(PROBES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        torch.mm(matrix, matrix)
        end.record()
        end.synchronize()
        found.append(float(begin.elapsed_time(end)) / 1e3)
    return min(found)
