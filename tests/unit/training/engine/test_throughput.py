"""Rows in a second: of the time in which they were trained."""

from __future__ import annotations

from collections.abc import Iterator

from training.engine.throughput import Throughput


def test_rows_count_by_the_time_of_their_steps_and_pauses_between_epochs_do_not() -> None:
    instants: Iterator[float] = iter([0.0, 100.0, 101.0, 103.0, 500.0, 501.0])
    throughput = Throughput(lambda: next(instants))
    throughput.begin()
    throughput.add(40)
    throughput.add(80)
    assert throughput.take() == {"training_throughput_samples_per_sec": 40.0}
    throughput.begin()
    throughput.add(10)
    assert throughput.take() == {"training_throughput_samples_per_sec": 10.0}


def test_no_time_gives_no_metric() -> None:
    throughput = Throughput(lambda: 1.0)
    throughput.add(40)
    assert throughput.take() == {}
