"""Checkpoints of a run, and runs that begin at one."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from nightshift.api.access import Granted
from nightshift.api.paging import Cursor, Limit, page_of
from nightshift.api.path_parameters import CheckpointName, RunKey
from nightshift.api.problems import WRITES, responses
from nightshift.api.routing import ApiRoute, IdempotencyKey, accepted, ordered_run_id
from nightshift.queries import checkpoints, runs
from nightshift.queries.datasets import check_usable
from nightshift.queries.schemas import Page, Run, SavedCheckpoint
from nightshift.settings import Settings

router = APIRouter(route_class=ApiRoute, tags=["runs"])
PAGE_ITEMS: Final = 20
"""Of each, the blocks are looked up."""


class Restore(BaseModel):
    """What the new run has of its own; all that is left out is as in the run that saved the checkpoint."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"train": {"learning_rate": 0.001}}, {}]})

    train: dict[str, Any] = Field(
        default_factory=dict, description="Keys of `train`. The batch size and the kind of device must be those of the checkpoint."
    )
    evaluate: dict[str, Any] = Field(default_factory=dict, description="Keys of `evaluate`.")
    tune: dict[str, Any] = Field(default_factory=dict, description="Keys of `tune`.")


@router.get("/training-runs/{id}/checkpoints", responses=responses(404, 422))
def checkpoints_of(id: RunKey, granted: Granted, limit: Limit = PAGE_ITEMS, cursor: Cursor = None) -> Page[SavedCheckpoint]:
    """List the checkpoints of a run's training, the oldest first, also while it trains."""
    pipeline, run_id = granted.run_of(id)
    store = Settings.from_environment().store()
    # A run whose code was changed in between has several trainings, which may have the same steps.
    found = page_of(checkpoints.listed(store, pipeline, run_id), lambda each: f"{each.work_id}:{each.step}", cursor, limit)
    return Page(items=[checkpoints.checkpoint_of(store, each) for each in found.items], next=found.next)


@router.post(
    "/training-runs/{id}/checkpoints/{name}/restore",
    status_code=202,
    response_model=Run,
    responses=responses(*WRITES, 410),
)
def restore(
    id: RunKey, name: CheckpointName, granted: Granted, request: Request, wanted: Restore | None = None, key: IdempotencyKey = None
) -> Response:
    """Queue a run whose training begins at a checkpoint of run `id`, over the same data. `Location` is where to look at it."""
    pipeline, _, run_id = id.partition(":")
    granted.require(pipeline, "POST", runs.unknown_run(pipeline, run_id), "start runs")
    changes = {} if wanted is None else {section: keys for section, keys in wanted.model_dump().items() if keys}
    new_id = ordered_run_id(request, granted.name, key)
    if runs.is_ordered(pipeline, new_id, changes):
        return accepted(request, "/runs", runs.run(pipeline, new_id))
    settings, earlier = Settings.from_environment(), runs.conf_of(pipeline, run_id)
    conf = checkpoints.restore_conf(settings.store(), pipeline, run_id, name, earlier=earlier, changes=changes)
    if isinstance(snapshot := conf.get("snapshot"), str):
        check_usable(settings.database(), pipeline, snapshot)
    return accepted(request, "/runs", runs.start_run(pipeline, new_id, conf, by=granted.name))
