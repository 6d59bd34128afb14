"""What a process works on a step itself: its computing and its wait for data, not its wait for others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
import torch

from training.data.dataset.loader import Batch
from training.large import local_step_time
from training.large.local_step_time import SCHEDULER_FILE, LocalStepTimer, ThreadClock, trimmed_mean

CPU = torch.device("cpu")
SLEEP_SECONDS = 0.05
NOBODY_SECONDS = SLEEP_SECONDS / 5
"""Processor time that a step without work does not reach."""


def timer_of(*disturbed: bool) -> LocalStepTimer:
    answers = iter(disturbed)
    return LocalStepTimer(CPU, is_disturbed=lambda: next(answers, False))


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def test_sleep_as_in_a_collective_is_not_local_time_and_computing_is() -> None:
    own = timer_of()
    with own.step():
        time.sleep(SLEEP_SECONDS)
        compute(SLEEP_SECONDS)
    found = own.window()
    assert found.step >= 2 * SLEEP_SECONDS
    assert SLEEP_SECONDS <= found.computing < SLEEP_SECONDS + NOBODY_SECONDS
    assert found.waiting == 0.0


def test_sleep_where_no_other_process_is_waited_for_is_local_time() -> None:
    own = timer_of()
    with own.step():
        time.sleep(SLEEP_SECONDS)
        with own.without_collectives():
            time.sleep(SLEEP_SECONDS)
    found = own.window()
    # What the thread waits for a core when it wakes up is counted apart.
    assert found.computing + found.ready > 0.9 * SLEEP_SECONDS
    assert found.computing < SLEEP_SECONDS + NOBODY_SECONDS


def test_wait_for_data_is_local_time_but_for_the_first_batch_of_an_epoch() -> None:
    def batches() -> Iterator[Batch]:
        for _ in range(2):
            time.sleep(SLEEP_SECONDS)
            yield {}

    own = timer_of()
    waits = []
    for _ in own.batches(batches()):
        with own.step():
            pass
        waits.append(own.window().waiting)
    assert waits[0] == 0.0
    assert waits[1] >= 0.9 * SLEEP_SECONDS


def test_steps_during_a_save_are_left_out_and_a_window_of_them_is_not_known() -> None:
    own = timer_of(True, False, False, True, True, False)
    for sleep_seconds in (0.0, SLEEP_SECONDS, SLEEP_SECONDS):
        with own.step():
            time.sleep(sleep_seconds)
    assert own.num_steps == 3
    assert own.window().step >= SLEEP_SECONDS, "the first step is not part of the mean"
    for _ in range(3):
        with own.step():
            pass
    assert all(math.isnan(number) for number in own.window())
    assert own.num_steps == 0


def test_of_short_steps_some_are_measured_and_all_are_counted() -> None:
    own = timer_of()
    own.every = 3
    for number in range(1, 8):
        with own.step():
            time.sleep(SLEEP_SECONDS if number % 3 == 0 else 0)
    assert own.num_steps == 7
    assert own.window().step >= SLEEP_SECONDS, "the third and the sixth"


def test_mean_leaves_out_single_slow_and_fast_steps() -> None:
    assert trimmed_mean([1.0] * 8 + [100.0, 0.0]) == 1.0
    assert trimmed_mean([1.0, 2.0, 3.0]) == 2.0


def test_clock_counts_the_wait_for_a_core_apart_from_the_time_that_the_thread_runs() -> None:
    clock = ThreadClock()
    began_at, (ran, ready) = time.perf_counter(), clock.read()
    compute(SLEEP_SECONDS)
    ran_since, ready_since = clock.read()
    clock.close()
    assert ran_since - ran >= SLEEP_SECONDS
    assert 0 <= ready_since - ready <= time.perf_counter() - began_at


def test_clock_without_the_kernels_count_reads_the_time_that_the_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_step_time, "SCHEDULER_FILE", SCHEDULER_FILE + ".missing")
    clock = ThreadClock()
    ran, _ = clock.read()
    compute(0.01)
    assert clock.read()[0] - ran >= 0.01
    assert clock.read()[1] == 0.0
    clock.close()
