"""Erasure: everything that holds a person's rows goes, nothing brings them back, and the ledger says who ordered it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from tests.commands import command
from tests.unit.training.registry.scenes import decide_on
from tests.unit.training.stages.evaluate_bench import AS_OF, SPEC, EvaluateBench, nobody_else, run_stage, spec_for
from tests.unit.training.store.collected_store import NOW, collector_of
from tests.unit.training.store.conftest import KEYS, s3_port
from training.contracts import ExitCode
from training.database import connect
from training.database.datasets import datasets
from training.database.schema import ErasureRow
from training.errors import StoreError
from training.registry.ledger.ledger import Ledger
from training.retention.held_rows import HeldRows, RowSearch
from training.sources.listing import listing_for, previous_snapshot
from training.store import Manifest, Store
from training.store.condemned import Condemned
from training.store.manifests import FileEntry
from training.store.reachability import content_keys
from training.store.work_folder import StoreUri

__all__ = ["s3_port"]

main = command("erase")
CUSTOMER = 77
BY_KEY = ["orders", "--key", f"customer={CUSTOMER}"]
ORDERED = [*BY_KEY, "--delete", "--reason", "request 12 of 2026-02-01", "--by", "ada"]


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an installation with one run up to its evaluation, and of a database."""
    folder = tmp_path_factory.mktemp("run")
    with nobody_else(folder):
        bench = EvaluateBench(folder, "binary")
        bench.stage("validate", {"snapshot": bench.snapshot_uri}, {"previous_snapshot": None})
        bench.evaluate(bench.train(work="made"))
        yield folder


