"""The store on S3 (moto's server), with a proxy between that answers 503, loses answers, breaks bodies and goes away."""

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.unit.training.store.s3_proxy import FaultProxy
from training.contracts import RunIdentity, StageResult
from training.errors import DataError, DeniedError, LeaseHeldError, LeaseLostError, UnavailableError
from training.store import Bucket, Store, objects, s3
from training.store.leases import Lease
from training.store.listing import list_source, read_source

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "t", "aws_secret_access_key": "t", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="nightshift")
    yield port
    server.stop()


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    made = FaultProxy(s3_port)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": made.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "READ_TIMEOUT", timedelta(seconds=0.5))
    monkeypatch.setattr(s3, "REQUEST_TIMEOUT", timedelta(seconds=10))
    monkeypatch.setattr(s3, "FIRST_WAIT", timedelta(milliseconds=10))
    monkeypatch.setattr(objects, "CONFLICT_WAIT_SECONDS", 0.01)
    yield made
    made.close()


@pytest.fixture
def store(proxy: FaultProxy, request: pytest.FixtureRequest) -> Store:
    return Store("s3://nightshift/" + re.sub(r"\W+", "-", request.node.name))


def race(write: Callable[[int], bool]) -> list[int]:
    """Let eight writers write at once; return those who were told that they won."""
    barrier, winners = threading.Barrier(8), []

    def run(writer: int) -> None:
        barrier.wait()
        if write(writer):
            winners.append(writer)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


def answers(
    *given: tuple[int, str] | None, method: str = "PUT", then: tuple[int, str] | None = None
) -> Callable[..., tuple[int, str] | None]:
    """Answer requests of a method with these, one after the other (None: carry it out), and all later ones with `then`."""
    left = iter(given)
    return lambda asked, path: next(left, then) if asked == method else None


def result_of(attempt_id: str) -> StageResult:
    return StageResult(
        pipeline="p",
        stage="train",
        fingerprint="f" * 64,
        artifact_uri="u",
        digest="d",
        run=RunIdentity(dag_id="p", run_id="r", task_id="train"),
        attempt_id=attempt_id,
        attempts=1,
        committed_at="2026-01-01T00:00:00+00:00",
    )


CONFLICT = (409, "ConditionalRequestConflict")


def test_what_is_written_is_read_and_listed(store: Store) -> None:
    digest = store.objects.put_bytes(b"content")
    assert store.objects.put_bytes(b"content") == digest
    assert store.objects.get_bytes(digest) == b"content"
    assert [entry.size_bytes for entry in store.bucket.list("objects")] == [7]
    assert store.bucket.folders("objects") == ["sha256"]
    with pytest.raises(DataError, match="does not exist"):
        store.bucket.get("absent")


def test_of_eight_writers_exactly_one_moves_a_ref_and_all_others_are_told(store: Store) -> None:
    ref = store.ref("contested")
    for number in range(20):
        winners = race(lambda writer, number=number: ref.move({"writer": writer}, expected=number))
        assert len(winners) == 1
        assert ref.at(number + 1).value == {"writer": winners[0]}


def test_whatever_goes_wrong_of_eight_writers_the_one_whose_value_stands_is_told_that_it_won(store: Store, proxy: FaultProxy) -> None:
    ref = store.ref("contested")
    num_lost: list[str] = []

    def lose(method: str, path: str) -> bool:
        is_lost = method == "PUT" and proxy.chance(0.3)
        num_lost.extend([path] * is_lost)
        return is_lost

    proxy.slow_down_share, proxy.lose_answer = 0.1, lose
    proxy.answer = lambda method, path: CONFLICT if method == "PUT" and proxy.chance(0.1) else None
    for number in range(10):
        winners = race(lambda writer, number=number: ref.move({"writer": writer}, expected=number))
        assert [ref.at(number + 1).value["writer"]] == winners
    assert len(num_lost) > 10


def test_a_winner_whose_answer_was_lost_knows_that_it_won(store: Store, proxy: FaultProxy) -> None:
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "PUT" and next(lost, False)
    assert store.ref("r").move({"writer": "me"}, expected=0)
    assert next(lost, None) is None, "an answer was lost"
    assert not store.ref("r").move({"writer": "another"}, expected=0)


