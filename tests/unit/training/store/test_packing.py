"""Small files of an artifact are stored within its manifest, and are read as those that are objects."""

from pathlib import Path

import pytest

from training.contracts import canonical_json, sha256_hex
from training.errors import StoreError
from training.store import Store
from training.store.manifests import Manifest
from training.store.packing import PACKED_BYTES, PACKED_FILE_BYTES, pack, unpack

SMALL, LARGE = b"\n small \n", b"x" * (PACKED_FILE_BYTES + 1)


def stored(store: Store) -> list[str]:
    return [entry.key.partition("/")[0] for entry in store.bucket.list("")]


def test_an_artifact_of_small_files_is_one_object_and_is_read_whole(store: Store, tmp_path: Path) -> None:
    uri, made = store.manifests.put_files("model", {"a/empty": b"", "small": SMALL}, {"n": 1})
    assert stored(store) == ["manifests"]
    read = store.manifests.get(uri, kind="model")
    assert read == made
    assert [store.manifests.read(read, name) for name in ("a/empty", "small")] == [b"", SMALL]
    folder = store.manifests.fetch(read, tmp_path / "fetched")
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {"empty": b"", "small": SMALL}


def test_a_large_file_beside_small_ones_is_an_object_and_is_read_alike(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    uri, made = store.manifests.put_files("model", {"large": path, "small": SMALL}, {})
    assert stored(store) == ["manifests", "objects"]
    assert store.objects.get_bytes(made.files["large"].digest) == LARGE
    assert store.manifests.packed_names(made) == {"small"}
    assert store.manifests.read(store.manifests.get(uri), "large") == LARGE
    assert (store.manifests.fetch(made, tmp_path / "fetched") / "large").read_bytes() == LARGE


def test_a_manifest_has_no_larger_pack_than_its_readers_are_to_read(store: Store) -> None:
    files = {f"{number:02}": bytes([number]) * PACKED_FILE_BYTES for number in range(PACKED_BYTES // PACKED_FILE_BYTES + 2)}
    _, made = store.manifests.put_files("model", files, {})
    assert len(store.manifests.packed_names(made)) == PACKED_BYTES // PACKED_FILE_BYTES
    assert stored(store).count("objects") == 2
    assert {name: store.manifests.read(made, name) for name in files} == files


def test_the_digest_of_an_artifact_does_not_depend_on_where_its_files_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, packed = store.manifests.put_files("model", {"small": SMALL}, {})
    monkeypatch.setattr("training.store.manifests.PACKED_FILE_BYTES", -1)
    _, apart = store.manifests.put_files("model", {"small": SMALL}, {})
    assert (packed.digest, packed) == (apart.digest, apart)
    assert store.objects.get_bytes(sha256_hex(SMALL)) == SMALL


@pytest.mark.parametrize("damage", ["content", "index", "stream", "cut", "longer"])
def test_a_damaged_pack_is_refused_and_its_facts_are_still_read(local: Store, damage: str, tmp_path: Path) -> None:
    uri, made = local.manifests.put_files("model", {"small": SMALL}, {"n": 1})
    index, _, stream = made.pack.partition(b"\n")
    pack_of = {
        "content": pack({"small": SMALL.upper()}),
        "index": b"7\n" + stream,
        "stream": index + b"\nno zlib",
        "cut": made.pack[:-9],
        "longer": canonical_json([["small", len(SMALL) + 1]]) + b"\n" + stream,
    }
    local.bucket.put(local.bucket.key(uri), made.to_json() + b"\n" + pack_of[damage])
    read = local.manifests.get(uri)
    assert read.meta == {"n": 1}
    for look in (lambda: local.manifests.read(read, "small"), lambda: local.manifests.fetch(read, tmp_path / "fetched")):
        with pytest.raises(StoreError) as caught:
            look()
        assert (caught.value.code, "trigger the run again with force" in caught.value.hint) == ("object.altered", True)
        assert uri in caught.value.message
    assert local.manifests.put(made) == uri
    assert local.manifests.read(local.manifests.get(uri), "small") == SMALL


def test_a_pack_that_would_inflate_to_more_than_it_may_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="its files have"):
        unpack(pack({"bomb": b"\0" * (PACKED_BYTES * 8)}))


def test_a_stage_reads_a_manifest_once_and_others_see_that_it_was_deleted(local: Store) -> None:
    uri = local.manifests.put(Manifest(kind="model", files={}))
    of_stage = Store(local.root_uri, keeps_manifests=True)
    assert local.manifests.get(uri) == of_stage.manifests.get(uri)
    local.bucket.delete(local.bucket.key(uri))
    assert of_stage.manifests.get(uri).kind == "model"
    with pytest.raises(StoreError, match="does not exist"):
        local.manifests.get(uri)
