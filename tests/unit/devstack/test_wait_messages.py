"""A wait is announced after ten seconds, and every ten seconds from then on."""

from __future__ import annotations

from devstack.wait_messages import Awaited


def test_long_wait_is_announced_every_ten_seconds_and_a_short_one_never() -> None:
    now, said = [100.0], list[str]()
    awaited = Awaited(said.append, clock=lambda: now[0])
    for second in range(36):
        now[0] = 100.0 + second
        awaited.look("MLflow")
        assert len(said) == second // 10
    assert said == ["  waiting for MLflow  10 s", "  waiting for MLflow  20 s", "  waiting for MLflow  30 s"]
