"""Points from events and pages: each once and in order, whatever breaks in between."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from nightshift.client import metric_stream
from nightshift.client.metric_stream import StreamRefusedError, points_of
from nightshift.queries.schemas import MetricPage, MetricPoint
from training.errors import UnavailableError

POINTS = [
    MetricPoint(id=f"1-{number}", attempt=1, name="loss", step=number, value=0.5, logged_at=datetime(2026, 2, 1, tzinfo=UTC))
    for number in range(1, 21)
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_stream, "POLL_SECONDS", 0.0)


def follow_of(last: str | None, count: int) -> list[MetricPoint]:
    start = 0 if last is None else int(last[2:])
    return POINTS[start : start + count]


def lines_of(points: list[MetricPoint]) -> Iterator[str]:
    yield from ("retry: 2000", "", ": heartbeat", "")
    for point in points:
        yield from (f"id: {point.id}", f"data: {point.model_dump_json()}", "")


def page(last: str | None) -> MetricPage:
    found = follow_of(last, 3)
    ended = not follow_of(found[-1].id if found else last, 1)
    return MetricPage(items=found, last=found[-1].id if found else last, is_complete=ended)


@pytest.mark.parametrize("failure", [httpx.RemoteProtocolError("peer closed"), httpx.ReadTimeout("silent"), StreamRefusedError(), None])
def test_a_stream_that_breaks_anywhere_loses_and_repeats_nothing(failure: Exception | None) -> None:
    asked: list[str | None] = []

    def stream(last: str | None) -> Iterator[str]:
        asked.append(last)
        yield from lines_of(follow_of(last, 2))
        # The half of a point that came before the connection broke.
        yield from ("id: 1-99",)
        if failure is not None:
            raise failure

    assert list(points_of(page, stream, None)) == POINTS
    assert asked == ([None] if isinstance(failure, httpx.ReadTimeout | StreamRefusedError) else [None, "1-5", "1-10", "1-15"])


def test_the_end_of_the_training_ends_the_stream_without_another_request() -> None:
    def stream(last: str | None) -> Iterator[str]:
        yield from lines_of(follow_of(last, 20))
        yield from ("event: end", "data: {}", "")

    def no_page(_last: str | None) -> MetricPage:
        raise AssertionError

    assert list(points_of(no_page, stream, "1-4")) == POINTS[4:]


def test_a_server_that_is_away_is_asked_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0, 0.0])

    def stream(_last: str | None) -> Iterator[str]:
        raise httpx.ConnectError("refused")

    def away_twice(last: str | None) -> MetricPage:
        if next(times, None) is not None:
            raise UnavailableError("server.unreachable", "refused")
        return page(last)

    assert list(points_of(away_twice, stream, None)) == POINTS
    monkeypatch.setattr(metric_stream, "AWAY_SECONDS", -1.0)
    times = iter([0.0])
    with pytest.raises(UnavailableError):
        list(points_of(away_twice, stream, None))
