"""The index of snapshots in our database: which versions of a pipeline's data there are, and where."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine, and_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from training.contracts import canonical_json, sha256_hex
from training.database import DatasetVersionRow
from training.database.connect import database_faults
from training.database.datasets import VERSION_DIGITS, check_not_deprecated
from training.store import Manifest


def register_snapshot(engine: Engine, *, name: str, uri: str, manifest: Manifest, created_by: str) -> str:
    """Make the snapshot's row, unless it has one; return its version, the first 16 digits of its digest.

    The row of a snapshot whose files retention had deleted says again that they are there, and where.

    Args:
        name: the pipeline.
        created_by: the task instance that requested it.

    Raises:
        DeniedError: `snapshot.deprecated`, a person has deprecated a snapshot with the same content.
        UnavailableError: `database.unavailable`.
    """
    main = manifest.meta["tables"][manifest.meta["main"]]
    version = manifest.digest[:VERSION_DIGITS]
    row = DatasetVersionRow(
        name=name,
        version=version,
        storage_uri=uri,
        row_count=main["rows"],
        size_bytes=manifest.size_bytes,
        schema_hash=main["schema_hash"],
        split_config=manifest.meta["split"],
        split_config_hash=sha256_hex(canonical_json(manifest.meta["split"])),
        created_at=datetime.now(UTC),
        created_by=created_by,
    )
    is_same = and_(DatasetVersionRow.name == name, DatasetVersionRow.version == version)
    with database_faults(), Session(engine) as session:
        if session.scalar(select(DatasetVersionRow.id).where(is_same)) is None:
            session.add(row)
            try:
                session.commit()
            except IntegrityError:
                # Another run registered the same snapshot in between; its row says the same.
                session.rollback()
        else:
            session.execute(
                update(DatasetVersionRow)
                .where(is_same, DatasetVersionRow.deprecated_by.is_(None))
                .values(deprecated_at=None, storage_uri=uri)
            )
            session.commit()
    check_not_deprecated(engine, name, version)
    return version
