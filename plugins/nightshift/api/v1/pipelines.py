"""Pipelines, and runs that a request starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from nightshift.api.access import Access, Granted
from nightshift.api.paging import Cursor, Limit, page_in_parts
from nightshift.api.path_parameters import PipelineName
from nightshift.api.problems import WRITES, responses
from nightshift.api.routing import ApiRoute, IdempotencyKey, accepted, ordered_run_id
from nightshift.queries import runs
from nightshift.queries.datasets import check_usable
from nightshift.queries.failed_helpers import failed_helpers
from nightshift.queries.schemas import FailedHelper, Page, Pipeline, PipelineWithRun, Run
from nightshift.settings import Settings
from training.contracts import JsonObject
from training.spec.rules.names import HELPER_TAG
from training.spec.scalar_types import NAME_RULE
from training.spec.schedule.instants import AS_OF_PATTERN, check_not_future, parse_as_of

router = APIRouter(route_class=ApiRoute, tags=["pipelines"])
MAX_PAGE = 50
AS_OF = AS_OF_PATTERN.removesuffix(r"(?!\n)")
"""Pydantic's `$` is the end, and it knows no look-ahead."""
AsOf = Annotated[
    Annotated[str, Field(max_length=40, json_schema_extra={"pattern": AS_OF})] | None,
    Field(description="A day, or a time with an offset; null: the last slot."),
]
"""The pattern is for clients: `check_instant` refuses what is no instant, in words."""
Snapshot = Annotated[
    Annotated[str, Field(pattern="^[0-9a-f]{16}([0-9a-f]{48})?$")] | None, Field(description="Dataset version instead of the sources.")
]


class StartRun(BaseModel):
    """What a run may have of its own; all that is left out is as in the pipeline's YAML."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"as_of": "2026-02-01", "train": {"learning_rate": 0.01}}, {"force": True}]}
    )

    as_of: AsOf = None
    force: bool = Field(default=False, description="Do the work of every stage again, also where its result is there.")
    promote: bool = Field(default=True, description="Decide about the model; otherwise no decision, and no reference for later runs.")
    snapshot: Snapshot = None
    data: dict[str, Any] = Field(default_factory=dict, description='Keys of `data`: `{"source": {"window": "60d"}}`.')
    train: dict[str, Any] = Field(default_factory=dict, description="Keys of `train`, resources (`train.placement`) included.")
    evaluate: dict[str, Any] = Field(default_factory=dict, description="Keys of `evaluate`.")
    tune: dict[str, Any] = Field(default_factory=dict, description="Keys of `tune`.")

    def conf(self) -> JsonObject:
        """Return the trigger's conf: only what was given."""
        return self.model_dump(exclude_defaults=True)


class StartTraining(StartRun):
    """A run, and whose."""

    pipeline: str = Field(pattern=f"^{NAME_RULE}$", description="Name of the pipeline.", examples=["search_ranking"])

    def conf(self) -> JsonObject:
        return {name: value for name, value in super().conf().items() if name != "pipeline"}


@router.get("/pipelines", responses=responses(422))
def pipelines(
    granted: Granted,
    with_: Annotated[Literal["last_run"] | None, Query(alias="with", description="Each with its newest run.")] = None,
    limit: Limit = MAX_PAGE,
    cursor: Cursor = None,
) -> Page[Pipeline] | Page[PipelineWithRun]:
    """List the pipelines, by name."""
    readable = granted.readable()
    page = page_in_parts(lambda first, count: runs.pipelines(readable, first=first, limit=count), lambda found: found.name, cursor, limit)
    if with_ is None:
        return page
    # A DAG that may be read may have runs that may not.
    last = runs.last_runs(granted.readable_among({found.name for found in page.items}))
    found = [PipelineWithRun(**dict(each), last_run=last.get(each.name)) for each in page.items]
    return Page[PipelineWithRun](items=found, next=page.next)


@router.get("/failed-helpers", responses=responses(422))
def failing(granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[FailedHelper]:
    """List the helper DAGs whose newest run that has ended failed, by name."""
    # A DAG that may be read may have runs that may not.
    names = granted.readable_among(runs.tagged_names(granted.readable(), tag=HELPER_TAG))
    return page_in_parts(lambda first, count: failed_helpers(names, first=first, limit=count), lambda found: found.name, cursor, limit)


@router.get("/pipelines/{pipeline}", responses=responses(404, 422))
def pipeline_of(pipeline: PipelineName, granted: Granted) -> Pipeline:
    """Show one pipeline."""
    granted.require_read(pipeline, runs.unknown_pipeline(pipeline))
    return runs.pipeline(pipeline)


@router.post("/pipelines/{pipeline}/runs", status_code=202, response_model=Run, responses=responses(*WRITES))
def start_run(pipeline: PipelineName, wanted: StartRun, granted: Granted, request: Request, key: IdempotencyKey = None) -> Response:
    """Queue a run. `Location` is where to look at it."""
    granted.require(pipeline, "POST", runs.unknown_pipeline(pipeline), "start runs")
    return started(request, granted, pipeline, wanted.conf(), key)


@router.post("/training-runs", status_code=202, response_model=Run, responses=responses(*WRITES))
def start_training(wanted: StartTraining, granted: Granted, request: Request, key: IdempotencyKey = None) -> Response:
    """Queue a run of the pipeline that the body names."""
    granted.require(wanted.pipeline, "POST", runs.unknown_pipeline(wanted.pipeline), "start runs")
    return started(request, granted, wanted.pipeline, wanted.conf(), key)


def started(request: Request, granted: Access, pipeline: str, conf: JsonObject, key: str | None) -> Response:
    """Queue a run of a pipeline, once for a key; the rights are checked.

    Args:
        conf: of the trigger.
    """
    if isinstance(as_of := conf.get("as_of"), str):
        check_instant(as_of)
    run_id = ordered_run_id(request, granted.name, key)
    if runs.is_ordered(pipeline, run_id, conf):
        return accepted(request, "/runs", runs.run(pipeline, run_id))
    if isinstance(snapshot := conf.get("snapshot"), str):
        check_usable(Settings.from_environment().database(), pipeline, snapshot)
    return accepted(request, "/runs", runs.start_run(pipeline, run_id, conf, by=granted.name))


def check_instant(as_of: str) -> None:
    """Refuse what is in the future in every time zone; a run's first task knows the pipeline's own, and looks closer."""
    instant, now = parse_as_of(as_of, "UTC"), datetime.now(UTC)
    if instant > now + timedelta(days=1):
        check_not_future(instant, now)