def test_a_winner_whose_answer_never_comes_knows_that_it_won(store: Store, proxy: FaultProxy) -> None:
    hung = iter([True])
    proxy.hang_seconds, proxy.hang_answer = 1.0, lambda method, path: method == "PUT" and next(hung, False)
    assert store.ref("r").move({"writer": "me"}, expected=0)
    assert next(hung, None) is None, "an answer hung"
    assert not store.ref("r").move({"writer": "another"}, expected=0)


def test_two_processes_of_one_attempt_hold_one_lease_after_the_other(store: Store) -> None:
    address = store.address("p", "train", "f" * 64)
    leases: dict[int, Lease] = {}

    def acquire(process: int) -> bool:
        leases[process] = Lease.acquire(address, owner="a/1/train", attempt_id="1")
        return True

    assert len(race(acquire)) == 8
    assert sorted(lease.epoch for lease in leases.values()) == list(range(1, 9))


def test_a_result_whose_answer_was_lost_is_this_attempts_result(store: Store, proxy: FaultProxy) -> None:
    address = store.address("p", "train", "f" * 64)
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "PUT" and next(lost, False)
    assert address.create_result(result_of("mine"))
    assert next(lost, None) is None, "an answer was lost"
    assert not address.create_result(result_of("another's"))
    assert address.result() == result_of("mine")


def test_a_conflict_that_left_nothing_is_tried_again_and_not_taken_for_an_object(store: Store, proxy: FaultProxy) -> None:
    proxy.answer = answers(CONFLICT, CONFLICT)
    digest = store.objects.put_bytes(b"content")
    assert store.objects.get_bytes(digest) == b"content"
    proxy.answer = answers(CONFLICT)
    assert store.bucket.create("mine", b"1")
    proxy.answer = answers(CONFLICT)
    assert not store.bucket.create("mine", b"2")
    assert store.bucket.get("mine") == b"1"


def test_conflicts_without_end_are_unavailable_and_not_a_lost_lease(
    store: Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "CREATE_ATTEMPTS", 3)
    lease = Lease.acquire(store.address("p", "train", "f" * 64), owner="a/1/train", attempt_id="1")
    proxy.answer = answers(then=CONFLICT)
    with pytest.raises(UnavailableError, match="refused 3 times as existing, and nothing is there") as caught:
        lease.commit("checkpoint", {"step": 1})
    assert caught.value.code == "storage.conflict"
    proxy.answer = answers()
    lease.commit("checkpoint", {"step": 1})


def test_a_lease_whose_answers_are_lost_commits_all_the_same_and_fences_the_older(store: Store, proxy: FaultProxy) -> None:
    address = store.address("p", "train", "f" * 64)
    proxy.lose_answer = lambda method, path: method == "PUT" and proxy.seen[f"{method} {path}"] == 1
    first = Lease.acquire(address, owner="a/1/train", attempt_id="1")
    first.commit("checkpoint", {"step": 1})
    with pytest.raises(LeaseHeldError):
        Lease.acquire(address, owner="b/1/train", attempt_id="2")
    second = Lease.acquire(address, owner="b/1/train", attempt_id="2", takeover_epoch=first.epoch)
    second.commit("checkpoint", {"step": 2})
    with pytest.raises(LeaseLostError):
        first.commit("checkpoint", {"step": 3})
    steps = [entry.value["payload"]["step"] for entry in address.journal().history() if entry.value["kind"] == "checkpoint"]
    assert steps == [1, 2]


def test_a_third_of_slow_downs_changes_no_digest(store: Store, proxy: FaultProxy) -> None:
    proxy.slow_down_share = 0.3
    files = {f"part-{number}": os.urandom(2000) for number in range(50)}
    uri, manifest = store.manifests.put_files("snapshot", files, {"rows": 1})
    proxy.slow_down_share = 0.0
    clean, _ = Store("s3://nightshift/clean").manifests.put_files("snapshot", files, {"rows": 1})
    assert uri.rsplit("/", 1)[-1] == clean.rsplit("/", 1)[-1]
    proxy.slow_down_share = 0.3
    read = store.manifests.get(uri, kind="snapshot")
    assert {name: store.objects.get_bytes(entry.digest) for name, entry in read.files.items()} == files
    assert manifest.digest == read.digest
    assert proxy.num_seen("PUT") > 51 + 51, "some were refused"


