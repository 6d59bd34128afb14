"""A save of several ranks in which one is killed, hangs, has no disk or no lease: all ranks agree on what came of it. Real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.runtime.provenance import CHECKOUT
from training.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/plugins"}
    command = [sys.executable, "-m", "tests.unit.training.large.checkpoint.sharded_faults", str(folder)]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def outcome(folder: Path, name: str) -> Any:
    return json.loads((folder / "outcome.json").read_text())[name]


def steps(folder: Path, name: str) -> list[int]:
    """Return the steps of the checkpoints that were committed."""
    store = Store(str(folder / name / "store"))
    journals = [work_folder.chain() for work_folder in work_folders(store)]
    return [entry.value["payload"]["step"] for journal in journals for entry in journal.history() if entry.value["kind"] == "checkpoint"]


def work_folders(store: Store) -> list[Any]:
    return [store.work_folder("p", "train", name) for name in store.bucket.folders("stages/p/train")]


@pytest.mark.parametrize(
    ("name", "killed"),
    [
        ("killed_before_its_blocks", 1),
        ("killed_after_its_blocks", 1),
        ("first_killed_before_the_commit", 0),
        ("first_killed_between_manifest_and_entry", 0),
    ],
)
def test_earlier_checkpoint_stands_when_a_rank_is_killed_in_a_save_and_the_other_one_ends(folder: Path, name: str, killed: int) -> None:
    found = outcome(folder, name)
    assert found["statuses"][killed] == -9
    assert found["statuses"][1 - killed] == 0
    assert found["ranks"][1 - killed] == {"error": "peer.lost"}
    assert steps(folder, name) == [1]


def test_save_fails_and_the_training_ends_as_a_process_when_a_ranks_thread_hangs(folder: Path) -> None:
    found = outcome(folder, "hangs_in_its_blocks")
    assert found["statuses"] == [0, 0]
    assert found["ranks"][0] == {"ends": "", "failed": 1}
    assert steps(folder, "hangs_in_its_blocks") == [1]


def test_all_ranks_count_a_save_that_failed_on_one(folder: Path) -> None:
    found = outcome(folder, "disk_is_full_on_one_rank")
    expected = {"counts": [0, 1, 2, 0, 1, 2, 3], "names the rank": True}
    ranks = [{**expected, "ends": "checkpoint.unsaved"}, {**expected, "ends": "storage.full"}]
    assert found == {"statuses": [0, 0], "ranks": ranks}
    assert steps(folder, "disk_is_full_on_one_rank") == [1, 4]


def test_lease_that_rank_0_lost_ends_the_training_on_all_ranks(folder: Path) -> None:
    assert [rank["ends"] for rank in outcome(folder, "lease_is_lost")["ranks"]] == ["lease.lost", "lease.lost"]
    assert steps(folder, "lease_is_lost") == [1]


def test_third_save_waits_while_two_are_under_way_and_all_are_committed_in_order(folder: Path) -> None:
    found = outcome(folder, "saves_follow_each_other")
    assert [rank["saves begun while the first is held"] for rank in found["ranks"]] == [2, 2]
    assert steps(folder, "saves_follow_each_other") == [1, 2, 3]


def test_only_blocks_that_changed_are_written(folder: Path) -> None:
    by_rank = [rank["written"] for rank in outcome(folder, "little_changes")["ranks"]]
    new = [[new for new, _ in written] for written in by_rank]
    shard = 3 * 100_000 * 4
    # One rank writes the scalar beside its own small tensor (12 bytes), or the best weights too (20 more).
    totals = [sum(rank) for rank in zip(*new, strict=True)]
    small = 4 + 2 * 8
    assert totals == [4 * shard + small, 2 * shard + small, 4 * shard + small, 2 * shard + small + 20, 2 * shard + small]


def test_ranks_of_a_trial_save_when_one_is_due_for_rank_0(folder: Path) -> None:
    assert outcome(folder, "trial")["statuses"] == [0, 0]
    assert steps(folder, "trial") == [1]


def test_ranks_that_have_a_tensor_with_other_shapes_save_nothing_until_they_agree(folder: Path) -> None:
    expected = {"ends": "", "failed": 1}
    assert outcome(folder, "ranks_differ") == {"statuses": [0, 0], "ranks": [expected, expected]}
    assert steps(folder, "ranks_differ") == [2]
