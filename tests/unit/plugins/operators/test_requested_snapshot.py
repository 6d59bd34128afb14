"""A run on an existing snapshot: found, refused, not waited for, and work of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.stage_work import work_of
from nightshift.operators.wait import WaitForData
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from training.contracts import RunIdentity, StageResult
from training.data.snapshot.index import register_snapshot
from training.database import connect
from training.database.datasets import deprecate, find_dataset
from training.errors import DeniedError
from training.runtime.provenance import CHECKOUT
from training.sources.listing import snapshot_ref_name
from training.sources.table_contract import contracts_of
from training.spec import load_spec
from training.store import Manifest, Store

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
AS_OF = "2026-01-20T02:00:00+00:00"
Context = Callable[..., Any]
Execute = Callable[[BaseOperator, Any], Any]


def taken(store: Store, settings: Settings, *, name: str = "search_ranking", main: str = "clicks", **types: str | None) -> Manifest:
    """Store and register a snapshot without rows; `types` replaces types of columns of the main table."""
    schemas = {contract.name: dict(contract.types) for contract in contracts_of(load_spec(SPEC_PATH))}
    for column, kind in types.items():
        schemas["clicks"].pop(column)
        if kind is not None:
            schemas["clicks"][column] = kind
    tables = {table: {"rows": 0, "schema": schema, "schema_hash": "a" * 64, "parts": {}} for table, schema in schemas.items()}
    meta = {"as_of": AS_OF, "window": {"start": AS_OF, "end": AS_OF}, "main": main, "split": {}, "tables": tables}
    manifest = Manifest(kind="snapshot", files={}, meta=meta)
    uri = store.manifests.put(manifest)
    if main in tables:
        register_snapshot(connect(settings.database_url), name=name, uri=uri, manifest=manifest, created_by="r0")
    return manifest


@pytest.fixture
def resolve() -> ResolveOperator:
    return ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH))


def ask(snapshot: str, **more: Any) -> dict[str, Any]:
    return {"snapshot": snapshot, **more}


@pytest.mark.parametrize("digits", [16, 64])
def test_a_run_on_a_snapshot_has_its_as_of_and_says_so_in_what_the_decision_records(
    digits: int, resolve: ResolveOperator, shop: Path, store: Store, settings: Settings, context_of: Context, execute: Execute
) -> None:
    manifest = taken(store, settings)
    run = {"conf": ask(manifest.digest[:digits]), "logical_date": datetime(2026, 1, 25, tzinfo=UTC)}
    values = execute(resolve, context_of("resolve", **run))
    assert values["as_of"] == AS_OF
    assert values["snapshot"]["digest"] == manifest.digest
    assert values["overrides"] == {"snapshot": manifest.digest[:16]}
    resolved = ResolvedRun(values)
    assert resolved.snapshot is not None
    assert store.manifests.get(resolved.snapshot.uri, kind="snapshot") == manifest


def test_nothing_is_listed_or_waited_for_and_the_work_is_the_snapshots(
    resolve: ResolveOperator, shop: Path, store: Store, settings: Settings, context_of: Context, execute: Execute
) -> None:
    values = execute(resolve, context_of("resolve", conf=ask(taken(store, settings).digest)))
    for path in shop.rglob("*.parquet"):
        os.remove(path)
    wait = WaitForData(task_id="wait", wait=timedelta(hours=2))
    assert execute(wait, context_of("wait", results={"resolve": values})) is None
    work = work_of("ingest", ResolvedRun(values), {}, settings=settings)
    assert work.parameters == {"snapshot": values["snapshot"]["uri"]}
    assert work_of("ingest", ResolvedRun(values), {}, settings=settings).id == work.id


def refused(resolve: ResolveOperator, execute: Execute, context: Any) -> str:
    with pytest.raises(AirflowFailException) as caught:
        execute(resolve, context)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "[snapshot.unknown] pipeline search_ranking has no snapshot"),
        ({"price": "double"}, "[snapshot.schema] the snapshot {version} is of another schema than the YAML: clicks.price: double → float"),
        ({"price": None}, "clicks.price: nothing → float"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_before_anything_starts(
    change: dict[str, Any],
    message: str,
    resolve: ResolveOperator,
    shop: Path,
    store: Store,
    settings: Settings,
    context_of: Context,
    execute: Execute,
) -> None:
    manifest = taken(store, settings, **change)
    found = refused(resolve, execute, context_of("resolve", conf=ask(manifest.digest)))
    assert message.format(version=manifest.digest[:16]) in found
    assert store.run_ref("search_ranking", "r1", "settled").read() is None


def test_an_unknown_a_misspelt_and_a_deleted_snapshot_are_refused(
    resolve: ResolveOperator, shop: Path, store: Store, settings: Settings, context_of: Context, execute: Execute
) -> None:
    assert "[snapshot.unknown]" in refused(resolve, execute, context_of("resolve", conf=ask("0" * 16)))
    assert "snapshot: [field.pattern]" in refused(resolve, execute, context_of("resolve", conf=ask("newest")))
    manifest = taken(store, settings)
    for entry in [entry for entry in store.bucket.list("manifests") if manifest.digest in entry.key]:
        store.bucket.delete(entry.key)
    assert manifest.digest in refused(resolve, execute, context_of("resolve", conf=ask(manifest.digest)))


@pytest.mark.parametrize(
    ("types", "changes"),
    [
        ({"price": "double"}, "clicks.price: double → float"),
        ({"price": None}, "clicks.price: added, float"),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("policy", ["warn", "fail"])
def test_columns_are_compared_with_the_previous_snapshot_when_a_run_is_submitted(
    types: dict[str, str | None],
    changes: str,
    policy: str,
    tmp_path: Path,
    shop: Path,
    store: Store,
    settings: Settings,
    context_of: Context,
    execute: Execute,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = taken(store, settings, **types)
    uri = find_dataset(connect(settings.database_url), "search_ranking", manifest.digest).uri
    store.ref(snapshot_ref_name("search_ranking", datetime.fromisoformat(AS_OF))).move(uri, expected=0)
    text = SPEC_PATH.read_text(encoding="utf-8").replace("\nvalidate:\n", f"\nvalidate:\n  schema_change: {policy}\n", 1)
    assert f"schema_change: {policy}" in text
    (tmp_path / SPEC_PATH.name).write_text(text, encoding="utf-8")
    resolve = ResolveOperator(task_id="resolve", spec_path=str(tmp_path / SPEC_PATH.name))
    words = f"[schema.changed] the YAML declares other columns than the snapshot of {AS_OF} has: {changes}"
    if policy == "fail" and changes:
        assert words in refused(resolve, execute, context_of("resolve"))
        assert store.run_ref("search_ranking", "r1", "settled").read() is None
    else:
        execute(resolve, context_of("resolve"))
        assert (words in capsys.readouterr().out) is bool(changes)
    # A night of before it has nothing to be compared with.
    execute(resolve, context_of("resolve", conf={"as_of": "2026-01-20"}))


def test_a_deprecated_snapshot_is_no_reference_for_columns_volume_or_drift(
    resolve: ResolveOperator,
    shop: Path,
    store: Store,
    settings: Settings,
    context_of: Context,
    execute: Execute,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = taken(store, settings, price=None)
    database = connect(settings.database_url)
    uri = find_dataset(database, "search_ranking", manifest.digest).uri
    store.ref(snapshot_ref_name("search_ranking", datetime.fromisoformat(AS_OF))).move(uri, expected=0)
    store.ref(f"profiles/search_ranking/{manifest.digest}").move(store.put_json({"profile": 1}), expected=0)
    night = execute(resolve, context_of("resolve"))
    result = ingested(uri, "f" * 64)
    before = work_of("validate", ResolvedRun(night), {"snapshot": result}, settings=settings)
    assert (before.parameters["previous_snapshot"], len(before.parameters["earlier"])) == (uri, 1)
    assert "[schema.changed]" in capsys.readouterr().out

    deprecate(database, "search_ranking", manifest.digest, by="ann", reason="prices were in cents")

    night = execute(resolve, context_of("resolve", run_id="r2"))
    after = work_of("validate", ResolvedRun(night), {"snapshot": result}, settings=settings)
    assert after.parameters["previous_snapshot"] is None
    assert "earlier" not in after.parameters
    assert "[schema.changed]" not in capsys.readouterr().out


def test_a_previous_snapshot_that_is_lost_stops_no_run(
    resolve: ResolveOperator, shop: Path, store: Store, context_of: Context, execute: Execute, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{store.root_uri}/manifests/sha256/11/{'1' * 64}.json"
    store.ref(snapshot_ref_name("search_ranking", datetime.fromisoformat(AS_OF))).move(uri, expected=0)
    execute(resolve, context_of("resolve"))
    assert "the columns are not compared with those of the previous snapshot: [object.missing]" in capsys.readouterr().out


def test_another_as_of_than_the_snapshots_is_refused(
    resolve: ResolveOperator, shop: Path, store: Store, settings: Settings, context_of: Context, execute: Execute
) -> None:
    manifest = taken(store, settings)
    found = refused(resolve, execute, context_of("resolve", conf=ask(manifest.digest, as_of="2026-01-21")))
    assert "as_of: [snapshot.as_of]" in found
    assert execute(resolve, context_of("resolve", conf=ask(manifest.digest, as_of="2026-01-20T03:00:00+01:00")))["as_of"] == AS_OF


def ingested(uri: str, digest: str) -> StageResult:
    return StageResult(
        pipeline="search_ranking",
        stage="ingest",
        work_id="f" * 64,
        artifact_uri=uri,
        digest=digest,
        run=RunIdentity(dag_id="search_ranking", run_id="r1", task_id="ingest"),
        attempt_id="a",
        attempts=1,
        committed_at=AS_OF,
        scalars={},
    )


def test_a_deprecated_snapshot_is_refused_by_name_and_as_the_result_of_an_earlier_ingest(
    resolve: ResolveOperator, shop: Path, store: Store, settings: Settings, context_of: Context, execute: Execute
) -> None:
    manifest = taken(store, settings)
    values = execute(resolve, context_of("resolve", conf=ask(manifest.digest)))
    result = ingested(values["snapshot"]["uri"], manifest.digest)
    resolved = ResolvedRun(values)
    assert work_of("validate", resolved, {"snapshot": result}, settings=settings).inputs == {"snapshot": result.artifact_uri}
    deprecate(connect(settings.database_url), "search_ranking", manifest.digest, by="ann", reason="prices were in cents")
    assert "is deprecated by ann since" in refused(resolve, execute, context_of("resolve", conf=ask(manifest.digest)))
    with pytest.raises(DeniedError) as caught:
        work_of("validate", resolved, {"snapshot": result}, settings=settings)
    assert caught.value.code == "snapshot.deprecated"
