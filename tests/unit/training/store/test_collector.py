"""The collector on a local folder and on S3: what stays, what goes, in which order, and what stops it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from training.contracts import RunIdentity, StageRequest, StageResult
from training.errors import LeaseHeldError, LeaseLostError, StoreError, UnavailableError
from training.store import Store, set_run_ref
from training.store.collector import BEAT_SECONDS, DEAD_SECONDS, Collector, NoRoots
from training.store.condemned import TAKEOVER_SECONDS, Condemned
from training.store.leases import Lease
from training.store.marking import Rules, kept_checkpoints
from training.store.progress import INTERVAL_SECONDS

NOW = Rules(runs=timedelta(seconds=-5), attempts=timedelta(seconds=-5), grace=timedelta(0))
"""Everything is old at once: S3 knows the time of a change by the second."""
LONG = Rules(runs=timedelta(days=30), attempts=timedelta(days=14), grace=timedelta(days=2))
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "t", "aws_secret_access_key": "t", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys).create_bucket(Bucket="nightshift")
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": request.getfixturevalue("s3_endpoint")}.items():
        monkeypatch.setenv(name, value)
    return Store("s3://nightshift/" + re.sub(r"\W+", "-", request.node.name))


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def request_of(store: Store, fingerprint: str = "f" * 64, *, stage: str = "train", attempt_id: str = "a1", **facts: Any) -> StageRequest:
    return StageRequest(
        pipeline="p",
        stage=stage,
        fingerprint=fingerprint,
        attempt_id=attempt_id,
        store_uri=store.root_uri,
        spec_uri=store.put_json({"spec": 1}),
        as_of="2026-01-01T00:00:00+00:00",
        inputs=facts.pop("inputs", {}),
        run=RunIdentity(dag_id="p", run_id="r", task_id=stage),
        **facts,
    )


def make(store: Store, content: str = "weights", fingerprint: str = "f" * 64) -> StageResult:
    """Do a piece of work: request, lease, artifact, result, and the run's ref."""
    request = request_of(store, fingerprint)
    address = store.address("p", "train", fingerprint)
    address.write_request(request)
    lease = Lease.acquire(address, owner="o", attempt_id="a1")
    uri, manifest = store.manifests.put_files("model", {"w": content.encode()}, {"made": content})
    set_run_ref(store, request, "model", uri)
    result = StageResult(
        pipeline="p",
        stage="train",
        fingerprint=fingerprint,
        artifact_uri=uri,
        digest=manifest.digest,
        run=request.run,
        attempt_id="a1",
        attempts=1,
        committed_at="",
    )
    lease.commit("commit", {})
    assert address.create_result(result)
    lease.release()
    return result


def keys(store: Store, *prefixes: str) -> list[str]:
    return [entry.key for prefix in prefixes for entry in store.bucket.list(prefix)]


def age(store: Store, *prefixes: str, days: float) -> None:
    """Let files of a local store be older than they are."""
    root, then = Path(store.root_uri.removeprefix("file://")), time.time() - days * 86_400
    for key in keys(store, *prefixes):
        os.utime(root / key, (then, then))


def test_what_nothing_needs_is_deleted_after_its_address_and_a_grace_period(store: Store) -> None:
    made = make(store)
    collector = Collector(store, NOW)
    seen = []
    for _ in range(5):
        collector.collect()
        seen.append((bool(keys(store, "stages")), store.bucket.exists(store.bucket.key(made.artifact_uri)), bool(keys(store, "objects"))))
    # Condemned; the address; its artifact condemned; gone.
    assert seen == [(True, True, True), (False, True, True), (False, True, True), (False, False, False), (False, False, False)]
    assert keys(store, "runs", "condemned", "manifests") == []


def test_what_is_young_stays_for_as_long_as_the_rules_say(store: Store) -> None:
    made = make(store)
    garbage = store.objects.put_bytes(b"nobody needs this")
    for _ in range(3):
        report = Collector(store, LONG).collect()
    assert report.total("deleted") == 0
    assert store.objects.get_bytes(garbage)
    assert store.address("p", "train", "f" * 64).result() == made


def test_dry_run_writes_nothing_and_names_the_bytes_that_a_collection_then_deletes(store: Store) -> None:
    store.objects.put_bytes(b"x" * 1000)
    Collector(store, NOW).collect()
    before = [(entry.key, entry.modified) for entry in store.bucket.list("")]
    planned = Collector(store, NOW).collect(dry_run=True)
    assert [(entry.key, entry.modified) for entry in store.bucket.list("")] == before
    assert planned.by_kind["reports and specs"].deleted == 1000
    done = Collector(store, NOW).collect()
    assert done.by_kind["reports and specs"].deleted == 1000
    assert keys(store, "objects") == []


