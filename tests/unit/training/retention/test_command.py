"""The settings of retention, and its command."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.commands import command
from tests.unit.training.registry.scenes import decide_on
from tests.unit.training.store.collected_store import collector_of
from training.errors import SpecError, StoreError
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.retention import LedgerRoots
from training.retention.settings import Retention, load_retention
from training.store import Store
from training.store.garbage_collector import Collector
from training.store.reachability import KeepRules

main = command("gc")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    monkeypatch.setenv("NIGHTSHIFT_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("NIGHTSHIFT_RETENTION", raising=False)
    return Store(str(tmp_path / "store"))


def test_defaults_hold_without_a_file() -> None:
    assert load_retention({}) == Retention()
    assert Retention().rules() == KeepRules(runs=timedelta(days=30), attempts=timedelta(days=14), grace=timedelta(days=2))


def test_file_is_read_and_each_key_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "retention.yaml"
    path.write_text("runs: 7d\nattempts: 2d\ngrace: 3h\nchampions: 2\nairflow: 5d\nevery: 6h\n", encoding="utf-8")
    found = load_retention({"NIGHTSHIFT_RETENTION": str(path)})
    assert found.rules() == KeepRules(runs=timedelta(days=7), attempts=timedelta(days=2), grace=timedelta(hours=3))
    assert (found.champions, found.airflow, found.every) == (2, timedelta(days=5), timedelta(hours=6))


def test_everything_that_is_wrong_with_the_file_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "retention.yaml"
    path.write_text("runs: soon\ngrace: 5m\nchampion: 3\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_retention({"NIGHTSHIFT_RETENTION": str(path)})
    assert [(problem.line, problem.code) for problem in caught.value.problems] == [
        (1, "duration.invalid"),
        (2, "field.range"),
        (3, "spec.unknown_key"),
    ]


def test_settings_that_cannot_be_read_have_another_code_than_records_that_cannot(tmp_path: Path, store: Store) -> None:
    with pytest.raises(SpecError, match="absent") as settings:
        load_retention({"NIGHTSHIFT_RETENTION": str(tmp_path / "absent")})
    store.bucket.put("refs/kept/x/0000000001.json", b"{")
    with pytest.raises(StoreError, match="refs/kept/x") as record:
        collector_of(store, Retention().rules()).collect()
    assert (settings.value.code, record.value.code) == ("settings.retention", "retention.unreadable")


def test_path_of_the_file_that_depends_on_the_working_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "retention.yaml").write_text("runs: 7d\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"NIGHTSHIFT_RETENTION: \[settings\.path\] is not an absolute path"):
        load_retention({"NIGHTSHIFT_RETENTION": "retention.yaml"})


@pytest.mark.parametrize("key", ["runs", "airflow"])
def test_minutes_for_days_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "retention.yaml"
    path.write_text(f"{key}: 30m\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"must be at least 1d.*m is for minutes") as caught:
        load_retention({"NIGHTSHIFT_RETENTION": str(path)})
    assert [(problem.line, problem.code) for problem in caught.value.problems] == [(1, "field.range")]


def test_dry_run_prints_bytes_by_kind_and_deletes_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.manifests.put_files("snapshot", {"t": b"x" * 100_000}, {})
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kind", "kept", "to", "be", "deleted", "later", "would", "be", "deleted", "now"]
    assert [line.split() for line in lines if line.startswith("snapshot")] == [["snapshot", "0.00", "MB", "0.10", "MB", "0.00", "MB"]]
    assert store.bucket.list("condemned") == []


def test_artifact_that_is_kept_stays_until_it_is_released(store: Store) -> None:
    rules = KeepRules(runs=timedelta(days=1), attempts=timedelta(days=1), grace=timedelta(0))
    uri, _ = store.manifests.put_files("snapshot", {"t": b"rows"}, {})
    collector_of(store, rules).collect()
    assert main(["--keep", uri]) == 0
    for _ in range(3):
        collector_of(store, rules).collect()
    assert store.manifests.get(uri)
    assert main(["--release", uri]) == 0
    for _ in range(3):
        collector_of(store, rules).collect()
    assert store.bucket.list("objects") == []


@pytest.mark.parametrize("option", ["--keep", "--release"])
@pytest.mark.parametrize("uri", ["", "snapshot", "file:///elsewhere/manifests/sha256/"])
def test_what_is_no_uri_of_an_artifact_is_neither_kept_nor_released_nor_left_out(
    store: Store, capsys: pytest.CaptureFixture[str], option: str, uri: str
) -> None:
    kept, _ = store.manifests.put_files("snapshot", {"t": b"rows"}, {})
    assert main(["--keep", kept]) == 0
    capsys.readouterr()
    assert main([option, uri]) == 77
    out, err = capsys.readouterr()
    assert (out, "[store.foreign_uri]" in err, repr(uri) in err) == ("", True, True)
    assert len(store.bucket.list("refs/kept")) == 1


def test_release_says_whether_the_artifact_was_kept(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    uri, _ = store.manifests.put_files("snapshot", {"t": b"rows"}, {})
    for words in (["--keep", uri], ["--release", uri], ["--release", uri]):
        assert main(words) == 0
    assert capsys.readouterr().out == f"kept: snapshot {uri}\nreleased: {uri}\nwas not kept: {uri}\n"


def test_what_became_of_an_artifact_is_json_with_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    uri, _ = store.manifests.put_files("snapshot", {"t": b"rows"}, {})
    answers = []
    for words in (["--keep", uri], ["--release", uri], ["--release", uri]):
        assert main([*words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers == [{"answer": answer, "uri": uri} for answer in ("kept", "released", "was not kept")]


def test_command_names_what_is_wrong_and_ends_with_its_code(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keep", f"{store.root_uri}/manifests/sha256/aa/{'a' * 64}.json"]) == 65
    assert "does not exist" in capsys.readouterr().err
    collector_of(store, KeepRules(runs=timedelta(1), attempts=timedelta(1), grace=timedelta(1)))._begin()
    assert main(["--delete"]) == 75
    assert "another collection" in capsys.readouterr().err


def collect(store: Store, database: Path) -> None:
    """Collect as an installation with this ledger does, long after everything was made."""
    rules = KeepRules(runs=timedelta(seconds=-5), attempts=timedelta(seconds=-5), grace=timedelta(0))
    Collector(store, rules, LedgerRoots(f"sqlite:///{database}", champions=0)).collect()


def test_champion_stays_where_an_installation_with_another_ledger_collects_the_same_store(store: Store, tmp_path: Path) -> None:
    uri, _ = store.manifests.put_files("model", {"w": b"weights"}, {})
    for name in ("first", "second"):
        decide_on(Ledger(f"sqlite:///{tmp_path}/{name}.db"), 1, evidence={"model_uri": uri if name == "first" else ""})
    collect(store, tmp_path / "first.db")
    for name in ("second", "empty"):
        for _ in range(3):
            with pytest.raises(StoreError, match=rf"retention\.other_ledger.*NIGHTSHIFT_DATABASE.*{store.root_uri}/collector/ledger"):
                collect(store, tmp_path / f"{name}.db")
    assert store.manifests.get(uri)
    collect(store, tmp_path / "first.db")


def test_empty_ledger_deletes_nothing_where_models_were_promoted(store: Store, tmp_path: Path) -> None:
    uri, _ = store.manifests.put_files("model", {"w": b"weights"}, {})
    collect(store, tmp_path / "empty.db")
    store.bucket.put(f"stages/p/promote/{'f' * 64}/_RESULT.json", b"{}")
    for _ in range(3):
        with pytest.raises(StoreError, match=r"retention\.other_ledger.*is empty"):
            collect(store, tmp_path / "empty.db")
    assert store.manifests.get(uri)


def test_ledger_that_was_restored_from_a_backup_is_the_same_one(store: Store, tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/first.db")
    decide_on(ledger, 1)
    collect(store, tmp_path / "first.db")
    decide_on(ledger, 2)
    with closing(sqlite3.connect(tmp_path / "first.db")) as database, closing(sqlite3.connect(tmp_path / "restored.db")) as backup:
        database.backup(backup)
    collect(store, tmp_path / "restored.db")


def test_gc_shows_by_default_and_deletes_when_it_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.objects.put_bytes(b"of no run")
    assert main([]) == 0
    assert "would be deleted now" in capsys.readouterr().out
    assert main(["--json"]) == 0
    assert set(next(iter(json.loads(capsys.readouterr().out).values()))) == {"kept", "condemned", "deleted"}
    assert [each.name for each in Path(store.root_uri.removeprefix("file://")).iterdir() if each.name in ("collector", "retention")] == []
    assert main(["--delete"]) == 0
    assert "would be" not in capsys.readouterr().out
