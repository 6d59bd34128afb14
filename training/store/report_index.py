"""The pipelines of reports: a report is named by its content alone, and a user who may read one pipeline may not read all."""

from __future__ import annotations

from training.store import Store
from training.store.chains import Chain


def add_report(store: Store, pipeline: str, digest: str) -> None:
    """Note that the page with this SHA-256 is a report of `pipeline`."""
    ref = _ref(store, pipeline, digest)
    while ref.head_number() == 0:
        ref.move(digest, expected=0)


def has_report(store: Store, pipeline: str, digest: str) -> bool:
    """Return whether the page with this SHA-256 is a report of `pipeline`. Writes nothing: every reader calls it."""
    return _ref(store, pipeline, digest).head_number() > 0


def _ref(store: Store, pipeline: str, digest: str) -> Chain:
    return store.ref(f"reports/{pipeline}/{digest}")
