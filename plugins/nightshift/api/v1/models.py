"""Models, versions and decisions."""

from __future__ import annotations

from typing import Literal, cast

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from nightshift.api.access import Granted
from nightshift.api.paging import Cursor, Limit, page_in_parts
from nightshift.api.path_parameters import DecisionKey, ModelName, VersionName
from nightshift.api.problems import WRITES, responses
from nightshift.api.routing import ApiRoute
from nightshift.queries import models
from nightshift.queries.schemas import DecisionDetails, DecisionSummary, Model, ModelDetails, ModelVersion, Page, StageOrder
from nightshift.queries.version_stage import SYNONYMS, StageName, order_stage
from nightshift.settings import Settings
from training.errors import DeniedError
from training.spec.rules.names import ROLLBACK
from training.spec.scalar_types import FreeText

router = APIRouter(route_class=ApiRoute, tags=["models"])
MAX_PAGE = 50


@router.get("/models", responses=responses(422))
def all_models(granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[Model]:
    """List the models about which something was decided, by name."""
    ledger = Settings.from_environment().ledger()
    return page_in_parts(
        lambda first, count: models.models(ledger, granted.readable_among, first=first, limit=count),
        lambda found: found.name,
        cursor,
        limit,
    )


@router.get("/models/{model}", responses=responses(404, 422))
def model_of(model: ModelName, granted: Granted) -> ModelDetails:
    """Show who is champion and canary, and what waits for an approval."""
    return models.model(Settings.from_environment().ledger(), model, granted.may_read)


@router.get("/models/{model}/versions/{version}", responses=responses(404, 409, 422))
def version_of(model: ModelName, version: VersionName, granted: Granted) -> ModelVersion:
    """Show a version with the decisions about it."""
    return models.version(Settings.from_environment().ledger(), model, version, granted.may_read)


@router.get("/models/{model}/decisions", responses=responses(404, 422))
def decisions_of(model: ModelName, granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[DecisionSummary]:
    """List the decisions about a model, the newest first, without their evidence."""
    ledger = Settings.from_environment().ledger()
    return page_in_parts(
        lambda first, count: models.decisions(ledger, model, granted.may_read, first=first, limit=count),
        lambda found: found.key,
        cursor,
        limit,
    )


@router.get("/models/{model}/decisions/{key}", responses=responses(404, 422))
def decision_of(model: ModelName, key: DecisionKey, granted: Granted) -> DecisionDetails:
    """Show a decision with its evidence."""
    return models.decision(Settings.from_environment().ledger(), model, key, granted.may_read)


class StageChange(BaseModel):
    """A stage to give to a version, and why."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"stage": "champion", "reason": "complaints since Monday"}]})

    stage: Literal["champion", "canary", "archived", "production", "staging"] = Field(
        description="`production` is champion, `staging` is canary, as other registries name them."
    )
    reason: FreeText = Field(min_length=1, max_length=1000, pattern=r"\S", description="Reason, stored in the ledger.")


@router.put(
    "/models/{model}/versions/{version}/stage",
    status_code=200,
    response_model=StageOrder,
    responses={202: {"model": StageOrder, "description": "A run carries it out."}, **responses(*WRITES)},
)
def change_stage(model: ModelName, version: VersionName, wanted: StageChange, granted: Granted) -> Response:
    """Make an earlier champion champion again: 202, and a run of the DAG `rollback` does it. 200: it has this stage. Else 409."""
    ledger, unknown = Settings.from_environment().ledger(), models.unknown_model(model)
    for pipeline in models.model(ledger, model, granted.may_read).pipelines:
        granted.require(pipeline, "PUT", unknown, "change versions")
    if not granted.may_start(ROLLBACK):
        raise DeniedError("access.denied", f"{granted.name} may not start the DAG {ROLLBACK}", hint="ask an administrator of Airflow")
    stage = SYNONYMS.get(wanted.stage) or cast(StageName, wanted.stage)
    order = order_stage(ledger, model, version, stage, granted.may_read, by=granted.name, reason=wanted.reason)
    return JSONResponse(order.model_dump(mode="json"), status_code=200 if order.is_done else 202)
