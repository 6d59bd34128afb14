"""Work in a store that a collection looks at, and ways to make it old."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from training.contracts import RunIdentity, StageRequest, StageResult
from training.store import Store, set_run_ref
from training.store.garbage_collector import Collector
from training.store.leases import COMMIT, Lease
from training.store.reachability import KeepRules

NOW = KeepRules(runs=timedelta(seconds=-5), attempts=timedelta(seconds=-5), grace=timedelta(0))
"""Everything is old at once: S3 knows the time of a change by the second."""
LONG = KeepRules(runs=timedelta(days=30), attempts=timedelta(days=14), grace=timedelta(days=2))


class NoDecisions:
    """The ledger of an installation where nothing was decided."""

    def identity(self) -> str | None:
        return None

    def uris(self) -> Collection[str]:
        return ()

    def release(self, uris: Collection[str]) -> Collection[str]:
        del uris
        return ()


def collector_of(store: Store, rules: KeepRules, **options: Any) -> Collector:
    """Return the collector of a store whose ledger has no decisions."""
    return Collector(store, rules, NoDecisions(), **options)


def request_of(store: Store, work_id: str = "f" * 64, *, stage: str = "train", attempt_id: str = "a1", **facts: Any) -> StageRequest:
    return StageRequest(
        pipeline="p",
        stage=stage,
        work_id=work_id,
        attempt_id=attempt_id,
        store_uri=store.root_uri,
        spec_uri=store.put_json({"spec": 1}),
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        inputs=facts.pop("inputs", {}),
        run=RunIdentity(dag_id="p", run_id="r", task_id=stage),
        **facts,
    )


def make(store: Store, content: str = "weights", work_id: str = "f" * 64) -> StageResult:
    """Do a piece of work: request, lease, artifact, result, and the run's ref."""
    request = request_of(store, work_id)
    work_folder = store.work_folder("p", "train", work_id)
    work_folder.write_request(request)
    lease = Lease.acquire(work_folder, owner="o", attempt_id="a1")
    uri, manifest = store.manifests.put_files("model", {"w": content.encode()}, {"made": content})
    set_run_ref(store, request, "model", uri)
    result = StageResult(
        pipeline="p",
        stage="train",
        work_id=work_id,
        artifact_uri=uri,
        digest=manifest.digest,
        run=request.run,
        attempt_id="a1",
        attempts=1,
        committed_at="",
    )
    lease.commit(COMMIT, {})
    assert work_folder.create_result(result)
    return result


def keys(store: Store, *prefixes: str) -> list[str]:
    return [entry.key for prefix in prefixes for entry in store.bucket.list(prefix)]


def age(store: Store, *prefixes: str, days: float) -> None:
    """Let files of a local store be older than they are."""
    root, then = Path(store.root_uri.removeprefix("file://")), time.time() - days * 86_400
    for key in keys(store, *prefixes):
        os.utime(root / key, (then, then))
