"""Versions of data sets: listed, shown, deprecated once by a person, and told apart from those that retention deleted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tests.commands import command
from training.data.snapshot.index import register_snapshot
from training.database import DatasetVersionRow, connect
from training.database.datasets import check_not_deprecated, datasets, deprecate, find_dataset
from training.errors import DeniedError
from training.store import Manifest, Store
from training.store.manifests import FileEntry

main = command("datasets")


def manifest(rows: int) -> Manifest:
    meta = {"main": "t", "split": {"by": "time"}, "tables": {"t": {"rows": rows, "schema_hash": "a" * 64}}}
    return Manifest(kind="snapshot", files={"t/1": FileEntry(digest="c" * 64, size_bytes=3)}, meta=meta)


@pytest.fixture
def engine(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", empty_database)
    return connect()


def registered(engine: Engine, name: str, rows: int) -> str:
    return register_snapshot(engine, name=name, uri=f"file:///{name}{rows}", manifest=manifest(rows), created_by=f"{name}/r{rows}")


def deleted_by_retention(engine: Engine, version: str) -> None:
    with Session(engine) as session, session.begin():
        for row in session.scalars(select(DatasetVersionRow).where(DatasetVersionRow.version == version)):
            row.deprecated_at = datetime.now(UTC)


def test_versions_are_listed_the_newest_first_and_found_by_version_or_digest(engine: Engine) -> None:
    first, second, other = registered(engine, "p", 2), registered(engine, "p", 3), registered(engine, "q", 4)
    assert [found.version for found in datasets(engine, "p")] == [second, first]
    assert [found.version for found in datasets(engine)] == [second, first, other]
    assert find_dataset(engine, "p", manifest(2).digest) == find_dataset(engine, "p", first)


def test_a_version_shows_its_split_and_its_columns_while_its_manifest_is_there(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store((tmp_path / "store").as_uri())
    facts = {"rows": 2, "schema_hash": "a" * 64, "schema": {"id": "int64", "price": "double"}}
    meta = {"main": "t", "split": {"by": "time", "test": "7d"}, "tables": {"t": facts}}
    uri, made = store.manifests.put_files("snapshot", {"t/1": b"rows"}, meta)
    version = register_snapshot(engine, name="p", uri=uri, manifest=made, created_by="p/r")
    command = ["show", "p", version, "--store", store.root_uri]
    assert main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "split:       by time, test 7d" in shown
    assert "table t:     id int64, price double" in shown
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["tables"]) == ({"by": "time", "test": "7d"}, {"t": {"id": "int64", "price": "double"}})
    store.bucket.delete(store.bucket.key(uri))
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] is None


def test_a_version_of_another_pipeline_is_unknown_and_its_owner_is_named(engine: Engine) -> None:
    version = registered(engine, "q", 2)
    with pytest.raises(DeniedError, match=f"pipeline p has no snapshot '{version}': it is of q") as caught:
        find_dataset(engine, "p", version)
    assert caught.value.code == "snapshot.unknown"


def test_a_deprecated_version_is_refused_with_who_when_and_why_and_stays_registered(engine: Engine) -> None:
    version = registered(engine, "p", 2)
    kept = registered(engine, "p", 3)
    registered(engine, "q", 2)
    found = deprecate(engine, "p", version, by="ann", reason=" prices were in cents ")
    assert (found.deprecated_by, found.reason, found.is_deprecated) == ("ann", "prices were in cents", True)
    with pytest.raises(DeniedError, match=rf"snapshot {version} of p is deprecated by ann since 20.*: prices were in cents") as caught:
        check_not_deprecated(engine, "p", manifest(2).digest)
    assert caught.value.code == "snapshot.deprecated"
    with pytest.raises(DeniedError, match="is deprecated by ann"):
        registered(engine, "p", 2)
    check_not_deprecated(engine, "q", manifest(2).digest)
    check_not_deprecated(engine, "p", manifest(3).digest)
    assert [each.version for each in datasets(engine, "p")] == [kept, version]


def test_a_version_is_deprecated_once(engine: Engine) -> None:
    version = registered(engine, "p", 2)
    first = deprecate(engine, "p", version, by="ann", reason="wrong")
    assert deprecate(engine, "p", version, by="ann", reason="wrong ") == first
    for by, reason in (("bob", "wrong"), ("ann", "again")):
        with pytest.raises(DeniedError, match="deprecated by ann"):
            deprecate(engine, "p", version, by=by, reason=reason)
    assert find_dataset(engine, "p", version).deprecated_by == "ann"


@pytest.mark.parametrize("reason", ["", "  ", "x" * 2001])
def test_a_deprecation_needs_a_reason(engine: Engine, reason: str) -> None:
    version = registered(engine, "p", 2)
    with pytest.raises(DeniedError) as caught:
        deprecate(engine, "p", version, by="ann", reason=reason)
    assert caught.value.code == "snapshot.reason"


def test_a_version_that_retention_deleted_is_not_deprecated_and_may_be_made_again(engine: Engine) -> None:
    version = registered(engine, "p", 2)
    deleted_by_retention(engine, version)
    assert registered(engine, "p", 2) == version
    assert not find_dataset(engine, "p", version).is_deprecated
    assert deprecate(engine, "p", version, by="ann", reason="wrong").is_deprecated


def test_the_command_lists_shows_and_deprecates(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    version, gone = registered(engine, "p", 2000), registered(engine, "p", 3)
    deleted_by_retention(engine, gone)
    assert main(["deprecate", "p", version, "--reason", "wrong", "--by", "ann"]) == 0
    assert "by ann: wrong" in capsys.readouterr().out
    assert main(["list", "p"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("3 rows  0.0 MiB  deleted by retention")
    assert lines[1].startswith(f"p  {version}  20")
    assert lines[1].endswith("2,000 rows  0.0 MiB  deprecated")
    assert main(["show", "p", version, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["deprecated_by"], shown["uri"]) == (version, "ann", "file:///p2000")
    assert main(["show", "p", "0" * 16]) == 77
    assert "[snapshot.unknown]" in capsys.readouterr().err
    assert main(["deprecate", "p", version, "--reason", "twice"]) == 77


def test_the_command_says_that_there_is_nothing(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "there is no snapshot yet\n"
