"""Which pipeline a report belongs to: reports are objects named by content alone, and a user who may read one pipeline may not read all."""

from __future__ import annotations

import re
from typing import Final

from training.store import Store
from training.store.refs import Ref

INDEXED: Final = "indexed"
_REVISION: Final = re.compile(r"/reports/[^/]+/\d+\.json")


def add_report(store: Store, pipeline: str, digest: str) -> None:
    """Note that the page with this SHA-256 is a report of `pipeline`."""
    ref = _ref(store, pipeline, digest)
    while ref.head_number() == 0:
        ref.move(digest, expected=0)


def has_report(store: Store, pipeline: str, digest: str) -> bool:
    """Return whether the page with this SHA-256 is a report of `pipeline`.

    Reports of earlier versions are known by the refs of their runs alone; the first question about an unknown one indexes them, once.
    """
    ref = _ref(store, pipeline, digest)
    if ref.head_number():
        return True
    indexed = _ref(store, pipeline, INDEXED)
    if indexed.head_number():
        return False
    for entry in store.bucket.list(f"runs/{pipeline}"):
        found = _REVISION.search(entry.key)
        if found is not None:
            uri = Ref(store.bucket, entry.key.rsplit("/", 1)[0]).at(int(entry.key.rsplit("/", 1)[1].removesuffix(".json"))).value
            add_report(store, pipeline, str(uri).rsplit("/", 1)[-1])
    indexed.move(True, expected=0)
    return bool(ref.head_number())


def _ref(store: Store, pipeline: str, name: str) -> Ref:
    return store.ref(f"reports/{pipeline}/{name}")
