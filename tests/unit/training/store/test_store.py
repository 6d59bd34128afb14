"""Objects, manifests and refs on a local folder."""

import re
import threading
from pathlib import Path

import pytest

from tests.unit.training.store.collected_store import make
from training.errors import DataError, DeniedError, SpecError, StoreError
from training.store import Manifest, Store, point_at
from training.store.bucket import as_uri
from training.store.work_folder import StoreUri


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def object_path(store: Store, digest: str) -> Path:
    return Path(store.root_uri.removeprefix("file://")) / store.objects.key(digest)


def test_same_bytes_are_one_object(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"abc")
    assert store.objects.put_bytes(b"abc") == store.objects.put_file(source)
    assert len(store.bucket.list("objects")) == 1


@pytest.mark.parametrize("damage", [b"abd", b"ab", b"abcd", b""])
def test_altered_object_is_refused_by_every_way_to_read_it(store: Store, tmp_path: Path, damage: bytes) -> None:
    digest = store.objects.put_bytes(b"abc")
    object_path(store, digest).write_bytes(damage)
    for read in (lambda: store.objects.get_bytes(digest), lambda: store.objects.fetch(digest, tmp_path / "out")):
        with pytest.raises(DataError) as caught:
            read()
        assert caught.value.code == "object.altered"
        assert digest in caught.value.message
    assert not (tmp_path / "out").exists()
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".out")] == []


def test_missing_object_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="objects/sha256/00/0000") as caught:
        store.objects.fetch("0" * 64, tmp_path / "out")
    assert caught.value.code == "object.missing"


def test_equal_manifests_have_equal_digests_regardless_of_the_order_of_files(store: Store) -> None:
    first_uri, first = store.manifests.put_files("dataset", {"b": b"2", "a": b"1"}, {"y": 1, "x": 2})
    second_uri, second = store.manifests.put_files("dataset", {"a": b"1", "b": b"2"}, {"x": 2, "y": 1})
    assert first_uri == second_uri
    assert first.digest == second.digest


def test_manifest_of_another_kind_is_refused(store: Store) -> None:
    uri, _ = store.manifests.put_files("dataset", {"a": b"1"}, {})
    with pytest.raises(DataError) as caught:
        store.manifests.get(uri, kind="model")
    assert caught.value.code == "manifest.kind"


def test_newer_manifest_is_refused_in_words(store: Store) -> None:
    uri = store.manifests.put(Manifest(kind="dataset", files={}, format_version=2))
    with pytest.raises(DataError, match="format 2, this version reads up to 1"):
        store.manifests.get(uri)


def test_manifest_with_a_name_outside_its_folder_writes_nothing(store: Store, tmp_path: Path) -> None:
    _, manifest = store.manifests.put_files("dataset", {"../evil": b"1"}, {})
    with pytest.raises(DataError) as caught:
        store.manifests.fetch(manifest, tmp_path / "in" / "side")
    assert caught.value.code == "manifest.name"
    assert not (tmp_path / "in" / "evil").exists()


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "s3://other/x"])
def test_uri_outside_the_store_is_denied(store: Store, uri: str) -> None:
    with pytest.raises(DeniedError, match="not in the store"):
        store.bucket.key(uri)


def test_uri_that_climbs_out_is_denied(store: Store) -> None:
    with pytest.raises(DeniedError):
        store.bucket.key(store.root_uri + "/a/../../b")


def test_relative_store_location_is_refused() -> None:
    with pytest.raises(SpecError, match="neither a URI nor an absolute path"):
        as_uri("relative/folder")


def test_of_racing_writers_of_a_ref_exactly_one_wins_each_round(store: Store) -> None:
    ref = store.ref("model/champion")
    for number in range(20):
        barrier, wins = threading.Barrier(8), []

        def race(writer: int, number: int = number, barrier: threading.Barrier = barrier, wins: list[int] = wins) -> None:
            barrier.wait()
            if ref.move({"writer": writer}, expected=number):
                wins.append(writer)

        threads = [threading.Thread(target=race, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        head = ref.read()
        assert head is not None
        assert len(wins) == 1
        assert (head.number, head.value) == (number + 1, {"writer": wins[0]})
    assert [revision.number for revision in ref.history()] == list(range(1, 21))


def test_ref_that_goes_back_to_its_first_value_has_it(store: Store) -> None:
    ref = store.ref("runs")
    for uri in ("a", "a", "b", "a", "a"):
        point_at(ref, uri)
    assert [record.value for record in ref.history()] == ["a", "b", "a"]


def test_uri_of_the_store_has_the_digest_of_its_content_and_the_key_of_its_work(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    uri = store.put_json({"a": 1})
    assert store.objects.get_bytes(StoreUri(uri).digest) == b'{"a":1}'
    manifest = Manifest(kind="snapshot", files={}, meta={})
    assert StoreUri(store.manifests.put(manifest)).digest == manifest.digest
    work = store.work_folder("p", "train", "f" * 64)
    assert StoreUri(work.uri).folder_key == StoreUri("s3://moved/elsewhere/" + StoreUri(work.uri).folder_key + "/").folder_key
    assert store.bucket.uri(StoreUri(work.uri).folder_key) == work.uri


ALLOWED_TO_SPLIT = {"training/store/work_folder.py", "training/store/bucket.py", "training/sources/listing.py"}


def test_no_other_module_splits_a_uri_for_its_digest() -> None:
    root = Path(__file__).resolve().parents[4]
    pattern = re.compile(r"uri\w*\)?\.(?:rsplit|rpartition|split)\(['\"]/")
    files = (path for folder in ("training", "plugins", "devstack") for path in (root / folder).rglob("*.py"))
    found = {path.relative_to(root).as_posix() for path in files if pattern.search(path.read_text(encoding="utf-8"))}
    assert found - ALLOWED_TO_SPLIT <= {"training/data/snapshot/builder.py"}


def test_store_that_was_moved_reuses_its_results_and_reads_what_records_of_its_earlier_place_name(tmp_path: Path) -> None:
    made = make(Store(str(tmp_path / "before")))
    (tmp_path / "before").rename(tmp_path / "after")
    moved = Store(str(tmp_path / "after"))
    assert moved.work_folder("p", "train", "f" * 64).result() == made
    assert moved.manifests.get(made.artifact_uri, kind="model").digest == made.digest
    moved.bucket.delete(moved.manifests.key(made.digest))
    assert moved.work_folder("p", "train", "f" * 64).result() is None
    with pytest.raises(StoreError, match="does not exist") as caught:
        moved.manifests.get(made.artifact_uri)
    assert moved.root_uri in caught.value.message
