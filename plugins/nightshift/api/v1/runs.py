"""Runs and their stages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from nightshift.api.access import Granted
from nightshift.api.paging import Cursor, Limit, cursor_of, invalid, key_of
from nightshift.api.path_parameters import PipelineName, RunId, RunKey
from nightshift.api.problems import responses
from nightshift.api.routing import ApiRoute
from nightshift.queries import runs
from nightshift.queries.schemas import Page, Run, RunState, RunSummary
from training.spec.scalar_types import NAME_RULE

router = APIRouter(route_class=ApiRoute, tags=["runs"])
MAX_PAGE = 50
MAX_NUMBER_DIGITS = 18


@router.get("/runs", responses=responses(404, 422))
def runs_of_all(
    granted: Granted,
    pipeline: Annotated[str | None, Query(pattern=f"^{NAME_RULE}$", description="Only runs of this pipeline.")] = None,
    state: Annotated[RunState | None, Query(description="Only runs in this state.")] = None,
    limit: Limit = MAX_PAGE,
    cursor: Cursor = None,
) -> Page[RunSummary]:
    """List runs, the newest first."""
    if pipeline is None:
        # A DAG that may be read may have runs that may not.
        names = granted.readable_among(runs.tagged_names(granted.readable()))
    else:
        granted.require_read(pipeline, runs.unknown_pipeline(pipeline))
        names = {runs.pipeline(pipeline).name}
    found, before = runs.runs(names, state=state, before=_number(cursor), limit=limit)
    return Page(items=found, next=None if before is None else cursor_of(str(before)))


@router.get("/runs/{id}", responses=responses(404, 422))
def run(id: RunKey, granted: Granted) -> Run:
    """Show a run with its stages: state, attempts, artifacts, metrics, usage."""
    return runs.run(*granted.run_of(id))


@router.get("/experiments/{experiment}/runs/{run_id}", responses=responses(404, 422))
def run_of_experiment(experiment: PipelineName, run_id: RunId, granted: Granted) -> Run:
    """Show a run by experiment, which is the pipeline, and Airflow's run id."""
    return runs.run(*granted.run_of(f"{experiment}:{run_id}"))


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    key = key_of(cursor)
    if not (key.isascii() and key.isdigit() and len(key) <= MAX_NUMBER_DIGITS):
        raise invalid(cursor)
    return int(key)
