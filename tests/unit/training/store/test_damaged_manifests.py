"""A manifest that `to_json` did not write ends in one stable error, which names its URI and what to do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.dataset.manifest import meta_of
from training.errors import DataError, StoreError
from training.store.manifests import FileEntry, Manifest

URI = "s3://nightshift/manifests/sha256/ab/abc.json"
GOOD = {"kind": "model", "format_version": 1, "meta": {}, "files": {"a": {"digest": "d" * 64, "size_bytes": 1}}}
DAMAGED = {
    "null": b"null",
    "a list": b"[]",
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe\xfd",
    "nested too deeply": b"[" * 200_000,
    "an empty object": b"{}",
    "version as text": json.dumps(GOOD | {"format_version": "1"}).encode(),
    "version as boolean": json.dumps(GOOD | {"format_version": True}).encode(),
    "version zero": json.dumps(GOOD | {"format_version": 0}).encode(),
    "kind null": json.dumps(GOOD | {"kind": None}).encode(),
    "meta a list": json.dumps(GOOD | {"meta": []}).encode(),
    "files a list": json.dumps(GOOD | {"files": []}).encode(),
    "entry null": json.dumps(GOOD | {"files": {"a": None}}).encode(),
    "entry without size": json.dumps(GOOD | {"files": {"a": {"digest": "d" * 64}}}).encode(),
    "entry with another key": json.dumps(GOOD | {"files": {"a": {"digest": "d" * 64, "size_bytes": 1, "x": 1}}}).encode(),
    "negative size": json.dumps(GOOD | {"files": {"a": {"digest": "d" * 64, "size_bytes": -1}}}).encode(),
    "size as boolean": json.dumps(GOOD | {"files": {"a": {"digest": "d" * 64, "size_bytes": True}}}).encode(),
    "short digest": json.dumps(GOOD | {"files": {"a": {"digest": "d" * 63, "size_bytes": 1}}}).encode(),
    "digest with a newline": json.dumps(GOOD | {"files": {"a": {"digest": "d" * 64 + "\n", "size_bytes": 1}}}).encode(),
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = VALUES | st.fixed_dictionaries({}, optional={"digest": VALUES | st.just("d" * 64), "size_bytes": VALUES})
DOCUMENTS = VALUES | st.fixed_dictionaries(
    {},
    optional={
        "kind": VALUES | st.just("model"),
        "format_version": VALUES | st.just(1),
        "meta": VALUES,
        "files": VALUES | st.dictionaries(st.text(max_size=3), ENTRIES, max_size=2),
    },
)


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_malformed_manifest_is_manifest_damaged_with_its_uri_and_a_hint(data: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        Manifest.from_bytes(data, uri=URI)
    assert caught.value.code == "manifest.damaged"
    assert URI in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 400


def test_a_manifest_of_a_newer_format_is_manifest_newer_whatever_else_changed() -> None:
    with pytest.raises(DataError) as caught:
        Manifest.from_bytes(b'{"format_version": 2, "files": []}', uri=URI)
    assert caught.value.code == "manifest.newer"


def test_a_written_manifest_is_read_unchanged() -> None:
    written = Manifest(kind="model", files={"a/b": FileEntry(digest="0" * 64, size_bytes=0)}, meta={"x": [1, None]})
    assert Manifest.from_bytes(written.to_json(), uri=URI) == written


@settings(max_examples=200)
@given(DOCUMENTS)
def test_any_json_document_is_read_or_refused_with_a_code(document: object) -> None:
    code = ""
    try:
        read = Manifest.from_bytes(json.dumps(document).encode(), uri=URI)
    except DataError as err:
        code = err.code
    else:
        assert all(entry.size_bytes >= 0 and len(entry.digest) == 64 for entry in read.files.values())
    assert code in {"", "manifest.damaged", "manifest.newer"}


@pytest.mark.parametrize("version", [None, "2", True, 0, [], 1.5])
def test_a_dataset_whose_format_is_not_a_positive_integer_is_dataset_damaged(version: object) -> None:
    with pytest.raises(DataError, match=r"meta\.format: required an integer >= 1") as caught:
        meta_of(Manifest(kind="dataset", files={}, meta={"format": version}))
    assert caught.value.code == "dataset.damaged"
    assert caught.value.hint