@pytest.fixture
def store(run_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copytree(run_once, tmp_path / "run")
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/run/nightshift.db")
    monkeypatch.setenv("NIGHTSHIFT_STORE", str(tmp_path / "run" / "store"))
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NIGHTSHIFT_RETENTION", raising=False)
    return Store(str(tmp_path / "run" / "store"))


@pytest.fixture
def s3_store(store: Store, s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store's content in S3 (moto's server), as the installation's store."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}", "NIGHTSHIFT_STORE": "s3://nightshift/store"}.items():
        monkeypatch.setenv(name, value)
    made = Store("s3://nightshift/store")
    for key in files(store):
        made.bucket.put(key, store.bucket.get(key))
    return made


def kinds(store: Store) -> list[str]:
    uris = (store.bucket.uri(entry.key) for entry in store.bucket.list("manifests"))
    return sorted(store.manifests.get(uri).kind for uri in uris)


def rows_of_the_customer(store: Store, folder: Path) -> int:
    """Count the rows in all files of the store that have the customer's column."""
    found = 0
    for entry in store.bucket.list("objects"):
        path = folder / "object"
        path.write_bytes(store.bucket.get(entry.key))
        if path.read_bytes()[:4] == b"PAR1" and "customer" in pq.read_schema(path).names:
            found += pq.read_table(path).column("customer").to_pylist().count(CUSTOMER)
    return found


def files(store: Store) -> set[str]:
    return {entry.key for entry in store.bucket.list("")}


def again(store: Store, folder: Path, *, without_rows: bool) -> tuple[ExitCode, dict[str, object] | None]:
    """Ingest once more, of a source that has the customer's rows or has lost them."""
    source = folder / "run" / "orders" / "orders.csv"
    if without_rows:
        frame = pd.read_csv(source)
        frame[frame["customer"] != CUSTOMER].to_csv(source, index=False)
    spec = spec_for(SPEC, "binary", source.parent.as_uri())
    parameters = {"listing": listing_for(spec, AS_OF)}
    work_id = ("a" if without_rows else "b") * 64
    ended, work_folder = run_stage(store, spec, "ingest", {}, parameters, work_id=work_id, run_id="later", as_of=AS_OF)
    return ended, work_folder.error("a1")


def test_a_dry_run_lists_what_holds_the_rows_with_its_consequence_and_writes_nothing(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(store)
    assert main(BY_KEY) == 0
    printed = capsys.readouterr().out
    orders = pd.read_csv(Path(store.root_uri.removeprefix("file://")).parent / "orders" / "orders.csv")
    assert f"{orders['customer'].eq(CUSTOMER).sum()} rows in 1 file," in printed
    consequences = {
        "snapshot": "cannot be repeated",
        "dataset": "no training",
        "evaluation": "decision stays",
        "model": "--models deletes it",
    }
    for kind, words in consequences.items():
        assert [line for line in printed.splitlines() if line.startswith(kind) and words in line], kind
    assert "nothing was erased" in printed
    assert files(store) == before


def test_after_an_erasure_no_file_of_the_store_has_the_rows_and_weights_stay(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows_of_the_customer(store, tmp_path) > 0
    copies = tmp_path / "home" / "reports" / "orders" / "r"
    copies.mkdir(parents=True)
    assert main(ORDERED) == 0
    assert "a second search found 0 rows in 0 snapshots" in capsys.readouterr().err
    assert rows_of_the_customer(store, tmp_path) == 0
    assert kinds(store) == ["model"]
    assert not store.bucket.list("reports")
    assert not [key for key in files(store) if key.endswith("log.txt")]
    assert not copies.exists()


def test_pages_of_work_whose_result_could_not_be_written_after_its_commit_are_erased(store: Store) -> None:
    for key in [key for key in files(store) if key.endswith("/_RESULT.json")]:
        work_folder = store.work_folder(*key.split("/")[1:4])
        work_folder.write_error(work_folder.attempts()[-1], {"code": "storage.unavailable", "exit_code": int(ExitCode.UNAVAILABLE)})
        store.bucket.delete(key)
    assert store.bucket.list("reports")
    assert main(ORDERED) == 0
    assert not store.bucket.list("reports")


def test_an_erasure_on_s3_writes_nothing_until_it_is_ordered_and_leaves_no_rows(
    s3_store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(s3_store)
    assert main(BY_KEY) == 0
    assert files(s3_store) == before
    assert rows_of_the_customer(s3_store, tmp_path) > 0
    assert main(ORDERED) == 0
    assert "a second search found 0 rows in 0 snapshots" in capsys.readouterr().err
    assert rows_of_the_customer(s3_store, tmp_path) == 0
    assert kinds(s3_store) == ["model"]


def test_what_was_erased_is_named_to_readers_and_no_reference_for_the_next_run(store: Store) -> None:
    [version] = datasets(connect(), "orders")
    assert main(ORDERED) == 0
    with pytest.raises(StoreError) as caught:
        store.manifests.get(version.uri)
    assert caught.value.code == "artifact.erased"
    assert previous_snapshot(store, "orders", AS_OF.replace(year=2027)) is None
    [marked] = datasets(connect(), "orders")
    assert (marked.health, marked.deprecated_by, marked.reason) == ("deprecated", "ada", "erased: request 12 of 2026-02-01")


def test_ingest_of_a_source_that_still_has_the_rows_is_refused_and_of_one_without_them_is_not(store: Store, tmp_path: Path) -> None:
    assert main(ORDERED) == 0
    ended, error = again(store, tmp_path, without_rows=False)
    assert ended is ExitCode.BAD_DATA
    assert error is not None
    assert error["code"] == "artifact.erased"
    assert again(store, tmp_path, without_rows=True)[0] is ExitCode.DONE
    assert rows_of_the_customer(store, tmp_path) == 0


def test_collections_leave_the_tombstones_for_good(store: Store, tmp_path: Path) -> None:
    assert main(ORDERED) == 0
    erased = {key for key, mark in Condemned(store.bucket).list().items() if Condemned(store.bucket).state(mark) == "erased"}
    assert erased
    for _ in range(2):
        collector_of(store, NOW).collect()
    assert {key for key, mark in Condemned(store.bucket).list().items() if Condemned(store.bucket).state(mark) == "erased"} == erased
    assert again(store, tmp_path, without_rows=False)[0] is ExitCode.BAD_DATA


def test_ledger_has_who_when_why_and_what_but_not_the_key_and_its_row_stays(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ORDERED) == 0
    with Session(connect()) as session:
        [row] = session.scalars(select(ErasureRow)).all()
    assert (row.pipeline, row.target, row.erased_by, row.reason) == ("orders", "customer", "ada", "request 12 of 2026-02-01")
    assert row.counts["snapshot"] == len(row.digests["snapshot"]) == 1
    assert len(row.key_hash or "") == 64
    assert str(CUSTOMER) not in json.dumps([row.counts, row.target, row.reason])
    with pytest.raises(DatabaseError, match="append-only"), connect().begin() as connection:
        connection.execute(text("DELETE FROM erasure"))
    main(BY_KEY)
    assert "this key was erased before" in capsys.readouterr().err


@pytest.mark.parametrize("num_deletions", [1, 3, 6])
def test_an_erasure_that_was_killed_is_finished_by_the_same_order(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_deletions: int
) -> None:
    deleted = []
    real = type(store.bucket).delete

    def killed(self: object, key: str, **options: bool) -> None:
        if len(deleted) == num_deletions:
            raise KeyboardInterrupt
        deleted.append(key)
        real(store.bucket, key, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(store.bucket), "delete", killed)
        assert main(ORDERED) == 130
    for entry in store.bucket.list("collector/runs"):
        store.bucket.delete(entry.key)  # as if its lease had run out
    assert main(ORDERED) == 0
    assert rows_of_the_customer(store, tmp_path) == 0
    assert "snapshot" not in kinds(store)


def test_weights_go_with_models_but_those_of_a_champion_stay(store: Store) -> None:
    [uri] = [u for e in store.bucket.list("manifests") if store.manifests.get(u := store.bucket.uri(e.key)).kind == "model"]
    decide_on(Ledger(), 1, evidence={"model_uri": uri})
    assert main([*ORDERED, "--models"]) == 0
    assert "model" in kinds(store)


def test_weights_of_no_alias_go_with_models_and_so_do_their_checkpoints(store: Store) -> None:
    uri, _ = store.manifests.put_files("checkpoint", {"rank0": b"weights"}, {})
    chain = store.work_folder("orders", "train", b"made".hex().rjust(64, "0")).chain()
    head = chain.read()
    chain.move({"kind": "checkpoint", "epoch": 1, "payload": {"uri": uri, "keep": 3}}, expected=head.number if head else 0)
    assert main([*ORDERED, "--models"]) == 0
    assert kinds(store) == []


def test_a_run_and_a_version_are_erased_as_a_whole(store: Store) -> None:
    [version] = datasets(connect(), "orders")
    assert main([f"orders:{version.version}"]) == 0
    assert main(["orders:r", "--delete", "--reason", "wrong consent"]) == 0
    assert "snapshot" not in kinds(store)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["orders", "--key", "customr=77"], 77, "no snapshot has a column customr"),
        (["orders", "--key", "customer=Ada"], 77, "the column is of type int64"),
        (["nothing", "--key", "customer=77"], 77, "has no snapshot"),
        (["orders:r7"], 77, "has no snapshot"),
        (["orders"], 2, "give PIPELINE with --key"),
        ([*BY_KEY, "--delete"], 77, "the reason is empty"),
    ],
)
def test_wrong_orders_say_what_is_wrong(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    before = files(store)
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    else:
        assert main(arguments) == code
    assert words in capsys.readouterr().err
    assert files(store) == before


def snapshot(store: Store, folder: Path, tables: dict[str, dict[str, dict[str, list[object]]]]) -> tuple[str, dict[str, str]]:
    """Store a snapshot of tables with files with columns, the first table its main one; return its URI and the digests of its files."""
    files, facts = {}, {}
    for table, listed in tables.items():
        parts = {}
        for name, columns in listed.items():
            path = folder / "written.parquet"
            pq.write_table(pa.table(columns), path)
            files[f"{table}/{name}"] = FileEntry(digest=store.objects.put_file(path), size_bytes=path.stat().st_size)
            rows = len(next(iter(columns.values())))
            parts[f"{table}/{name}"] = {"rows": rows, "schema": dict.fromkeys(columns, "string")}
        facts[table] = {"rows": 1, "schema": {"order_id": "int64"}, "parts": parts}
    uri = store.manifests.put(Manifest(kind="snapshot", files=files, meta={"main": next(iter(tables)), "tables": facts}))
    return uri, {name: entry.digest for name, entry in files.items()}


def test_files_of_one_table_may_differ_in_their_columns(store: Store, tmp_path: Path) -> None:
    uri, files = snapshot(store, tmp_path, {"t": {"old": {"order_id": [1]}, "new": {"order_id": [2], "person": ["Ada"]}}})
    found = RowSearch(store, tmp_path).of_key([uri], {"person": "Ada"})
    assert (found.num_rows, found.parts) == (1, {files["t/new"]})


def test_a_column_that_had_another_type_once_is_searched_where_the_value_fits(store: Store, tmp_path: Path) -> None:
    uri, files = snapshot(store, tmp_path, {"t": {"old": {"person": [7]}, "new": {"person": ["C-1"]}}})
    found = RowSearch(store, tmp_path).of_key([uri], {"person": "C-1"})
    assert (found.num_rows, found.parts) == (1, {files["t/new"]})


def test_a_snapshot_goes_without_files_that_have_no_rows_or_are_of_others_too(store: Store, tmp_path: Path) -> None:
    common: dict[str, dict[str, list[object]]] = {"all": {"country": ["NL"]}}
    empty: dict[str, list[object]] = {"order_id": []}
    mine, files = snapshot(store, tmp_path, {"t": {"empty": empty, "day": {"order_id": [1]}}, "countries": common})
    snapshot(store, tmp_path, {"t": {"empty": empty, "day": {"order_id": [2]}}, "countries": common})
    found = RowSearch(store, tmp_path).of_snapshot(mine)
    assert found.parts == {files["t/day"]}
    assert {holder.key for holder in found.holders.values()} == set(content_keys(mine))
    assert found.objects == {store.objects.key(files["t/day"])}


def test_what_work_under_way_stored_after_an_erasure_is_found_by_the_same_order(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    [version] = datasets(connect(), "orders")
    assert main(ORDERED) == 0
    store.manifests.put_files("dataset", {"f": b"rows"}, {"snapshot": StoreUri(version.uri).digest})
    assert main(BY_KEY) == 0
    assert "dataset" in capsys.readouterr().out.split("nothing was erased")[-2]
    assert main(ORDERED) == 0
    assert "dataset" not in kinds(store)


def test_rows_that_are_left_after_the_deletion_end_the_command(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.retention.erase_command.erase", lambda *_: (HeldRows(), set()))
    assert main(ORDERED) == 65
    assert "hold such rows after the deletion" in capsys.readouterr().err


def test_an_erasure_waits_for_the_end_of_work_on_the_rows(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.bucket.put(f"stages/orders/prepare/{'e' * 64}/attempts/a1/heartbeat.json", b"{}")
    assert main(ORDERED) == 77
    assert "is under way" in capsys.readouterr().err
    assert "snapshot" in kinds(store)
