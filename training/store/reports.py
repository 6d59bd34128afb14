"""The pipelines of reports: a report is named by its content alone, and a user who may read one pipeline may not read all."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Final

from training.errors import StoreError
from training.store import Store
from training.store.addresses import StoreUri
from training.store.refs import Ref

logger = logging.getLogger(__name__)

INDEXED: Final = "indexed"
_REVISION: Final = re.compile(r"/reports/[^/]+/\d+\.json")


def add_report(store: Store, pipeline: str, digest: str) -> None:
    """Note that the page with this SHA-256 is a report of `pipeline`.

    Reports of earlier versions are known by the refs of their runs alone: a pipeline's first call notes those too.
    """
    indexed = _ref(store, pipeline, INDEXED)
    if not indexed.head_number():
        for earlier in _reports_of_runs(store, pipeline):
            _note(store, pipeline, earlier)
        indexed.move(True, expected=0)
    _note(store, pipeline, digest)


def has_report(store: Store, pipeline: str, digest: str) -> bool:
    """Return whether the page with this SHA-256 is a report of `pipeline`. Writes nothing: every reader calls it."""
    if _ref(store, pipeline, digest).head_number():
        return True
    if _ref(store, pipeline, INDEXED).head_number():
        return False
    return digest in _reports_of_runs(store, pipeline)


def _reports_of_runs(store: Store, pipeline: str) -> Iterator[str]:
    for entry in store.bucket.list(f"runs/{pipeline}"):
        if _REVISION.search(entry.key) is not None:
            prefix, name = entry.key.rsplit("/", 1)
            try:
                uri = Ref(store.bucket, prefix).at(int(name.removesuffix(".json"))).value
            except StoreError as err:
                # One old page that cannot be found any more is not a reason to fail every night after it.
                logger.warning("left out of the index of reports: %s", err)
                continue
            yield StoreUri(uri).digest


def _note(store: Store, pipeline: str, digest: str) -> None:
    ref = _ref(store, pipeline, digest)
    while ref.head_number() == 0:
        ref.move(digest, expected=0)


def _ref(store: Store, pipeline: str, name: str) -> Ref:
    return store.ref(f"reports/{pipeline}/{name}")
