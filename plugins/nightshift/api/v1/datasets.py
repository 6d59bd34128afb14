"""Versions of data, and their deprecation."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine

from nightshift.api.access import Granted
from nightshift.api.paging import Cursor, Limit, page_in_parts
from nightshift.api.path_parameters import PipelineName, SnapshotVersion
from nightshift.api.problems import WRITES, responses
from nightshift.api.routing import ApiRoute
from nightshift.queries import datasets
from nightshift.queries.schemas import DatasetDetails, DatasetVersion, Page
from nightshift.settings import Settings
from training.database.datasets import MAX_REASON_CHARS
from training.spec.scalar_types import FreeText

router = APIRouter(route_class=ApiRoute, tags=["datasets"])
MAX_PAGE = 50


class Deprecation(BaseModel):
    """Why a version must not be used."""

    model_config = ConfigDict(extra="forbid")

    reason: FreeText = Field(
        min_length=1, max_length=MAX_REASON_CHARS, description="Reason, stored with the deprecation.", examples=["wrong labels"]
    )


@router.get("/datasets", responses=responses(422))
def all_datasets(granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[DatasetVersion]:
    """List the newest version of each pipeline's data, by the pipeline's name."""
    engine = _engine()
    return page_in_parts(
        lambda first, count: datasets.newest(engine, granted.readable_among, first=first, limit=count),
        lambda found: found.pipeline,
        cursor,
        limit,
    )


@router.get("/datasets/{pipeline}/versions", responses=responses(404, 422))
def versions_of(pipeline: PipelineName, granted: Granted, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Page[DatasetVersion]:
    """List the versions of a pipeline's data, the newest first."""
    granted.require_read(pipeline, datasets.unknown_dataset(pipeline))
    engine = _engine()
    return page_in_parts(
        lambda first, count: datasets.versions(engine, pipeline, first=first, limit=count), lambda each: each.version, cursor, limit
    )


@router.get("/datasets/{pipeline}/versions/{version}", responses=responses(404, 422))
def version_of(pipeline: PipelineName, version: SnapshotVersion, granted: Granted) -> DatasetDetails:
    """Show one version, with its columns."""
    granted.require_read(pipeline, datasets.unknown_version(pipeline, version))
    return datasets.details(_engine(), Settings.from_environment().store(), pipeline, version)


@router.post(
    "/datasets/{pipeline}/versions/{version}/deprecate",
    responses=responses(*WRITES),
)
def deprecate_version(pipeline: PipelineName, version: SnapshotVersion, wanted: Deprecation, granted: Granted) -> DatasetVersion:
    """Mark a version: new runs refuse it. Nothing is deleted. The same reason by the same user again changes nothing."""
    granted.require(pipeline, "PUT", datasets.unknown_version(pipeline, version), "deprecate data")
    return datasets.deprecated(_engine(), pipeline, version, by=granted.name, reason=wanted.reason)


def _engine() -> Engine:
    return Settings.from_environment().database()
