"""Bytes to and from S3: bodies that break off, ranges, and uploads in parts."""

import os
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest

from tests.unit.training.store.s3_proxy import FaultProxy, answers
from training.errors import DataError, UnavailableError
from training.sources.listing import list_source, read_source
from training.store import Store, bucket
from training.store import open_bucket as opening


@pytest.mark.slow
@pytest.mark.usefixtures("files_are_objects")
def test_a_third_of_slow_downs_changes_no_digest(s3_store: Store, proxy: FaultProxy) -> None:
    proxy.slow_down_share = 0.3
    files = {f"part-{number}": os.urandom(2000) for number in range(50)}
    uri, manifest = s3_store.manifests.put_files("snapshot", files, {"rows": 1})
    proxy.slow_down_share = 0.0
    clean, _ = Store("s3://nightshift/clean").manifests.put_files("snapshot", files, {"rows": 1})
    assert uri.rsplit("/", 1)[-1] == clean.rsplit("/", 1)[-1]
    proxy.slow_down_share = 0.3
    read = s3_store.manifests.get(uri, kind="snapshot")
    assert {name: s3_store.objects.get_bytes(entry.digest) for name, entry in read.files.items()} == files
    assert manifest.digest == read.digest
    assert proxy.num_seen("PUT") > 51 + 51, "some were refused"


@pytest.mark.parametrize("hang_seconds", [0.0, 1.0], ids=["closed", "hanging"])
def test_a_body_that_breaks_off_ends_in_the_right_bytes(s3_store: Store, proxy: FaultProxy, tmp_path: Path, hang_seconds: float) -> None:
    content = os.urandom(300_000)
    digest = s3_store.objects.put_bytes(content)
    proxy.break_bodies, proxy.hang_seconds = 2, hang_seconds
    assert s3_store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert proxy.break_bodies < 0, "bodies were broken"
    assert list(tmp_path.iterdir()) == [tmp_path / "fetched"]


def test_a_body_that_breaks_off_again_and_again_is_unavailable_and_leaves_no_file(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/breaks")
    digest = store.objects.put_bytes(os.urandom(300_000))
    proxy.break_bodies = 100
    with pytest.raises(UnavailableError, match="could not read"):
        store.objects.fetch(digest, tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []


def test_a_body_that_is_slow_and_steady_is_read_at_once(s3_store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    digest = s3_store.objects.put_bytes(content := os.urandom(100_000))
    proxy.slice_bytes, proxy.pause_seconds = 10_000, 0.1
    assert s3_store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert proxy.num_seen("GET") == 1, "in all longer than the time without a byte after which it is asked for again"


@pytest.mark.slow
def test_an_object_that_takes_longer_than_a_request_may_is_read_in_ranges(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "REQUEST_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(bucket, "RANGE_BYTES", 32_000)
    monkeypatch.setattr(bucket, "open_bucket", partial(opening.open_bucket, retry_timeout=timedelta(seconds=0.5)))
    store = Store("s3://nightshift/ranges")
    digest = store.objects.put_bytes(content := os.urandom(200_001))
    proxy.slice_bytes, proxy.pause_seconds = 10_000, 0.08
    assert store.objects.fetch(digest, tmp_path / "fetched").read_bytes() == content
    assert store.objects.get_bytes(digest) == content


def test_a_source_that_changes_between_two_ranges_is_not_mixed(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "RANGE_BYTES", 100_000)
    s3_store.bucket.put("source/f.csv", b"a" * 300_000)
    listed = list_source(f"{s3_store.root_uri}/source")[0]
    put = partial(s3_store.bucket.put, "source/f.csv", b"b" * 300_000)

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
    s3_store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    s3_store.bucket.put("source/f.csv", b"a" * 300_000)
    proxy.break_bodies = 1
    proxy.on_break = lambda: s3_store.bucket.put("source/f.csv", b"b" * 300_000)
    assert read_source(f"{s3_store.root_uri}/source/f.csv", None, tmp_path / "copy").read_bytes() == b"b" * 300_000
    assert proxy.break_bodies < 1, "a body was broken"


def test_a_large_file_goes_up_in_parts_and_comes_back_whole(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MULTIPART_BYTES", 6 * 2**20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 * 2**20))
    digest = s3_store.objects.put_file(path)
    key = f"/nightshift/{s3_store.root_uri.rsplit('/', 1)[-1]}/{s3_store.objects.key(digest)}"
    assert proxy.seen[f"PUT {key}"] >= 2, "in parts"
    assert s3_store.objects.fetch(digest, tmp_path / "back").read_bytes() == path.read_bytes()


def test_a_file_of_very_many_parts_goes_up_in_larger_ones(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MULTIPART_BYTES", 6 * 2**20)
    monkeypatch.setattr(bucket, "MAX_PARTS", 2)
    # A busy machine may take seconds for 6 MiB, and a request without an answer would be sent again.
    monkeypatch.setattr(opening, "READ_TIMEOUT", timedelta(seconds=60))
    monkeypatch.setattr(opening, "REQUEST_TIMEOUT", timedelta(seconds=60))
    patient = Store(s3_store.root_uri)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 * 2**20 + 1))
    digest = patient.objects.put_file(path)
    assert proxy.num_seen("PUT") == 2
    assert patient.objects.fetch(digest, tmp_path / "back").read_bytes() == path.read_bytes()


def test_an_upload_that_was_finished_without_an_answer_is_there(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MULTIPART_BYTES", 6 * 2**20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(7 * 2**20))
    lost = iter([True])
    proxy.lose_answer = lambda method, path: method == "POST" and "uploadId" in path and next(lost, False)
    begun_and_finished = repeat(None, 2)
    proxy.answer = answers(*begun_and_finished, method="POST", then=(404, "NoSuchUpload"))
    digest = s3_store.objects.put_file(path)
    assert proxy.num_seen("POST") == 3, "finished, and asked to be finished again"
    assert s3_store.objects.fetch(digest, tmp_path / "back").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_an_upload_that_breaks_off_is_unavailable_and_leaves_nothing_to_be_seen(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MULTIPART_BYTES", 6 * 2**20)
    monkeypatch.setattr(opening, "MAX_RETRIES", 0)
    broken = Store(s3_store.root_uri)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 * 2**20))

    def go_down(method: str, path: str) -> bool:
        proxy.down = proxy.down or (method == "PUT" and "partNumber" in path)
        return False

    proxy.lose_answer = go_down
    with pytest.raises(UnavailableError, match="could not write"):
        broken.objects.put_file(path)
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    assert s3_store.bucket.list("objects") == []
    digest = s3_store.objects.put_file(path)
    assert [entry.key for entry in s3_store.bucket.list("objects")] == [s3_store.objects.key(digest)]
