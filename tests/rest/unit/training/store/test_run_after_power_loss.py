"""After a power loss near a commit, the next run of the same night goes on by itself and ends with the same bytes.

Every point trains a night: the tests of the store alone do not show whether the stages go on from what is left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training_bench import Bench
from tests.unit.training.store.power_loss import Disk, Recorder, recording
from training.contracts import ExitCode, StageResult

NEAR_CALLS = 3
STAGES = ("ingest", "validate", "prepare", "train", "evaluate")


class NextRun(Bench):
    """The same night, by an attempt of its own."""

    attempt_id = "a2"


def finish(bench: Bench) -> dict[str, Any]:
    """Run what the bench has not run yet; return what must be equal in every run."""
    snapshot = result_of(bench, "ingest")
    bench.stage("validate", {"snapshot": snapshot.artifact_uri}, {})
    assert bench.train("only", bench.attempt_id) is ExitCode.DONE
    model = result_of(bench, "train")
    evaluation = bench.stage("evaluate", {"model": model.artifact_uri, "dataset": bench.dataset_uri}, {})
    measured = {name: value for name, value in evaluation.scalars.items() if name.startswith(("candidate", "naive"))}
    prepared = result_of(bench, "prepare")
    return {"snapshot": snapshot.digest, "dataset": prepared.digest, "weights": model.scalars["weights_digest"], **measured}


def result_of(bench: Bench, stage: str) -> StageResult:
    result = bench.work_folder(stage, "only").result()
    assert result is not None
    return result


class Night:
    """A night without promotion, with all calls that the writers of its store made."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.folder = folder
        self.expected = finish(Bench(folder, every="1s"))
        self.calls = recorder.calls

    def commits(self) -> list[int]:
        """Return the calls at which the create of a result, a ref or an entry of a journal has returned to its writer."""
        names = ("_RESULT.json", "/journal/", "/refs/")
        return [number for number, call in enumerate(self.calls) if call[0] == "answered" and any(name in f"/{call[1]}" for name in names)]

    def points(self, count: int, seed: int) -> list[int]:
        """Return so many calls near commits, at least one of each stage."""
        chance = random.Random(seed)  # noqa: S311 - the same points in every run
        near = [max(1, commit + chance.randint(-NEAR_CALLS, NEAR_CALLS)) for commit in self.commits()]
        chance.shuffle(near)
        first = [next(point for point in near if f"/{stage}/" in str(self.calls[point])) for stage in STAGES]
        return sorted({*first, *near[: count - len(first)]})

    def put_back(self, point: int, seed: int, pool: Path) -> None:
        """Make the store what a power loss after so many calls may leave: records name its folder, so it is in the same one."""
        disk = Disk("store")
        for call in self.calls[:point]:
            disk.do(call)
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        pool.mkdir(exist_ok=True)
        crashed = self.folder / "crashed"
        disk.write_after_crash(crashed, random.Random(seed + point), pool)  # noqa: S311
        (crashed / "store").mkdir(exist_ok=True)
        (crashed / "store").rename(self.folder / "store")
        crashed.rmdir()


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        # Without a server, MLflow puts artifacts below the working directory.
        environment.chdir(folder)
        with recording(folder / "store") as recorder:
            recorded = Night(folder, recorder)
        yield recorded


def check(night: Night, pool: Path, count: int, seed: int) -> None:
    for point in night.points(count, seed):
        try:
            night.put_back(point, seed, pool)
            assert finish(NextRun(night.folder, every="1s")) == night.expected
        except BaseException as err:
            raise AssertionError(f"seed {seed}, after call {point} of {len(night.calls)}: {night.calls[point - 1][:2]}") from err


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_next_run_after_a_power_loss_at_a_commit_of_each_stage_ends_with_the_same_bytes(night: Night, tmp_path: Path) -> None:
    check(night, tmp_path / "pool", len(STAGES), seed=7)


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_next_run_after_a_power_loss_at_30_points_near_commits_ends_with_the_same_bytes(night: Night, tmp_path: Path) -> None:
    check(night, tmp_path / "pool", 30, seed=8)
