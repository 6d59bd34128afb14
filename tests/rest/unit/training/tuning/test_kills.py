"""kill -9 of a trial's process, and of the storage's server, in the middle of a study: nothing that was finished is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.databases import KillablePostgres
from tests.unit.training.tuning.study_bench import StudyBench, study_name
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec
from training.tuning.storage import SCHEMA, open_storage
from training.tuning.study import SLOT, Search

pytestmark = pytest.mark.slow

WAIT_SECONDS = 240.0
"""Longer than anything takes here, on a busy machine too."""
EPOCHS = 40


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> StudyBench:
    return StudyBench(tmp_path_factory.mktemp("kills"))


def until(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not look():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.02)


class StudyWorker:
    """Starts trials as processes of their own."""

    def __init__(self, bench: StudyBench, spec: PipelineSpec, name: str, home: Path, **environment: str) -> None:
        self._bench, self._spec, self._name, self._home = bench, spec, name, home
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("NIGHTSHIFT_")},
            "OMP_NUM_THREADS": "1",
            "NIGHTSHIFT_HOME": str(home),
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            **environment,
        }

    def start(self, slot: int, attempt_id: str = "a1") -> subprocess.Popen[bytes]:
        uri = self._bench.ask(self._spec, self._name, slot, attempt_id)
        with (self._home / f"{self._name}-{slot}-{attempt_id}.log").open("wb") as log:
            command = [sys.executable, "-m", "training.stages.trial", uri]
            return subprocess.Popen(command, cwd=CHECKOUT, env=self._environment, stdout=log, stderr=subprocess.STDOUT)

    def finish(self, slot: int, attempt_id: str = "a1") -> None:
        process = self.start(slot, attempt_id)
        try:
            assert process.wait(WAIT_SECONDS) == 0, self._bench.work_folder(self._name, slot).error(attempt_id)
        finally:
            process.kill()
            process.wait()

    def checkpoints(self, slot: int) -> int:
        journal = self._bench.work_folder(self._name, slot).chain().history()
        return sum(entry.value["kind"] == "checkpoint" for entry in journal)


def spec_of(bench: StudyBench) -> PipelineSpec:
    train = bench.bench.spec.train
    often = train.model_copy(update={"epochs": EPOCHS, "checkpoint": train.checkpoint.model_validate({"every": "1s"})})
    return bench.spec(trials=3, pruner="none").model_copy(update={"train": often})


def test_killed_trials_and_a_killed_storage_cost_no_finished_trial(
    bench: StudyBench, killable_postgres: KillablePostgres, tmp_path: Path
) -> None:
    spec, name = spec_of(bench), "on postgres"
    # Longer than this test waits: a trial that is under way never waits for the storage of its study.
    worker = StudyWorker(bench, spec, name, tmp_path, NIGHTSHIFT_DATABASE=killable_postgres.url, NIGHTSHIFT_DATABASE_WAIT_SECONDS="900")
    worker.finish(0)
    (finished,) = bench.study(name).records()
    killed, bereft = worker.start(1), worker.start(2)
    try:
        until(lambda: worker.checkpoints(1) and worker.checkpoints(2), "a checkpoint of each")
        killed.send_signal(signal.SIGKILL)
        killable_postgres.kill()
        assert bereft.wait(WAIT_SECONDS) == 0, "a trial goes on without its storage"
    finally:
        for process in (killed, bereft):
            process.kill()
            process.wait()
    assert [record.slot for record in bench.study(name).records()] == [0, 2]
    killable_postgres.start()
    worker.finish(1, "a2")
    records = bench.study(name).records()
    assert [(record.slot, record.state, record.epochs) for record in records] == [(slot, "complete", EPOCHS) for slot in range(3)]
    assert records[0] == finished
    resumed = bench.work_folder(name, 1).result()
    assert resumed is not None
    assert resumed.attempts == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", killable_postgres.url)
        search = Search(spec.tune, spec.train, name=study_name(name), slot=0, storage=open_storage(study_name(name), shared=True))  # type: ignore[arg-type]
        stored = {trial.user_attrs[SLOT]: (trial.state.name, trial.value) for trial in search.study.get_trials()}
    assert stored == {record.slot: ("COMPLETE", record.value) for record in records}
    engine = create_engine(killable_postgres.url)
    with engine.connect() as connection:
        schemas = (
            connection.execute(text("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename IN ('studies', 'trials')")).scalars().all()
        )
    engine.dispose()
    assert schemas == [SCHEMA], "Optuna's tables are apart from ours"


def test_trial_killed_with_the_journals_lock_stops_no_other_trial(bench: StudyBench, tmp_path: Path) -> None:
    spec, name = spec_of(bench), "on a journal"
    worker = StudyWorker(bench, spec, name, tmp_path)
    first, second = worker.start(0), worker.start(1)
    try:
        until(lambda: worker.checkpoints(0) and worker.checkpoints(1), "a checkpoint of each")
        first.send_signal(signal.SIGKILL)
        assert second.wait(WAIT_SECONDS) == 0
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    worker.finish(0, "a2")
    worker.finish(2)
    assert [(record.slot, record.epochs) for record in bench.study(name).records()] == [(slot, EPOCHS) for slot in range(3)]
    again = bench.work_folder(name, 0).result()
    assert again is not None
    assert again.attempts == 2
