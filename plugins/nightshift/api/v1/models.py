"""Models, versions and decisions."""

from __future__ import annotations

from fastapi import APIRouter

from nightshift.api.access import Granted
from nightshift.api.names import DecisionKey, ModelName, VersionName
from nightshift.api.paging import Cursor, Limit, page_of
from nightshift.api.problems import responses
from nightshift.api.routing import ApiRoute
from nightshift.queries import models
from nightshift.queries.records import Decision, DecisionSummary, Model, ModelVersion, Page
from nightshift.settings import Settings
from training.registry.ledger import Ledger

router = APIRouter(route_class=ApiRoute, tags=["models"])
MAX_PAGE = 50


@router.get("/models", responses=responses(422))
def all_models(granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[Model]:
    """List the models about which something was decided, by name."""
    return page_of(models.models(_ledger(), granted.may_read), lambda found: found.name, cursor, limit)


@router.get("/models/{model}", responses=responses(404, 422))
def model_of(model: ModelName, granted: Granted) -> Model:
    """Show who is champion and canary, and what waits for an approval."""
    return models.model(_ledger(), model, granted.may_read)


@router.get("/models/{model}/versions/{version}", responses=responses(404, 422))
def version_of(model: ModelName, version: VersionName, granted: Granted) -> ModelVersion:
    """Show a version with the decisions about it."""
    return models.version(_ledger(), model, version, granted.may_read)


@router.get("/models/{model}/decisions", responses=responses(404, 422))
def decisions_of(model: ModelName, granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[DecisionSummary]:
    """List the decisions about a model, the newest first, without their evidence."""
    return page_of(models.decisions(_ledger(), model, granted.may_read), lambda found: found.key, cursor, limit)


@router.get("/models/{model}/decisions/{key}", responses=responses(404, 422))
def decision_of(model: ModelName, key: DecisionKey, granted: Granted) -> Decision:
    """Show a decision with its evidence."""
    return models.decision(_ledger(), model, key, granted.may_read)


def _ledger() -> Ledger:
    return Ledger(Settings.from_environment().database_url)
