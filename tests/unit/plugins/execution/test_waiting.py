"""What a task asks of the storage while it waits for another run's work."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import obstore
import pytest

from nightshift.execution import local
from nightshift.execution.backend import StageTask
from training.contracts import RunIdentity, StageResult
from training.store import Store, bucket, leases
from training.store.leases import Lease

PAGE_KEYS = 1000
"""Keys of one answer to a listing on S3."""


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests as S3 would see them, by verb."""
    seen: Counter[str] = Counter()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(obstore, name)

        def get(self, *args: Any, **options: Any) -> Any:
            seen["get"] += 1
            return obstore.get(*args, **options)

        def list(self, *args: Any, **options: Any) -> Any:
            pages = list(obstore.list(*args, **options))
            seen["list"] += max(1, -(-sum(map(len, pages)) // PAGE_KEYS))
            return pages

    monkeypatch.setattr(bucket, "obstore", Counting())
    return seen


@pytest.mark.slow
def test_an_hour_beside_a_training_of_a_week_lists_once_and_reads_a_heartbeat_each_second(
    tmp_path: Path, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work_folder = Store(str(tmp_path)).work_folder("p", "train", "f" * 64)
    lease = Lease.acquire(work_folder, owner="p/week/train", attempt_id="a1")
    num_checkpoints = 7 * 24
    for step in range(num_checkpoints):
        lease.commit("checkpoint", {"step": step})
    run = RunIdentity(dag_id="p", run_id="week", task_id="train")
    of_work: dict[str, Any] = {"pipeline": "p", "stage": "train", "work_id": "f" * 64, "artifact_uri": "u", "digest": "d", "run": run}
    made = StageResult(**of_work, attempt_id="a1", attempts=1, committed_at="")
    now, beats = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] % 2 < seconds:
            beats[0] += 1
            work_folder.write_heartbeat("a1", {"beat": beats[0]})
        if now[0] == 1800:
            lease.commit("checkpoint", {"step": num_checkpoints})
        if now[0] == 3600:
            lease.commit(leases.COMMIT, {})
        if now[0] >= 3620:
            work_folder.create_result(made)

    monkeypatch.setattr(local, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    monkeypatch.setattr(leases, "AwakeClock", lambda: lambda: now[0])
    requests.clear()
    waiter = RunIdentity(dag_id="p", run_id="other", task_id="train")
    task = cast(StageTask, SimpleNamespace(work=SimpleNamespace(folder=work_folder), run=waiter, say=print))
    assert local.wait_for_others(task) == (0, made), "a result whose write takes 20 s after its commit is waited for"
    polls, polls_of_a_commit = 3620 / local.POLL_SECONDS + 1, 20 / local.POLL_SECONDS + 1
    assert requests["list"] == polls
    revisions, results = num_checkpoints + 3, 4
    assert requests["get"] <= polls + polls_of_a_commit + revisions + results
