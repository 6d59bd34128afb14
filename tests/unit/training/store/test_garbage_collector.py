"""The collector on a local folder and on S3: what stays, what goes, in which order, and what stops it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.store.collected_store import LONG, NOW, age, collector_of, keys, make, request_of
from training.contracts import StageResult
from training.errors import LeaseHeldError, StoreError
from training.runtime.provenance import CHECKOUT
from training.store import Store, records, set_run_ref
from training.store.condemned import TAKEOVER_SECONDS, Condemned
from training.store.garbage_collector import DEAD_SECONDS, Collector
from training.store.leases import Lease
from training.store.metric_journal import trial_journal
from training.store.reachability import RULES, KeepRules, kept_checkpoints

pytestmark = pytest.mark.usefixtures("files_are_objects")


def test_what_nothing_needs_is_deleted_after_its_work_folder_and_a_grace_period(store: Store) -> None:
    made = make(store)
    collector = collector_of(store, NOW)
    seen = []
    for _ in range(5):
        collector.collect()
        seen.append((bool(keys(store, "stages")), store.bucket.exists(store.bucket.key(made.artifact_uri)), bool(keys(store, "objects"))))
    # Condemned; the work folder; its artifact condemned; gone.
    assert seen == [(True, True, True), (False, True, True), (False, True, True), (False, False, False), (False, False, False)]
    assert keys(store, "runs", "condemned", "manifests") == []


def test_what_is_young_stays_for_as_long_as_the_rules_say(store: Store) -> None:
    made = make(store)
    garbage = store.objects.put_bytes(b"nobody needs this")
    for _ in range(3):
        report = collector_of(store, LONG).collect()
    assert report.total("deleted") == 0
    assert store.objects.get_bytes(garbage)
    assert store.work_folder("p", "train", "f" * 64).result() == made


def test_dry_run_writes_nothing_and_names_the_bytes_that_a_collection_then_deletes(store: Store) -> None:
    store.objects.put_bytes(b"x" * 1000)
    collector_of(store, NOW).collect()
    before = [(entry.key, entry.modified) for entry in store.bucket.list("")]
    planned = collector_of(store, NOW).collect(dry_run=True)
    assert [(entry.key, entry.modified) for entry in store.bucket.list("")] == before
    assert planned.by_kind["reports and specs"].deleted == 1000
    done = collector_of(store, NOW).collect()
    assert done.by_kind["reports and specs"].deleted == 1000
    assert keys(store, "objects") == []


def test_content_that_a_writer_makes_again_before_its_deletion_stays(store: Store) -> None:
    digest = store.objects.put_bytes(b"made twice")
    uri, _ = store.manifests.put_files("model", {"w": b"made twice"}, {})
    collector_of(store, NOW).collect()
    assert keys(store, "condemned")
    assert store.manifests.put_files("model", {"w": b"made twice"}, {})[0] == uri
    # The collection that was due finds both claimed; nothing reaches them, so they are condemned again later.
    collector_of(store, NOW).collect()
    assert store.objects.get_bytes(digest) == b"made twice"
    assert store.manifests.get(uri)


def test_writer_waits_for_a_deletion_under_way_and_then_writes_the_content_as_new(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.objects.put_bytes(b"under way")
    key = store.objects.key(digest)
    collector_of(store, NOW).collect()
    marks = Condemned(store.bucket)
    taken = marks.take(marks.list()[key])
    assert taken is not None
    waits = []

    def collector_goes_on(_seconds: float) -> None:
        waits.append(store.bucket.exists(key))
        store.bucket.delete(key)
        marks.clear(taken)

    monkeypatch.setattr(store.objects._condemned, "_sleep", collector_goes_on)
    assert store.objects.put_bytes(b"under way") == digest
    assert waits == [True]
    assert store.objects.get_bytes(digest) == b"under way"


def test_writer_takes_over_from_a_collector_that_died_in_a_deletion(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.objects.put_bytes(b"left")
    collector_of(store, NOW).collect()
    marks = Condemned(store.bucket)
    assert marks.take(marks.list()[store.objects.key(digest)])
    clock = [0.0]
    monkeypatch.setattr(store.objects._condemned, "_clock", lambda: clock[0])
    monkeypatch.setattr(store.objects._condemned, "_sleep", lambda _: clock.__setitem__(0, clock[0] + 60))
    store.objects.put_bytes(b"left")
    assert clock[0] == TAKEOVER_SECONDS
    assert store.objects.get_bytes(digest) == b"left"


def test_result_whose_artifact_is_missing_is_replaced_and_not_reused(store: Store) -> None:
    made = make(store)
    store.bucket.delete(store.bucket.key(made.artifact_uri))
    work_folder = store.work_folder("p", "train", "f" * 64)
    assert work_folder.result() is None
    uri, manifest = store.manifests.put_files("model", {"w": b"other"}, {})
    again = StageResult(**{**made.to_xcom_unchecked(), "run": made.run, "artifact_uri": uri, "digest": manifest.digest})
    assert work_folder.create_result(again)
    assert work_folder.result() == again
    assert not work_folder.create_result(made), "one whose artifact is there stands"


@pytest.mark.parametrize("damaged", ["stages", "runs", "refs"])
def test_record_that_cannot_be_read_stops_every_deletion_and_is_named(local: Store, damaged: str) -> None:
    make(local)
    local.ref("kept/x").move("u", expected=0)
    local.objects.put_bytes(b"garbage")
    before = keys(local, "objects", "manifests", "stages")
    name = next(key for key in keys(local, damaged) if key.endswith(("_RESULT.json", "0000000001.json")))
    local.bucket.put(name, b'{"half": ')
    rules = KeepRules(runs=timedelta(days=1), attempts=timedelta(days=1), grace=timedelta(0))
    for _ in range(2):
        with pytest.raises(StoreError, match=re.escape(name)) as caught:
            collector_of(local, rules).collect()
        assert caught.value.code == "retention.unreadable"
    assert keys(local, "objects", "manifests", "stages") == before


def test_altered_manifest_that_is_referenced_stops_every_deletion(local: Store) -> None:
    made = make(local)
    local.bucket.put(local.bucket.key(made.artifact_uri), b"{}")
    local.objects.put_bytes(b"garbage")
    with pytest.raises(StoreError, match=re.escape(made.artifact_uri)):
        collector_of(local, LONG).collect()


def test_uri_with_the_root_of_another_place_still_keeps_its_object(local: Store) -> None:
    uri, _ = local.manifests.put_files("model", {"w": b"moved"}, {})
    local.run_ref("p", "r", "model").move(uri.replace(local.root_uri, "s3://old/place"), expected=0)
    rules = KeepRules(runs=timedelta(days=1), attempts=timedelta(days=1), grace=timedelta(0))
    for _ in range(3):
        collector_of(local, rules).collect()
    assert local.manifests.get(uri)
    assert keys(local, "objects")


def test_roots_of_the_ledger_stay_and_one_that_is_seated_at_the_last_moment_too(local: Store) -> None:
    champion, _ = local.manifests.put_files("model", {"w": b"champion"}, {})
    late, _ = local.manifests.put_files("model", {"w": b"late"}, {})

    class Roots:
        def identity(self) -> str | None:
            return "ledger"

        def __init__(self) -> None:
            self.asked: list[str] = []

        def uris(self) -> list[str]:
            return [champion]

        def release(self, uris: Any) -> list[str]:
            self.asked += uris
            return [late]

    roots = Roots()
    for _ in range(2):
        Collector(local, NOW, roots).collect()
    assert roots.asked == [late]
    assert local.manifests.get(champion)
    assert local.manifests.get(late)


def test_second_collector_at_once_is_refused_and_one_after_a_death_continues(local: Store) -> None:
    dead = collector_of(local, NOW)
    dead._begin()
    with pytest.raises(LeaseHeldError) as caught:
        collector_of(local, NOW).collect()
    assert caught.value.code == "retention.running"
    age(local, "collector", days=DEAD_SECONDS / 86_400 + 0.01)
    collector_of(local, NOW).collect()
    with pytest.raises(Exception, match="took this one for dead"):
        dead._move("alive")


def test_newest_snapshot_of_each_pipeline_stays_for_the_next_night_to_be_compared_with(local: Store) -> None:
    for night in ("2026-01-01T000000Z", "2026-01-02T000000Z"):
        uri, made = local.manifests.put_files("snapshot", {"t": night.encode()}, {})
        local.ref(f"snapshots/p/{night}").move(uri, expected=0)
        local.ref(f"profiles/p/{made.digest}").move(local.put_json({"profile of": night}), expected=0)
    age(local, "refs", "manifests", "objects", days=60)
    for _ in range(3):
        collector_of(local, KeepRules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert keys(local, "refs/snapshots") == ["refs/snapshots/p/2026-01-02T000000Z/0000000001.json"]
    assert local.bucket.folders("refs/snapshots/p") == ["2026-01-02T000000Z"], "an empty folder would be taken for a snapshot"
    assert len(keys(local, "manifests")) == 1
    # The profile of its columns stays with it, and no other.
    assert keys(local, "refs/profiles") == [f"refs/profiles/p/{made.digest}/0000000001.json"]
    assert len(keys(local, "objects")) == 2


def test_work_that_is_alive_keeps_its_inputs_and_the_refs_of_its_run_however_old_they_are(local: Store) -> None:
    dataset, _ = local.manifests.put_files("dataset", {"d": b"rows"}, {})
    request = request_of(local, inputs={"dataset": dataset})
    set_run_ref(local, request, "dataset", dataset)
    work_folder = local.work_folder("p", "train", "f" * 64)
    work_folder.write_request(request)
    Lease.acquire(work_folder, owner="o", attempt_id="a1")
    age(local, "stages", "runs", "manifests", "objects", days=60)
    work_folder.write_heartbeat("a1", {"beat": 1})
    for _ in range(3):
        collector_of(local, KeepRules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert local.manifests.get(dataset)
    assert keys(local, "runs")


def test_run_of_a_study_keeps_what_it_has_settled_while_one_of_its_trials_is_alive(local: Store) -> None:
    request = request_of(local, stage="trial", parameters={"study": "5" * 64, "slot": 1})
    work_folder = local.work_folder("p", "trial", "f" * 64)
    work_folder.write_request(replace(request, run=replace(request.run, dag_id="p.tune")))
    local.run_ref("p.tune", "r", "settled").move({"force": False}, expected=0)
    age(local, "stages", "runs", days=60)
    work_folder.write_heartbeat("a1", {"beat": 1})
    collector_of(local, KeepRules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert keys(local, "runs") == ["runs/p.tune/r/settled/0000000001.json"]


def test_failed_attempts_of_finished_work_go_and_the_one_that_finished_it_stays(local: Store) -> None:
    make(local)
    work_folder = local.work_folder("p", "train", "f" * 64)
    work_folder.write_request(request_of(local, attempt_id="a0"))
    work_folder.write_error("a0", {"exit_code": 75})
    age(local, "stages", days=20)
    collector_of(local, LONG).collect()
    assert work_folder.attempts() == ["a1"]
    assert work_folder.result() is not None


def test_study_stays_whole_while_one_of_its_trials_is_alive(local: Store) -> None:
    local.bucket.create("studies/p/s1/trials/00000.json", b"{}")
    local.bucket.create("studies/p/s2/trials/00000.json", b"{}")
    champion, _ = local.manifests.put_files("model", {"w": b"c"}, {})
    local.ref("studies/p/s1/plan").move({"champion": champion}, expected=0)
    age(local, "studies", "refs", "manifests", "objects", days=60)
    work_folder = local.work_folder("p", "trial", "a" * 64)
    work_folder.write_request(request_of(local, "a" * 64, stage="trial", parameters={"study": "s1"}))
    for _ in range(3):
        collector_of(local, KeepRules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert keys(local, "studies") == ["studies/p/s1/trials/00000.json"]
    assert local.manifests.get(champion)


def recorded(store: Store, key: str, value: dict[str, Any]) -> None:
    store.bucket.create(key, records.encode(key, value))


def test_study_and_journals_stay_while_mlflow_does_not_have_the_metrics_of_its_trials(local: Store) -> None:
    for study, work_id in (("s1", "a" * 64), ("s2", "b" * 64)):
        recorded(local, f"studies/p/{study}/tracking-run.json", {})
        work_folder = local.work_folder("p", "trial", work_id)
        work_folder.write_request(request_of(local, work_id, stage="trial", parameters={"study": study}))
        recorded(local, f"stages/p/trial/{work_id}/_RESULT.json", {"attempt_id": "a1"})
    for journal in ("s1-00003", "s2-00003"):
        local.bucket.create(f"metrics/p/{journal}/000000000001.jsonl", b"{}")
    local.bucket.create(f"tracking/stages/p/trial/{'a' * 64}/000001-s1-00003.json", b"{}")
    age(local, "studies", "stages", "tracking", "metrics", days=60)
    collector_of(local, LONG).collect()
    assert keys(local, "studies") == ["studies/p/s1/tracking-run.json"]
    assert keys(local, "metrics") == ["metrics/p/s1-00003/000000000001.jsonl"]


def test_journals_of_metrics_go_with_their_runs_and_stay_while_those_train(local: Store) -> None:
    for run in ("old", "young", "r"):
        local.bucket.create(f"metrics/p/{run}/000000000001.jsonl", b"{}")
    local.work_folder("p", "train", "a" * 64).write_request(request_of(local, "a" * 64))
    age(local, "metrics/p/old", "metrics/p/r", days=60)
    collector_of(local, LONG).collect()
    assert keys(local, "metrics") == ["metrics/p/r/000000000001.jsonl", "metrics/p/young/000000000001.jsonl"]


def test_journals_of_trials_stay_while_a_trial_of_their_study_is_alive(local: Store) -> None:
    alive, ended = "5" * 64, "6" * 64
    for study in (alive, ended):
        local.bucket.create(f"metrics/p/{trial_journal(study, 3)}/000000000001.jsonl", b"{}")
    work_folder = local.work_folder("p", "trial", "a" * 64)
    work_folder.write_request(request_of(local, "a" * 64, stage="trial", parameters={"study": alive, "slot": 7}))
    age(local, "metrics", days=60)
    collector_of(local, LONG).collect()
    assert keys(local, "metrics") == [f"metrics/p/{alive}-00003/000000000001.jsonl"]


def test_page_on_retention_has_a_row_for_each_rule() -> None:
    page = (CHECKOUT / "docs" / "retention.md").read_text(encoding="utf-8")
    assert [kind for kind in RULES if f"| store, `{kind}/" not in page] == []


def test_reports_go_with_the_work_that_published_them(store: Store) -> None:
    kept, gone = store.reports.put("p", b"<html>kept</html>"), store.reports.put("p", b"<html>gone</html>")
    store.ref("kept/x").move(kept, expected=0)
    for _ in range(2):
        collector_of(store, NOW).collect()
    assert store.reports.get(kept) == b"<html>kept</html>"
    assert keys(store, "reports") == [store.bucket.key(kept)]
    # A page that is made again while it is condemned is not deleted.
    store.reports.put("p", b"<html>gone</html>")
    collector_of(store, NOW).collect()
    assert store.reports.put("p", b"<html>gone</html>") == gone
    collector_of(store, NOW).collect()
    assert store.reports.get(gone)


def test_marks_and_leftovers_without_an_object_are_deleted(local: Store) -> None:
    gone, there = "a" * 64, local.objects.put_bytes(b"there")
    for digest in (gone, there):
        local.bucket.create(f"altered/{digest}", b"")
    left = Path(local.root_uri.removeprefix("file://")) / "objects" / "half#123"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    foreign = left.parent.parent / "notes" / "plan#2"
    foreign.parent.mkdir()
    foreign.write_bytes(b"of a user")
    os.utime(foreign, (1, 1))
    report = collector_of(local, LONG).collect()
    assert keys(local, "altered") == [f"altered/{there}"]
    assert not left.exists()
    assert foreign.exists()
    assert report.by_kind["leftovers of killed writers"].deleted == 4


@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        ([], []),
        ([{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "keep": 1, "best_epoch": 1}], ["u0", "u2"]),
        ([{"epoch": 1, "keep": 5}, {"epoch": 1}, {"epoch": 2, "keep": 1, "best_epoch": 1}], ["u0", "u2"]),
        (
            [{"step": 3}, {"step": 4}, {"step": 5}, {"step": 6, "keep": 1, "compared_step": 4}],
            ["u1", "u3"],
        ),
    ],
    ids=["none", "best epoch", "end of the best epoch, not a later save", "newest that was compared"],
)
def test_training_keeps_its_newest_checkpoints_and_the_best(journal: list[dict[str, Any]], expected: list[str]) -> None:
    entries = [{"kind": "checkpoint", "payload": {"uri": f"u{number}", **payload}} for number, payload in enumerate(journal)]
    assert sorted(set(kept_checkpoints([{"kind": "lease"}, *entries]))) == expected
