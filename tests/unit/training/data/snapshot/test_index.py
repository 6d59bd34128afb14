"""The index of snapshots: one row per snapshot of a pipeline."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, select, update
from sqlalchemy.orm import Session

from training.contracts import canonical_json, sha256_hex
from training.data.snapshot.index import register_snapshot
from training.database import DatasetVersionRow, connect
from training.database.datasets import find_dataset
from training.errors import DeniedError
from training.store import Manifest
from training.store.manifests import FileEntry


def manifest(rows: int = 2) -> Manifest:
    meta = {
        "main": "t",
        "split": {"by": "time"},
        "tables": {"t": {"rows": rows, "schema_hash": "a" * 64}, "u": {"rows": 7, "schema_hash": "b"}},
    }
    return Manifest(
        kind="snapshot", files={"t/1": FileEntry(digest="c" * 64, size_bytes=3), "u/1": FileEntry(digest="d" * 64, size_bytes=4)}, meta=meta
    )


def all_rows(engine: Engine) -> list[DatasetVersionRow]:
    with Session(engine) as session:
        return list(session.scalars(select(DatasetVersionRow).order_by(DatasetVersionRow.id)))


def test_a_snapshot_is_registered_once_for_several_callers(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/n.db")
    versions = {register_snapshot(engine, name="p", uri="file:///m", manifest=manifest(), created_by=f"run {n}") for n in range(2)}
    (row,) = all_rows(engine)
    assert versions == {row.version} == {manifest().digest[:16]}
    assert (row.name, row.storage_uri, row.row_count, row.size_bytes, row.schema_hash) == ("p", "file:///m", 2, 7, "a" * 64)
    assert (row.split_config, row.split_config_hash) == ({"by": "time"}, sha256_hex(canonical_json({"by": "time"})))
    assert (row.created_by, row.deprecated_at) == ("run 0", None)


def test_other_content_and_other_pipelines_have_rows_of_their_own(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/n.db")
    for name, rows in (("p", 2), ("p", 3), ("q", 2)):
        register_snapshot(engine, name=name, uri="file:///m", manifest=manifest(rows), created_by="run")
    assert len(all_rows(engine)) == 3


@pytest.mark.parametrize("person", [None, "ada"])
def test_a_snapshot_that_is_made_again_after_retention_deleted_it_is_available_where_it_is_now(tmp_path: Path, person: str | None) -> None:
    engine = connect(f"sqlite:///{tmp_path}/n.db")
    version = register_snapshot(engine, name="p", uri="file:///old", manifest=manifest(), created_by="run 1")
    with Session(engine) as session, session.begin():
        session.execute(update(DatasetVersionRow).values(deprecated_at=datetime.now(UTC), deprecated_by=person))
    with nullcontext() if person is None else pytest.raises(DeniedError, match="is deprecated by ada"):
        register_snapshot(engine, name="p", uri="file:///new", manifest=manifest(), created_by="run 2")
    found = find_dataset(engine, "p", version)
    assert (found.health, found.uri) == (("available", "file:///new") if person is None else ("deprecated", "file:///old"))


def test_two_runs_at_once_make_one_row(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path}/n.db")
    faults: list[Exception] = []

    def register() -> None:
        try:
            register_snapshot(engine, name="p", uri="file:///m", manifest=manifest(), created_by="run")
        except Exception as err:
            faults.append(err)

    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(all_rows(engine)) == 1


def test_a_row_that_another_run_made_in_between_counts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/n.db"
    first = connect(url)
    # Takes no lock when it begins, as on PostgreSQL.
    second = create_engine(url)

    @event.listens_for(second, "before_cursor_execute")
    def _overtake(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith("INSERT"):
            register_snapshot(first, name="p", uri="file:///m", manifest=manifest(), created_by="first")

    register_snapshot(second, name="p", uri="file:///m", manifest=manifest(), created_by="second")
    assert [row.created_by for row in all_rows(first)] == ["first"]
