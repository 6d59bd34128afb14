"""The store on S3 (moto's server), with a proxy between that answers 503, loses answers, breaks bodies and goes away."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.unit.training.store.s3_proxy import FaultProxy
from training.errors import DataError, DeniedError, LeaseHeldError, LeaseLostError, UnavailableError
from training.store import Store, objects, s3
from training.store.leases import Lease

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
    yield made
    made.close()


@pytest.fixture
def store(proxy: FaultProxy, request: pytest.FixtureRequest) -> Store:
    return Store(f"s3://nightshift/{abs(hash(request.node.name))}")


def test_what_is_written_is_read_and_listed(store: Store) -> None:
    digest = store.objects.put_bytes(b"content")
    assert store.objects.put_bytes(b"content") == digest
    assert store.objects.get_bytes(digest) == b"content"
    assert [entry.size_bytes for entry in store.bucket.list("objects")] == [7]
    assert store.bucket.folders("objects") == ["sha256"]
    with pytest.raises(DataError, match="does not exist"):
        store.bucket.get("absent")


def test_of_eight_writers_exactly_one_moves_a_ref(store: Store) -> None:
    for round_number in range(20):
        barrier, winners = threading.Barrier(8), []

        def move(writer: int, number: int = round_number, at: threading.Barrier = barrier, won: list[int] = winners) -> None:
            at.wait()
            if store.ref("contested").move({"writer": writer, "round": number}, expected=number):
                won.append(writer)

        threads = [threading.Thread(target=move, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert store.ref("contested").at(round_number + 1).value == {"writer": winners[0], "round": round_number}


def test_a_winner_whose_answer_was_lost_knows_that_it_won(store: Store, proxy: FaultProxy) -> None:
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "PUT" and next(lost, False)
    assert store.ref("r").move({"writer": "me"}, expected=0)
    assert next(lost, None) is None, "an answer was lost"
    assert not store.ref("r").move({"writer": "another"}, expected=0)


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
    files = {f"part-{number}": os.urandom(2000) for number in range(30)}
    uri, manifest = store.manifests.put_files("snapshot", files, {"rows": 1})
    proxy.slow_down_share = 0.0
    clean, _ = Store("s3://nightshift/clean").manifests.put_files("snapshot", files, {"rows": 1})
    assert uri.rsplit("/", 1)[-1] == clean.rsplit("/", 1)[-1]
    proxy.slow_down_share = 0.3
    read = store.manifests.get(uri, kind="snapshot")
    assert {name: store.objects.get_bytes(entry.digest) for name, entry in read.files.items()} == files
    assert manifest.digest == read.digest


@pytest.mark.parametrize("hang_seconds", [0.0, 1.0], ids=["closed", "hanging"])
def test_a_body_that_breaks_off_ends_in_the_right_bytes(store: Store, proxy: FaultProxy, tmp_path: Path, hang_seconds: float) -> None:
    content = os.urandom(300_000)
    digest = store.objects.put_bytes(content)
    proxy.break_bodies, proxy.hang_seconds = 2, hang_seconds
    assert store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert proxy.break_bodies < 0, "bodies were broken"
    assert list(tmp_path.iterdir()) == [tmp_path / "fetched"]


def test_a_storage_that_is_down_is_unavailable_and_named(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/down")
    proxy.down = True
    with pytest.raises(UnavailableError, match=r"could not read s3://nightshift/down/x: .*127.0.0.1") as caught:
        store.bucket.get("x")
    assert caught.value.code == "storage.unavailable"


def test_a_right_that_is_missing_is_denied(store: Store, proxy: FaultProxy) -> None:
    proxy.status = 403
    with pytest.raises(DeniedError, match="not allowed to write") as caught:
        store.bucket.put("x", b"1")
    assert caught.value.code == "storage.denied"


def test_a_bucket_that_is_not_there_is_an_error_and_not_an_empty_store(proxy: FaultProxy) -> None:
    with pytest.raises((DataError, UnavailableError, DeniedError), match="absent-bucket"):
        Store("s3://absent-bucket/store").bucket.create("x", b"1")


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


def test_an_upload_that_breaks_off_leaves_nothing_to_be_seen(
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
    with suppress(UnavailableError):
        broken.objects.put_file(path)
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    assert store.bucket.list("objects") == []


def test_plain_http_is_spoken_only_to_an_endpoint_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(s3, "from_url", lambda uri, **options: asked.append(options["client_options"]))
    s3.open_bucket("s3://b/p", {})
    s3.open_bucket("s3://b/p", {"AWS_ENDPOINT_URL": "https://s3.example.com"})
    s3.open_bucket("s3://b/p", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert [options.get("allow_http", False) for options in asked] == [False, False, True]
