"""Pages of stages: one object each, found by its pipeline and its digest."""

import gzip

import pytest

from training.errors import StoreError
from training.store import Store
from training.store.work_folder import StoreUri

PAGE = b"<!doctype html>" + b"<p>row</p>" * 1000


def test_a_page_is_one_small_object_of_its_pipeline(store: Store) -> None:
    uri = store.reports.put("p", PAGE)
    assert store.reports.put("p", PAGE) == uri
    (entry,) = store.bucket.list("")
    assert entry.key == f"reports/p/{StoreUri(uri).digest}" == StoreUri(uri).content_key
    assert entry.size_bytes < len(PAGE) // 20
    assert store.reports.get(uri) == store.reports.find("p", StoreUri(uri).digest) == PAGE


def test_a_page_of_another_pipeline_or_of_no_one_is_not_found(store: Store) -> None:
    uri = store.reports.put("p", PAGE)
    assert store.reports.find("q", StoreUri(uri).digest) is None
    assert store.reports.find("p", store.objects.put_bytes(PAGE)) is None


def test_an_altered_page_is_refused_and_replaced_when_it_is_published_again(store: Store) -> None:
    uri = store.reports.put("p", PAGE)
    store.bucket.put(store.bucket.key(uri), gzip.compress(b"forged"))
    with pytest.raises(StoreError, match="holds other bytes") as caught:
        store.reports.get(uri)
    assert caught.value.code == "object.altered"
    assert store.reports.put("p", PAGE) == uri
    assert store.reports.get(uri) == PAGE
