"""Metrics of a training while it trains, of a run or of a trial: as a stream of events, or by polling."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import anyio
from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from nightshift.api.access import Access, Granted
from nightshift.api.event_stream import MAX_STREAMS, EventStream
from nightshift.api.path_parameters import RunKey, TrialNumber
from nightshift.api.problems import problem, responses
from nightshift.api.routing import ApiRoute
from nightshift.queries.metric_feed import POLL_SECONDS, Feed, Found, feeds_of, number_of
from nightshift.queries.run_training import TRAIN
from nightshift.queries.schemas import MetricPage
from nightshift.settings import Settings
from training.errors import NightshiftError
from training.stage_table import REFIT

logger = logging.getLogger("nightshift.api.metrics")

router = APIRouter(route_class=ApiRoute, tags=["runs"])
EVENTS: Final = "text/event-stream"
ID_RULE: Final = r"^[0-9]{1,9}-[0-9]{1,12}$"
MAX_PAGE: Final = 1000
CHUNK_POINTS: Final = 500
HEARTBEAT_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 2.0

_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    **responses(404, 422),
    200: {
        "description": "A page, or with `Accept: text/event-stream` events: `data` is a point, `event: end` the last one.",
        "content": {EVENTS: {"schema": {"type": "string"}}},
    },
}


After = Annotated[str | None, Query(pattern=ID_RULE, description="`id` of a point: only points that follow it.", examples=["1-120"])]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", pattern=ID_RULE, description="As `after`; a browser sends it.")]
PagePoints = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Points of a page at most.")]


@dataclass
class Asked:
    """Which points, and how."""

    after: After = None
    last_event_id: LastEventId = None
    limit: PagePoints = MAX_PAGE
    accept: Annotated[str, Header(include_in_schema=False)] = ""


AskedPoints = Annotated[Asked, Depends()]


@router.get("/training-runs/{id}/metrics", responses=_ANSWERS, response_model=MetricPage)
async def metrics(id: RunKey, granted: Granted, asked: AskedPoints) -> Response:
    """Show the metrics of a run's training, those of earlier attempts too, in the order in which they were logged.

    A page by default. With `Accept: text/event-stream`, each point is an event as soon as it is logged, until the training has ended.
    Both have the same ids: what one ends with, the other goes on from.
    """
    return await _answer(id, TRAIN, granted, asked)


@router.get("/training-runs/{id}/refit/metrics", responses=_ANSWERS, response_model=MetricPage)
async def refit_metrics(id: RunKey, granted: Granted, asked: AskedPoints) -> Response:
    """Show the metrics of a run's refit, as those of its training; none where its YAML has no `train.refit`."""
    return await _answer(id, REFIT, granted, asked)


@router.get("/hpo/studies/{id}/trials/{number}/metrics", responses=_ANSWERS, response_model=MetricPage)
async def trial_metrics(id: RunKey, number: TrialNumber, granted: Granted, asked: AskedPoints) -> Response:
    """Show the metrics of a trial of a study, as those of a run's training; they end with the trial, or with the study's run.

    `id` is that of the study's run. Several runs may work on one study: each shows all of its trials.
    """
    return await _answer(id, number, granted, asked)


async def _answer(id: str, training: str | int, granted: Access, asked: Asked) -> Response:
    """Answer with the points of a stage, or of the trial of this number."""
    pipeline, run_id = await run_in_threadpool(granted.run_of, id)
    feeds = feeds_of(Settings.from_environment().store_uri)
    feed = feeds.of_trial(pipeline, run_id, training) if isinstance(training, int) else feeds.of_run(pipeline, run_id, training)
    position = asked.last_event_id or asked.after
    if EVENTS not in asked.accept:
        return JSONResponse((await _page(feed, position, asked.limit)).model_dump(mode="json"))
    # What is wrong is an answer, and not a stream that ends.
    await feed.after(number_of(position), limit=1)
    if not EventStream.may_open(granted.name):
        message = f"{granted.name} has {MAX_STREAMS} streams of this server"
        return problem(429, "streams.limit", message, hint="close some, or poll: Accept: application/json")
    return EventStream(granted.name, _events(feed, position, granted.expires_at))


async def _page(feed: Feed, after: str | None, limit: int) -> MetricPage:
    found = await feed.after(number_of(after), limit=limit)
    points = found.points[:limit]
    is_complete = found.has_ended and not found.has_more and len(found.points) <= limit
    return MetricPage(items=points, last=points[-1].id if points else after, is_complete=is_complete)


async def _events(feed: Feed, after: str | None, expires_at: float) -> AsyncIterator[bytes]:
    """Yield the events of a stream: points, a comment where there were none for 5 s, and how it ends."""
    number, spoke_at = number_of(after), time.monotonic()
    yield b"retry: 2000\n\n"
    while time.time() < expires_at:
        pause = POLL_SECONDS
        try:
            found = await feed.after(number, limit=CHUNK_POINTS)
        except NightshiftError as err:
            logger.warning("a stream of metrics waits: %s", err)
            found, pause = Found(has_ended=False), AWAY_SECONDS
        for start in range(0, len(found.frames), CHUNK_POINTS):
            yield b"".join(found.frames[start : start + CHUNK_POINTS])
        if found.points:
            number, spoke_at = number_of(found.points[-1].id), time.monotonic()
        if found.has_more:
            continue
        if found.has_ended:
            yield b"event: end\ndata: {}\n\n"
            return
        if time.monotonic() - spoke_at >= HEARTBEAT_SECONDS:
            yield b": heartbeat\n\n"
            spoke_at = time.monotonic()
        await anyio.sleep(pause)
    yield b"event: expired\ndata: {}\n\n"
