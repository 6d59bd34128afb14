from __future__ import annotations

from training.process.running_time import AwakeClock


def test_stop_counts_one_step_however_long_it_was() -> None:
    now = [100.0]
    clock = AwakeClock(max_step_seconds=3, clock=lambda: now[0])
    assert clock() == 0
    now[0] += 2
    assert clock() == 2
    now[0] += 86_400
    assert clock() == 5
    now[0] += 1
    assert clock() == 6
