"""The versions of data sets (snapshots) that runs made: looked up, and deprecated by a person. Nothing here deletes one."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from sqlalchemy import CTE, Engine, Select, func, select
from sqlalchemy.orm import Session

from training.contracts import JsonObject
from training.database.connect import reading, with_zone, writing
from training.database.schema import DatasetVersionRow
from training.errors import DataError, DeniedError, shown
from training.spec.scalar_types import free_text_fault
from training.store import Store

logger = logging.getLogger(__name__)

VERSION_DIGITS: Final = 16
"""Of a snapshot's digest: its version. A whole digest is accepted, too."""
MAX_REASON_CHARS: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One version of a pipeline's data."""

    pipeline: str
    version: str
    uri: str
    """Of the snapshot's manifest."""
    rows: int
    """Of the main table."""
    size_bytes: int
    schema_hash: str
    split: JsonObject
    """As the YAML of the run that took the snapshot first had it; keys with their default value are left out."""
    split_hash: str
    created_at: datetime
    created_by: str
    deleted_at: datetime | None
    """When retention deleted its files, or a person deprecated it, whichever came first."""
    deprecated_by: str | None
    """None: not deprecated by a person."""
    reason: str | None

    @property
    def is_deprecated(self) -> bool:
        return self.deprecated_by is not None

    @property
    def health(self) -> Literal["available", "deprecated", "deleted"]:
        """Whether new runs may use it."""
        return "deprecated" if self.is_deprecated else "available" if self.deleted_at is None else "deleted"

    def record(self) -> JsonObject:
        """Return its fields as the REST API names them."""
        fields = asdict(self)
        changed_at = fields.pop("deleted_at")
        return {**fields, "health": self.health, "changed_at": changed_at}


def datasets(engine: Engine, pipeline: str | None = None) -> list[Dataset]:
    """Return the versions of one pipeline, or of all, the newest first.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    wanted = select(DatasetVersionRow).order_by(DatasetVersionRow.name, DatasetVersionRow.id.desc())
    if pipeline is not None:
        wanted = wanted.where(DatasetVersionRow.name == pipeline)
    with reading(engine) as session:
        return [_dataset(row) for row in session.scalars(wanted)]


def newest_datasets(engine: Engine, pipeline: str, *, first: str | None, limit: int) -> list[Dataset]:
    """Return versions of a pipeline, the newest first; raises as `datasets`.

    Args:
        first: version to begin with, none where it is not there; None: the newest one.
        limit: how many at most.
    """
    wanted = select(DatasetVersionRow).where(DatasetVersionRow.name == pipeline).order_by(DatasetVersionRow.id.desc()).limit(limit)
    if first is not None:
        begin = select(DatasetVersionRow.id).where(DatasetVersionRow.name == pipeline, DatasetVersionRow.version == first)
        wanted = wanted.where(DatasetVersionRow.id <= begin.scalar_subquery())
    with reading(engine) as session:
        return [_dataset(row) for row in session.scalars(wanted)]


def pipelines_with_data(engine: Engine) -> set[str]:
    """Return the names of the pipelines that have a version; raises as `datasets`."""
    names = _names()
    with reading(engine) as session:
        return set(session.scalars(select(names.c.name).where(names.c.name.is_not(None))))


def last_datasets(engine: Engine, *, first: str | None, limit: int, hidden: Collection[str]) -> list[Dataset]:
    """Return the newest version of each pipeline, by the pipeline's name; raises as `datasets`.

    Args:
        first: name to begin with; None: the first one.
        limit: how many at most.
        hidden: pipelines that are left out.
    """
    names = _names()
    of_name = select(DatasetVersionRow.id).where(DatasetVersionRow.name == names.c.name)
    newest = of_name.order_by(DatasetVersionRow.id.desc()).limit(1).correlate(names).scalar_subquery()
    wanted = select(DatasetVersionRow).join(names, DatasetVersionRow.id == newest).where(names.c.name.not_in(hidden))
    if first is not None:
        wanted = wanted.where(names.c.name >= first)
    with reading(engine) as session:
        return [_dataset(row) for row in session.scalars(wanted.order_by(names.c.name).limit(limit))]


def _names() -> CTE:
    """Return the pipelines' names, and a null, from one to the next: DISTINCT would look at every version."""
    first = select(func.min(DatasetVersionRow.name).label("name")).cte("names", recursive=True)
    following = select(func.min(DatasetVersionRow.name)).where(DatasetVersionRow.name > first.c.name).scalar_subquery()
    return first.union_all(select(following).where(first.c.name.is_not(None)))


def find_dataset(engine: Engine, pipeline: str, version: str) -> Dataset:
    """Return one version.

    Args:
        version: as `datasets` lists it, or the whole digest.

    Raises:
        DeniedError: `snapshot.unknown`, the pipeline has no such version; the message says whose it is.
        UnavailableError: `database.unavailable`.
    """
    with reading(engine) as session:
        row = session.scalar(_wanted(pipeline, version))
        if row is not None:
            return _dataset(row)
        others = session.scalars(select(DatasetVersionRow.name).where(DatasetVersionRow.version == version[:VERSION_DIGITS])).all()
    message = f"pipeline {pipeline} has no snapshot {shown(version)}"
    if others:
        message += f": it is of {', '.join(sorted(others))}"
    raise DeniedError("snapshot.unknown", message, hint=f"`nightshift datasets list {pipeline}` shows its versions")