@pytest.mark.parametrize("hang_seconds", [0.0, 1.0], ids=["closed", "hanging"])
def test_a_body_that_breaks_off_ends_in_the_right_bytes(store: Store, proxy: FaultProxy, tmp_path: Path, hang_seconds: float) -> None:
    content = os.urandom(300_000)
    digest = store.objects.put_bytes(content)
    proxy.break_bodies, proxy.hang_seconds = 2, hang_seconds
    assert store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert proxy.break_bodies < 0, "bodies were broken"
    assert list(tmp_path.iterdir()) == [tmp_path / "fetched"]


def test_a_body_that_breaks_off_again_and_again_is_unavailable_and_leaves_no_file(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/breaks")
    digest = store.objects.put_bytes(os.urandom(300_000))
    proxy.break_bodies = 100
    with pytest.raises(UnavailableError, match="could not read"):
        store.objects.fetch(digest, tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []


def test_a_body_that_is_slow_and_steady_is_read_at_once(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    digest = store.objects.put_bytes(content := os.urandom(100_000))
    proxy.slice_bytes, proxy.pause_seconds = 10_000, 0.1
    assert store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert proxy.num_seen("GET") == 1, "in all longer than the time without a byte after which it is asked for again"


def test_an_object_that_takes_longer_than_a_request_may_is_read_in_ranges(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "REQUEST_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(objects, "RANGE_BYTES", 32_000)
    monkeypatch.setattr(objects, "open_bucket", partial(s3.open_bucket, retry_timeout=timedelta(seconds=0.5)))
    store = Store("s3://nightshift/ranges")
    digest = store.objects.put_bytes(content := os.urandom(200_001))
    proxy.slice_bytes, proxy.pause_seconds = 10_000, 0.08
    assert store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert store.objects.get_bytes(digest) == content


def test_a_source_that_changes_between_two_ranges_is_not_mixed(
    store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RANGE_BYTES", 100_000)
    store.bucket.put("source/f.csv", b"a" * 300_000)
    listed = list_source(f"{store.root_uri}/source")[0]
    put = partial(store.bucket.put, "source/f.csv", b"b" * 300_000)

    def change_before_the_third(method: str, path: str) -> None:
        if method == "GET" and proxy.num_seen("GET") == num_before + 3:
            put()

    num_before = proxy.num_seen("GET")
    proxy.answer = change_before_the_third
    assert read_source(listed.uri, None, tmp_path / "copy").read_bytes() == b"b" * 300_000
    with pytest.raises(DataError) as caught:
        read_source(listed.uri, listed.version, tmp_path / "copy")
    assert caught.value.code == "source.changed"


def test_a_source_that_changes_while_its_body_breaks_off_has_changed_and_is_read_again(
    store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    store.bucket.put("source/f.csv", b"a" * 300_000)
    proxy.break_bodies = 1
    proxy.on_break = lambda: store.bucket.put("source/f.csv", b"b" * 300_000)
    assert read_source(f"{store.root_uri}/source/f.csv", None, tmp_path / "copy").read_bytes() == b"b" * 300_000
    assert proxy.break_bodies < 1, "a body was broken"


def test_a_storage_that_is_down_is_unavailable_and_named(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/down")
    proxy.down = True
    with pytest.raises(UnavailableError, match=r"could not read s3://nightshift/down/x: .*127.0.0.1") as caught:
        store.bucket.get("x")
    assert caught.value.code == "storage.unavailable"


def test_a_bucket_in_another_region_is_a_fault_that_says_what_to_set(store: Store, proxy: FaultProxy) -> None:
    for answer in ((400, "AuthorizationHeaderMalformed"), (301, "PermanentRedirect")):
        proxy.answer = answers(then=answer, method="GET")
        with pytest.raises(UnavailableError) as caught:
            store.bucket.get("x")
        assert "AWS_REGION" in caught.value.hint


def test_a_storage_that_is_away_for_two_minutes_costs_nothing_and_fails_within_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(s3, "from_url", lambda uri, **options: asked.append(options["retry_config"]))
    s3.open_bucket("s3://b/p", {})
    retries, chance = asked[0], random.Random(7)  # noqa: S311 - the same draws in every run
    first, longest, growth = (retries["backoff"][name] for name in ("init_backoff", "max_backoff", "base"))

    def total() -> float:
        waits = [first.total_seconds()]
        for _ in range(retries["max_retries"]):
            waits.append(min(longest.total_seconds(), chance.uniform(waits[0], waits[-1] * growth)))
        return sum(waits[1:])

    assert min(total() for _ in range(20)) > retries["retry_timeout"].total_seconds(), "time decides, not the number of retries"
    assert retries["retry_timeout"] > timedelta(minutes=2) + longest
    assert objects.CREATE_SECONDS > 2 * (s3.READ_TIMEOUT + objects.CREATE_ATTEMPTS * timedelta(seconds=0.2)).total_seconds()
    assert retries["retry_timeout"] + s3.READ_TIMEOUT + longest + timedelta(seconds=objects.CREATE_SECONDS) < timedelta(minutes=7)


def test_a_storage_that_refuses_sixty_times_in_a_row_and_comes_back_costs_nothing(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "LONGEST_WAIT", timedelta(milliseconds=20))
    store = Store("s3://nightshift/refuses-sixty-times")
    proxy.answer = answers(*[(503, "SlowDown")] * 60)
    assert store.ref("r").move({"writer": "me"}, expected=0)
    proxy.answer = answers(*[(503, "SlowDown")] * 60, method="GET")
    head = store.ref("r").read()
    assert head is not None
    assert head.value == {"writer": "me"}


def outage_after_the_write(proxy: FaultProxy) -> Callable[[str, str], bool]:
    """Carry out the next PUT, lose its answer, and answer nothing from then on."""

    def lose(method: str, path: str) -> bool:
        proxy.down = proxy.down or method == "PUT"
        return proxy.down

    return lose


@pytest.mark.parametrize("then", ["another entry", "the same entry", "a check"])
def test_a_lease_knows_its_own_entry_that_was_applied_before_an_outage(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 1)
    monkeypatch.setattr(objects, "CREATE_ATTEMPTS", 2)
    store = Store("s3://nightshift/applied-" + then.replace(" ", "-"))
    address = store.address("p", "train", "f" * 64)
    lease = Lease.acquire(address, owner="a/1/train", attempt_id="1")
    proxy.lose_answer = outage_after_the_write(proxy)
    with pytest.raises(UnavailableError):
        lease.commit("checkpoint", {"step": 1})
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    if then == "a check":
        lease.check()
    lease.commit("checkpoint", {"step": 1 if then == "the same entry" else 2})
    lease.release()
    entries = [(entry.value["kind"], entry.value.get("payload", {}).get("step")) for entry in address.journal().history()]
    second = [] if then == "the same entry" else [("checkpoint", 2)]
    assert entries == [("lease", None), ("checkpoint", 1), *second, ("release", None)]


def test_a_lease_that_was_taken_over_after_its_own_applied_entry_is_lost(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 1)
    monkeypatch.setattr(objects, "CREATE_ATTEMPTS", 2)
    store = Store("s3://nightshift/applied-and-taken-over")
    address = store.address("p", "train", "f" * 64)
    first = Lease.acquire(address, owner="a/1/train", attempt_id="1")
    proxy.lose_answer = outage_after_the_write(proxy)
    with pytest.raises(UnavailableError):
        first.commit("checkpoint", {"step": 1})
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    second = Lease.acquire(address, owner="a/1/train", attempt_id="2")
    for call in (first.check, partial(first.commit, "checkpoint", {"step": 2})):
        with pytest.raises(LeaseLostError, match="attempt 2"):
            call()
    second.commit("checkpoint", {"step": 3})


def test_a_storage_where_nobody_listens_is_unavailable(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/down")
    proxy.close()
    with pytest.raises(UnavailableError, match=r"could not create s3://nightshift/down/x"):
        store.bucket.create("x", b"1")


def test_a_storage_that_refuses_without_end_is_given_up_after_the_retry_timeout(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 10**6)
    monkeypatch.setattr(s3, "LONGEST_WAIT", timedelta(milliseconds=50))
    monkeypatch.setattr(objects, "open_bucket", partial(s3.open_bucket, retry_timeout=timedelta(seconds=0.5)))
    proxy.slow_down_share = 1.0
    with pytest.raises(UnavailableError, match="503 Service Unavailable: SlowDown: as the test says") as caught:
        Store("s3://nightshift/busy").bucket.get("x")
    assert caught.value.code == "storage.unavailable"
    assert proxy.num_seen("GET") > 3, "it was asked again"


@pytest.mark.parametrize(
    ("method", "call", "said"),
    [
        ("GET", lambda bucket: bucket.find("x"), "not allowed to read"),
        ("GET", lambda bucket: bucket.list("x"), "not allowed to list"),
        ("PUT", lambda bucket: bucket.put("x", b"1"), "not allowed to write"),
        ("PUT", lambda bucket: bucket.create("x", b"1"), "not allowed to create"),
    ],
    ids=["read", "list", "write", "create"],
)
def test_a_right_that_is_missing_is_denied_at_once_with_what_the_storage_says(
    store: Store, proxy: FaultProxy, method: str, call: Callable[[Bucket], object], said: str
) -> None:
    proxy.answer = answers(method=method, then=(403, "AccessDenied"))
    with pytest.raises(DeniedError, match=f"{said} {store.root_uri}/x: .*403 Forbidden: AccessDenied: as the test says") as caught:
        call(store.bucket)
    assert caught.value.code == "storage.denied"
    assert proxy.num_seen(method) == 1, "not asked again"


@pytest.mark.parametrize(
    "call",
    [
        lambda bucket: bucket.find("x"),
        lambda bucket: list(bucket.stream("x")),
        lambda bucket: bucket.list("x"),
        lambda bucket: bucket.folders("x"),
        lambda bucket: bucket.create("x", b"1"),
        lambda bucket: bucket.put("x", b"1"),
        lambda bucket: bucket.upload("x", Path(__file__)),
        lambda bucket: list_source(f"{bucket.root_uri}/x"),
    ],
    ids=["find", "stream", "list", "folders", "create", "put", "upload", "list_source"],
)
def test_a_bucket_that_is_not_there_is_an_error_that_says_so_and_not_an_empty_store(
    proxy: FaultProxy, call: Callable[[Bucket], object]
) -> None:
    with pytest.raises(DataError, match="there is no bucket 'absent-bucket'") as caught:
        call(Bucket("s3://absent-bucket/store"))
    assert caught.value.code == "storage.no_bucket"


def test_a_large_file_goes_up_in_parts_and_comes_back_whole(
    store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MULTIPART_BYTES", 6 * 2**20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 * 2**20))
    digest = store.objects.put_file(path)
    key = f"/nightshift/{store.root_uri.rsplit('/', 1)[-1]}/{store.objects.key(digest)}"
    assert proxy.seen[f"PUT {key}"] >= 2, "in parts"
    assert store.objects.fetch(digest, tmp_path / "back").read_bytes() == path.read_bytes()


def test_a_file_of_very_many_parts_goes_up_in_larger_ones(
    store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MULTIPART_BYTES", 6 * 2**20)
    monkeypatch.setattr(objects, "MAX_PARTS", 2)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 * 2**20 + 1))
    digest = store.objects.put_file(path)
    assert proxy.num_seen("PUT") == 2
    assert store.objects.fetch(digest, tmp_path / "back").read_bytes() == path.read_bytes()


def test_an_upload_that_was_finished_without_an_answer_is_there(
    store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MULTIPART_BYTES", 6 * 2**20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(7 * 2**20))
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "POST" and "uploadId" in path and next(lost, False)
    begun_and_finished = repeat(None, 2)
    proxy.answer = answers(*begun_and_finished, method="POST", then=(404, "NoSuchUpload"))
    digest = store.objects.put_file(path)
    assert proxy.num_seen("POST") == 3, "finished, and asked to be finished again"
    assert store.objects.fetch(digest, tmp_path / "back").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_an_upload_that_breaks_off_is_unavailable_and_leaves_nothing_to_be_seen(
    store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MULTIPART_BYTES", 6 * 2**20)
    monkeypatch.setattr(s3, "MAX_RETRIES", 0)
    broken = Store(store.root_uri)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 * 2**20))

    def go_down(method: str, path: str) -> bool:
        proxy.down = proxy.down or (method == "PUT" and "partNumber" in path)
        return False

    proxy.lose_answer = go_down
    with pytest.raises(UnavailableError, match="could not write"):
        broken.objects.put_file(path)
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    assert store.bucket.list("objects") == []
    digest = store.objects.put_file(path)
    assert [entry.key for entry in store.bucket.list("objects")] == [store.objects.key(digest)]


def test_plain_http_is_spoken_only_to_an_endpoint_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(s3, "from_url", lambda uri, **options: asked.append(options["client_options"]))
    s3.open_bucket("s3://b/p", {})
    s3.open_bucket("s3://b/p", {"AWS_ENDPOINT_URL": "https://s3.example.com"})
    s3.open_bucket("s3://b/p", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert [options.get("allow_http", False) for options in asked] == [False, False, True]
