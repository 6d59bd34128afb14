"""Versions of pipelines' data."""

from __future__ import annotations

from sqlalchemy import Engine

from nightshift.queries.models import ReadableAmong
from nightshift.queries.schemas import DatasetDetails, DatasetVersion
from training.database.datasets import (
    Dataset,
    columns_of,
    deprecate,
    find_dataset,
    last_datasets,
    newest_datasets,
    pipelines_with_data,
    refuse_deprecated,
)
from training.errors import DeniedError, shown
from training.store import Store


def versions(engine: Engine, pipeline: str, *, first: str | None, limit: int) -> list[DatasetVersion]:
    """Return a pipeline's versions, the newest first.

    Args:
        first: version to begin with; None: the newest one.
        limit: how many at most.

    Raises:
        DeniedError: `dataset.unknown`, it has none.
    """
    found = newest_datasets(engine, pipeline, first=first, limit=limit)
    if not found and first is None:
        raise unknown_dataset(pipeline)
    return [record_of(each) for each in found]


def newest(engine: Engine, readable_among: ReadableAmong, *, first: str | None, limit: int) -> list[DatasetVersion]:
    """Return the newest version of each readable pipeline, by the pipeline's name.

    Args:
        first: name to begin with; None: the first one.
        limit: how many at most.
    """
    known = pipelines_with_data(engine)
    return [record_of(each) for each in last_datasets(engine, first=first, limit=limit, hidden=known - readable_among(known))]


def details(engine: Engine, store: Store, pipeline: str, wanted: str) -> DatasetDetails:
    """Return one version, by 16 digits of its digest or the whole, with its columns.

    Raises:
        DeniedError: `snapshot.unknown`; unlike that of the command line, it does not say which pipelines have such a version.
        UnavailableError: the store does not answer.
    """
    found = _found(engine, pipeline, wanted)
    return DatasetDetails(**record_of(found).model_dump(), tables=columns_of(store, found))


def check_usable(engine: Engine, pipeline: str, wanted: str) -> None:
    """Refuse a version that no run can take.

    Raises:
        DeniedError: `snapshot.unknown`, `snapshot.deprecated`, `snapshot.deleted`.
    """
    found = _found(engine, pipeline, wanted)
    refuse_deprecated(found)
    if record_of(found).health == "deleted":
        message = f"the files of snapshot {found.version} of {pipeline} were deleted by retention"
        raise DeniedError("snapshot.deleted", message, hint="name a newer snapshot, or leave it out to take a new one")


def unknown_dataset(pipeline: str) -> DeniedError:
    """Return the error for a pipeline without data, or one that may not be read."""
    return DeniedError("dataset.unknown", f"there is no data of a pipeline {shown(pipeline)}", hint="list the datasets")


def deprecated(engine: Engine, pipeline: str, wanted: str, *, by: str, reason: str) -> DatasetVersion:
    """Deprecate a version; return it.

    Raises:
        DeniedError: as `details`.
    """
    _found(engine, pipeline, wanted)
    return record_of(deprecate(engine, pipeline, wanted, by=by, reason=reason))


def unknown_version(pipeline: str, wanted: str) -> DeniedError:
    """Return the error for a version that is not there, or may not be read."""
    return DeniedError("snapshot.unknown", f"pipeline {pipeline} has no snapshot {shown(wanted)}", hint="list the pipeline's versions")


def _found(engine: Engine, pipeline: str, wanted: str) -> Dataset:
    try:
        return find_dataset(engine, pipeline, wanted)
    except DeniedError as err:
        raise unknown_version(pipeline, wanted) from err


def record_of(found: Dataset) -> DatasetVersion:
    """Return the record of a row."""
    return DatasetVersion.model_validate(found.record())