def columns_of(store: Store, found: Dataset) -> dict[str, dict[str, str]] | None:
    """Return table to column to type, as the snapshot's manifest has them; None: it is gone, or of another store.

    Raises:
        UnavailableError: the store does not answer.
    """
    try:
        tables = store.manifests.get(found.uri, kind="snapshot").meta["tables"]
    except (DataError, DeniedError) as err:
        logger.info("the columns of snapshot %s are not known: %s", found.version, err)
        return None
    return {name: {column: str(kind) for column, kind in facts.get("schema", {}).items()} for name, facts in tables.items()}


def check_not_deprecated(engine: Engine, pipeline: str, digest: str) -> None:
    """Refuse the use of a snapshot that a person has deprecated; one that is not registered passes.

    Raises:
        DeniedError: `snapshot.deprecated`.
        UnavailableError: `database.unavailable`.
    """
    with reading(engine) as session:
        row = session.scalar(_wanted(pipeline, digest))
    if row is not None:
        refuse_deprecated(_dataset(row))


def deprecated_versions(engine: Engine, pipeline: str) -> tuple[str, ...]:
    """Return the versions of a pipeline that a person has deprecated: what is wrong is no reference for what comes later.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    wanted = select(DatasetVersionRow.version).where(DatasetVersionRow.name == pipeline, DatasetVersionRow.deprecated_by.is_not(None))
    with reading(engine) as session:
        return tuple(session.scalars(wanted))


def refuse_deprecated(dataset: Dataset) -> None:
    """Raise DeniedError `snapshot.deprecated` for a version that a person has deprecated."""
    if dataset.is_deprecated and dataset.deleted_at is not None:
        when = dataset.deleted_at.isoformat(timespec="seconds")
        message = (
            f"snapshot {dataset.version} of {dataset.pipeline} is deprecated by {dataset.deprecated_by} since {when}: {dataset.reason}"
        )
        hint = "correct the source and trigger the run again, or name another snapshot"
        raise DeniedError("snapshot.deprecated", message, hint=hint)


def deprecate(engine: Engine, pipeline: str, version: str, *, by: str, reason: str) -> Dataset:
    """Mark a version as deprecated, once: new runs refuse it; its files, and what was made of it, stay. The same again changes nothing.

    Args:
        by: the user who orders it.
        reason: for those who read it a year later; not empty, at most 2,000 characters, none of them a control character.

    Raises:
        DeniedError: `snapshot.unknown`; `snapshot.deprecated`, by another user or for another reason; `snapshot.reason`.
        UnavailableError: `database.unavailable`.
    """
    check_reason(reason)
    known = find_dataset(engine, pipeline, version)
    with writing(engine) as session:
        row = session.scalar(_wanted(pipeline, known.version).with_for_update())
        if row is None:
            raise DeniedError("snapshot.unknown", f"pipeline {pipeline} has no snapshot {shown(version)}", hint="list its versions")
        if (row.deprecated_by, row.deprecated_reason) != (by, reason.strip()):
            refuse_deprecated(_dataset(row))
            row.deprecated_at, row.deprecated_by, row.deprecated_reason = datetime.now(UTC), by, reason.strip()
    return find_dataset(engine, pipeline, known.version)


def check_reason(reason: str) -> None:
    """Refuse a reason that is empty, too long, or has characters that cannot be shown.

    Raises:
        DeniedError: `snapshot.reason`.
    """
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        raise DeniedError("snapshot.reason", "the reason is empty or too long", hint=f"say why, in at most {MAX_REASON_CHARS:,} characters")
    if fault := free_text_fault(reason):
        raise DeniedError("snapshot.reason", f"the reason {fault}", hint="remove the character")


def note_erased(session: Session, digests: Collection[str], *, by: str, reason: str) -> None:
    """Deprecate the snapshots with these digests, of every pipeline: no run uses one, and none is compared with one."""
    versions = {digest[:VERSION_DIGITS] for digest in digests}
    rows = session.scalars(
        select(DatasetVersionRow).where(DatasetVersionRow.version.in_(versions), DatasetVersionRow.deprecated_by.is_(None))
    )
    for row in rows:
        row.deprecated_at, row.deprecated_by, row.deprecated_reason = datetime.now(UTC), by, f"erased: {reason}"[:MAX_REASON_CHARS]


def _wanted(pipeline: str, version: str) -> Select[DatasetVersionRow]:
    return select(DatasetVersionRow).where(DatasetVersionRow.name == pipeline, DatasetVersionRow.version == version[:VERSION_DIGITS])


def _dataset(row: DatasetVersionRow) -> Dataset:
    return Dataset(
        pipeline=row.name,
        version=row.version,
        uri=row.storage_uri,
        rows=row.row_count,
        size_bytes=row.size_bytes,
        schema_hash=row.schema_hash,
        split=row.split_config,
        split_hash=row.split_config_hash,
        created_at=with_zone(row.created_at),
        created_by=row.created_by,
        deleted_at=None if row.deprecated_at is None else with_zone(row.deprecated_at),
        deprecated_by=row.deprecated_by,
        reason=row.deprecated_reason,
    )