def test_content_that_a_writer_makes_again_before_its_deletion_stays(store: Store) -> None:
    digest = store.objects.put_bytes(b"made twice")
    uri, _ = store.manifests.put_files("model", {"w": b"made twice"}, {})
    Collector(store, NOW).collect()
    assert keys(store, "condemned")
    assert store.manifests.put_files("model", {"w": b"made twice"}, {})[0] == uri
    # The collection that was due finds both claimed; nothing reaches them, so they are condemned again later.
    Collector(store, NOW).collect()
    assert store.objects.get_bytes(digest) == b"made twice"
    assert store.manifests.get(uri)


def test_writer_waits_for_a_deletion_under_way_and_then_writes_the_content_as_new(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.objects.put_bytes(b"under way")
    key = store.objects.key(digest)
    Collector(store, NOW).collect()
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
    Collector(store, NOW).collect()
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
    address = store.address("p", "train", "f" * 64)
    assert address.result() is None
    uri, manifest = store.manifests.put_files("model", {"w": b"other"}, {})
    again = StageResult(**{**made.to_xcom_unchecked(), "run": made.run, "artifact_uri": uri, "digest": manifest.digest})
    assert address.create_result(again)
    assert address.result() == again
    assert not address.create_result(made), "one whose artifact is there stands"


@pytest.mark.parametrize("damaged", ["stages", "runs", "refs"])
def test_record_that_cannot_be_read_stops_every_deletion_and_is_named(local: Store, damaged: str) -> None:
    make(local)
    local.ref("kept/x").move("u", expected=0)
    local.objects.put_bytes(b"garbage")
    before = keys(local, "objects", "manifests", "stages")
    name = next(key for key in keys(local, damaged) if key.endswith(("_RESULT.json", "0000000001.json")))
    local.bucket.put(name, b'{"half": ')
    rules = Rules(runs=timedelta(days=1), attempts=timedelta(days=1), grace=timedelta(0))
    for _ in range(2):
        with pytest.raises(StoreError, match=re.escape(name)) as caught:
            Collector(local, rules).collect()
        assert caught.value.code == "retention.unreadable"
    assert keys(local, "objects", "manifests", "stages") == before


def test_altered_manifest_that_is_referenced_stops_every_deletion(local: Store) -> None:
    made = make(local)
    local.bucket.put(local.bucket.key(made.artifact_uri), b"{}")
    local.objects.put_bytes(b"garbage")
    with pytest.raises(StoreError, match=re.escape(made.artifact_uri)):
        Collector(local, LONG).collect()


def test_uri_with_the_root_of_another_place_still_keeps_its_object(local: Store) -> None:
    uri, _ = local.manifests.put_files("model", {"w": b"moved"}, {})
    local.run_ref("p", "r", "model").move(uri.replace(local.root_uri, "s3://old/place"), expected=0)
    rules = Rules(runs=timedelta(days=1), attempts=timedelta(days=1), grace=timedelta(0))
    for _ in range(3):
        Collector(local, rules).collect()
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
    dead = Collector(local, NOW)
    dead._begin()
    with pytest.raises(LeaseHeldError) as caught:
        Collector(local, NOW).collect()
    assert caught.value.code == "retention.running"
    age(local, "collector", days=DEAD_SECONDS / 86_400 + 0.01)
    Collector(local, NOW).collect()
    with pytest.raises(Exception, match="took this one for dead"):
        dead._move("alive")


def test_newest_snapshot_of_each_pipeline_stays_for_the_next_night_to_be_compared_with(local: Store) -> None:
    for night in ("2026-01-01T000000Z", "2026-01-02T000000Z"):
        uri, _ = local.manifests.put_files("snapshot", {"t": night.encode()}, {})
        local.ref(f"snapshots/p/{night}").move(uri, expected=0)
    age(local, "refs", "manifests", "objects", days=60)
    for _ in range(3):
        Collector(local, Rules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert keys(local, "refs/snapshots") == ["refs/snapshots/p/2026-01-02T000000Z/0000000001.json"]
    assert local.bucket.folders("refs/snapshots/p") == ["2026-01-02T000000Z"], "an empty folder would be taken for a snapshot"
    assert len(keys(local, "manifests")) == 1


def test_work_that_is_alive_keeps_its_inputs_and_the_refs_of_its_run_however_old_they_are(local: Store) -> None:
    dataset, _ = local.manifests.put_files("dataset", {"d": b"rows"}, {})
    request = request_of(local, inputs={"dataset": dataset})
    set_run_ref(local, request, "dataset", dataset)
    address = local.address("p", "train", "f" * 64)
    address.write_request(request)
    Lease.acquire(address, owner="o", attempt_id="a1")
    age(local, "stages", "runs", "manifests", "objects", days=60)
    address.write_heartbeat("a1", {"beat": 1})
    for _ in range(3):
        Collector(local, Rules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert local.manifests.get(dataset)
    assert keys(local, "runs")


def test_failed_attempts_of_finished_work_go_and_the_one_that_finished_it_stays(local: Store) -> None:
    make(local)
    address = local.address("p", "train", "f" * 64)
    address.write_request(request_of(local, attempt_id="a0"))
    address.write_error("a0", {"exit_code": 75})
    age(local, "stages", days=20)
    Collector(local, LONG).collect()
    assert address.attempts() == ["a1"]
    assert address.result() is not None


def test_study_stays_whole_while_one_of_its_trials_is_alive(local: Store) -> None:
    local.bucket.create("studies/p/s1/trials/00000.json", b"{}")
    local.bucket.create("studies/p/s2/trials/00000.json", b"{}")
    champion, _ = local.manifests.put_files("model", {"w": b"c"}, {})
    local.ref("studies/p/s1/plan").move({"champion": champion}, expected=0)
    age(local, "studies", "refs", "manifests", "objects", days=60)
    address = local.address("p", "trial", "a" * 64)
    address.write_request(request_of(local, "a" * 64, stage="trial", parameters={"study": "s1"}))
    for _ in range(3):
        Collector(local, Rules(runs=timedelta(days=30), attempts=timedelta(days=1), grace=timedelta(0))).collect()
    assert keys(local, "studies") == ["studies/p/s1/trials/00000.json"]
    assert local.manifests.get(champion)


def test_study_stays_while_mlflow_does_not_have_the_metrics_of_its_trials(local: Store) -> None:
    for study, fingerprint in (("s1", "a" * 64), ("s2", "b" * 64)):
        local.bucket.create(f"studies/p/{study}/tracking-run.json", b"{}")
        address = local.address("p", "trial", fingerprint)
        address.write_request(request_of(local, fingerprint, stage="trial", parameters={"study": study}))
        local.bucket.create(f"stages/p/trial/{fingerprint}/_RESULT.json", b'{"attempt_id": "a1"}')
    local.bucket.create(f"tracking/stages/p/trial/{'a' * 64}/a1-000001-00.jsonl", b"[]")
    age(local, "studies", "stages", "tracking", days=60)
    Collector(local, LONG).collect()
    assert keys(local, "studies") == ["studies/p/s1/tracking-run.json"]


def test_marks_reports_and_leftovers_without_an_object_are_deleted(local: Store) -> None:
    gone, there = "a" * 64, local.objects.put_bytes(b"there")
    for digest in (gone, there):
        local.bucket.create(f"altered/{digest}", b"")
        local.ref(f"reports/p/{digest}").move(digest, expected=0)
    local.ref("reports/p/indexed").move(True, expected=0)
    left = Path(local.root_uri.removeprefix("file://")) / "objects" / "half#123"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    foreign = left.parent.parent / "notes" / "plan#2"
    foreign.parent.mkdir()
    foreign.write_bytes(b"of a user")
    os.utime(foreign, (1, 1))
    age(local, "refs", days=5)
    report = Collector(local, LONG).collect()
    assert keys(local, "altered", "refs/reports") == [
        f"altered/{there}",
        f"refs/reports/p/{there}/0000000001.json",
        "refs/reports/p/indexed/0000000001.json",
    ]
    assert not left.exists()
    assert foreign.exists()
    assert report.by_kind["leftovers of killed writers"].deleted == 4


@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        ([], []),
        ([{}, {"epoch": 2}, {"epoch": 3}, {"epoch": 4}], ["u1", "u2", "u3"]),
        ([{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "keep": 1, "best_epoch": 1}], ["u0", "u2"]),
        ([{"epoch": 1, "keep": 5}, {"epoch": 1}, {"epoch": 2, "keep": 1, "best_epoch": 1}], ["u0", "u2"]),
    ],
    ids=["none", "of before there was keep", "best epoch", "end of the best epoch, not a later save"],
)
def test_training_keeps_its_newest_checkpoints_and_the_best(journal: list[dict[str, Any]], expected: list[str]) -> None:
    entries = [{"kind": "checkpoint", "payload": {"uri": f"u{number}", **payload}} for number, payload in enumerate(journal)]
    assert sorted(set(kept_checkpoints([{"kind": "lease"}, *entries]))) == expected


def test_collection_that_failed_because_the_ledger_is_away_can_be_repeated_at_once(local: Store) -> None:
    class Away(NoRoots):
        def uris(self) -> tuple[str, ...]:
            raise UnavailableError("database.unavailable", "the ledger does not answer")

    with pytest.raises(UnavailableError):
        Collector(local, LONG, Away()).collect()
    Collector(local, LONG).collect()


@pytest.mark.parametrize(("hours", "where"), [(40 * 24, "ahead"), (0.3, "ahead"), (-40 * 24, "behind")])
def test_collection_by_a_clock_that_differs_from_this_machines_is_refused_and_deletes_nothing(
    store: Store, hours: float, where: str
) -> None:
    """The storage's clock jumped: refs and runs that were written a moment ago look as old as the jump."""
    make(store)
    before = keys(store, "runs", "stages", "objects", "manifests", "refs")

    def now() -> datetime:
        return datetime.now(UTC) - timedelta(hours=hours)

    with pytest.raises(StoreError, match=r"retention\.clock.*this machine's.*15 minutes.*nothing was deleted") as caught:
        Collector(store, NOW, now=now).collect()
    assert caught.value.code == "retention.clock"
    assert keys(store, "runs", "stages", "objects", "manifests", "refs") == before
    assert keys(store, "condemned", "collector/runs") == []
    Collector(store, LONG).collect()


@pytest.mark.parametrize("minutes", [-14, 14])
def test_clocks_may_differ_by_a_quarter_of_an_hour(store: Store, minutes: int) -> None:
    Collector(store, LONG, now=lambda: datetime.now(UTC) + timedelta(minutes=minutes)).collect()


@pytest.mark.slow
def test_look_that_takes_longer_than_a_dead_collector_is_waited_for_keeps_its_lease(store: Store) -> None:
    for number in range(30):
        make(store, f"weights {number}", f"{number:064x}")
    seconds = [0.0]

    def clock() -> float:
        # Each look at the clock is two minutes after the last one: the whole look takes far longer than 15 minutes.
        seconds[0] += 2 * BEAT_SECONDS
        return seconds[0]

    collector = Collector(store, LONG, clock=clock)
    states = []
    real = collector._move
    collector._move = lambda state, **facts: (states.append(state), real(state, **facts))[1]  # type: ignore[assignment]
    collector.collect()
    assert seconds[0] > DEAD_SECONDS
    assert states[0] == "begun"
    assert states.count("alive") >= 30, "a sign of life for each record and page that is read"


def test_look_that_was_taken_for_dead_ends_before_it_deletes_anything(store: Store) -> None:
    make(store)
    seconds = iter(range(0, 10_000_000, int(BEAT_SECONDS)))
    collector = Collector(store, NOW, clock=lambda: float(next(seconds)))
    real = collector._condemned.list

    def another(**options: Any) -> Any:
        assert collector._lease.move({"state": "begun", "nonce": "other"}, expected=collector._head)
        return real(**options)

    collector._condemned.list = another  # type: ignore[method-assign]
    before = keys(store, "stages", "runs")
    with pytest.raises(LeaseLostError, match="took this one for dead"):
        collector.collect()
    assert keys(store, "stages", "runs") == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_look_at_a_storage_that_answers_slowly_shows_progress(store: Store, monkeypatch: pytest.MonkeyPatch, dry_run: bool) -> None:
    assert INTERVAL_SECONDS <= 30
    make(store)
    lines: list[str] = []
    said = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if "0 objects of" not in line:
            said.set()

    real = store.bucket.list

    def slow(prefix: str, **options: Any) -> Any:
        found = real(prefix, **options)
        if prefix == "manifests":
            assert said.wait(60), "no line of progress while the listing takes long"
        return found

    monkeypatch.setattr(store.bucket, "list", slow)
    collector = Collector(store, LONG, say=say)
    collector._interval_seconds = 0.01
    collector.collect(dry_run=dry_run)
    assert re.fullmatch(r"\d+ objects of [\d.]+ MB seen, \d+ records read, after \d+ s", lines[-1])
    assert [thread.name for thread in threading.enumerate() if thread.name == "progress"] == []
