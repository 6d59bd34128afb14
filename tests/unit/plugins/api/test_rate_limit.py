"""How many requests a user may send to the REST API."""

from __future__ import annotations

import pytest

from nightshift.api import rate_limit
from nightshift.api.rate_limit import MAX_BUCKETS, Rates
from tests.unit.plugins.seeded_installation import Seeded


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_user_may_send_a_minutes_requests_at_once_and_then_one_for_each_share_of_a_minute() -> None:
    clock = Clock()
    found = Rates(clock)
    assert [found.take("ann", 4) for _ in range(5)] == [True] * 4 + [False]
    assert found.take("bob", 4)
    clock.now += 15
    assert [found.take("ann", 4) for _ in range(2)] == [True, False]
    clock.now += 3600
    assert [found.take("ann", 4) for _ in range(5)] == [True] * 4 + [False]


def test_refused_requests_do_not_delay_the_next_one() -> None:
    clock = Clock()
    found = Rates(clock)
    assert found.take("ann", 1)
    for _ in range(59):
        clock.now += 1
        assert not found.take("ann", 1)
    clock.now += 1.001
    assert found.take("ann", 1)


def test_zero_is_no_limit() -> None:
    found = Rates(Clock())
    assert all(found.take("ann", 0) for _ in range(10_000))


def test_users_who_are_gone_take_no_memory_and_those_who_are_not_keep_their_limit() -> None:
    clock = Clock()
    found = Rates(clock)
    for number in range(MAX_BUCKETS):
        found.take(f"user {number}", 1)
    clock.now += 59
    assert found.take("ann", 1)
    clock.now += 2
    assert found.take("bob", 1)
    assert len(found._buckets) == 2
    assert not found.take("ann", 1)


def test_user_above_the_limit_gets_429_with_retry_after_and_others_are_answered(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_API_RATE", "2")
    clock = Clock()
    monkeypatch.setattr(rate_limit, "RATES", Rates(clock))
    assert [seeded.get("/runs").status_code for _ in range(2)] == [200, 200]
    refused = seeded.get("/runs")
    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (429, "request.rate", "30")
    assert seeded.post("/pipelines/search_ranking/runs", {}, user="ada", role="viewer").status_code == 429
    assert seeded.get("/runs", user="bob", role="user").status_code == 200
    clock.now += 30
    assert seeded.get("/runs").status_code == 200, "after the seconds of Retry-After"
