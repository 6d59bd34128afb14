"""Metrics that waited for MLflow, delivered to a real tracking store on SQLite: each point once, whatever is killed, whoever delivers."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import mlflow
import pytest

from training.engine.tracking import mlflow_delivery
from training.engine.tracking import mlflow_journal as tracking_journal
from training.engine.tracking.mlflow_delivery import (
    DeletedExperimentError,
    deliver,
    deliver_all,
    deliver_if_reachable,
    open_run,
    tracked_run,
)
from training.engine.tracking.mlflow_journal import ID_TAG, Backlog, End, RunDescription, RunJournal, pending_journals
from training.store import Bucket
from training.store.metric_journal import JournalWriter, MetricJournal, RawPoint

KEY = "stages/p/train/" + "f" * 64
STARTED_MS = 1_790_000_000_000
POINTS: list[RawPoint] = [("loss", 1.0 / step, step, STARTED_MS + 1000 * step) for step in range(1, 8)]
MORE: list[RawPoint] = [
    ("loss", float("nan"), 8, STARTED_MS + 8000),
    ("loss", 0.1, 9, STARTED_MS + 9000),
    ("norm", 2.0, 9, STARTED_MS + 9000),
]
_numbers = itertools.count()


class KilledError(BaseException):
    """What ends a process at once: no handler of the product catches it."""


class Steps:
    """Passes calls on to `target`, and dies before or after the call whose turn it is."""

    def __init__(self, target: Any, clock: Iterator[int], die_at: int, *, after: bool) -> None:
        self._target, self._clock, self._die_at, self._after = target, clock, die_at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            is_last = next(self._clock) == self._die_at
            if is_last and not self._after:
                raise KilledError
            answer = found(*arguments, **named)
            if is_last:
                raise KilledError
            return answer

        return call


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db"


@pytest.fixture(autouse=True)
def _mlflow(tracking_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    """An experiment of the test's own."""
    return f"experiment {next(_numbers)}"


@pytest.fixture
def journal(tmp_path: Path, experiment: str) -> RunJournal:
    """A training's journal: two attempts while MLflow was away, the second of which came to its end."""
    made = RunJournal(Bucket(str(tmp_path / "store")), KEY)
    write(made, experiment)
    return made


def write(journal: RunJournal, experiment: str) -> None:
    journal.describe(RunDescription(experiment=experiment, name="r", tags={"a": "b"}, parameters={"lr": "1"}, started_at_ms=STARTED_MS))
    add_attempt(journal, POINTS[:3], End(status="FAILED", ended_at_ms=STARTED_MS + 3500))
    add_attempt(journal, [*POINTS[3:], *MORE], End(status="FINISHED", ended_at_ms=STARTED_MS + 9500, metrics={"best": 0.25}))


def add_attempt(journal: RunJournal, points: list[RawPoint], end: End | None) -> str:
    """Add an attempt of which MLflow has nothing; return its name."""
    writer = JournalWriter(MetricJournal(journal.bucket, "p", "r"), "a")
    writer.begin()
    name = f"{writer.attempt:06d}-r"
    journal.note(name, Backlog(after=writer.last, end=end))
    for start in range(0, len(points), 2):
        writer.append(points[start : start + 2])
    return name


def runs_of(experiment: str) -> list[Any]:
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def assert_delivered_once(journal: RunJournal, experiment: str) -> None:
    """Compare all that MLflow has with what the journal was given."""
    (run,) = runs_of(experiment)
    assert run.info.run_id == journal.run_id()
    client = mlflow.MlflowClient()
    for name in ("loss", "norm"):
        found = [
            (metric.key, str(metric.value), metric.step, metric.timestamp) for metric in client.get_metric_history(run.info.run_id, name)
        ]
        assert sorted(found) == sorted((key, str(value), step, at) for key, value, step, at in [*POINTS, *MORE] if key == name)
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", STARTED_MS, STARTED_MS + 9500)
    assert run.data.params == {"lr": "1"}
    (best,) = client.get_metric_history(run.info.run_id, "best")
    assert (best.value, best.step, best.timestamp) == (0.25, 0, STARTED_MS + 9500)
    assert run.data.tags["a"] == "b"
    assert journal.backlogs() == []
    assert pending_journals(journal.bucket) == []


@pytest.mark.slow
def test_journal_is_delivered_with_the_times_steps_and_status_of_the_training(journal: RunJournal, experiment: str) -> None:
    assert deliver_if_reachable(journal) == journal.run_id()
    assert_delivered_once(journal, experiment)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_delivery_that_is_killed_at_any_call_and_done_again_has_each_point_once_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(tracking_journal, "MAX_BATCH", 4)
    for die_at in range(200):
        experiment, clock = f"killed {after} {die_at}", itertools.count()
        bucket = Bucket(str(tmp_path / f"store {die_at}"))
        write(RunJournal(bucket, KEY), experiment)
        client: Any = Steps(mlflow.MlflowClient(), clock, die_at, after=after)
        dying: Any = Steps(bucket, clock, die_at, after=after)
        try:
            deliver(client, RunJournal(dying, KEY))
        except KilledError:
            deliver_all(bucket)
            # Killed after the last file was deleted, nothing is left to do; and an open run without a journal is found again.
            assert_delivered_once(RunJournal(bucket, KEY), experiment)
        else:
            assert_delivered_once(RunJournal(bucket, KEY), experiment)
            break
    assert die_at > 15, "each call had its turn"


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_opening_that_is_killed_at_any_call_and_done_again_makes_one_run(tmp_path: Path, after: bool) -> None:
    for die_at in range(50):
        experiment, clock = f"opened {after} {die_at}", itertools.count()
        bucket = Bucket(str(tmp_path / f"store {die_at}"))
        write(RunJournal(bucket, KEY), experiment)
        client: Any = Steps(mlflow.MlflowClient(), clock, die_at, after=after)
        dying: Any = Steps(bucket, clock, die_at, after=after)
        try:
            opened = open_run(client, RunJournal(dying, KEY))
        except KilledError:
            opened = open_run(mlflow.MlflowClient(), RunJournal(bucket, KEY))
        (run,) = runs_of(experiment)
        assert run.info.run_id == opened
        assert run.data.params == {"lr": "1"}
        if next(clock) < die_at:
            break
    assert 5 < die_at < 49, "each call had its turn"


@pytest.mark.parametrize("name", ["tracking.json", "tracking-run.json"])
@pytest.mark.parametrize("change", [b"", b"{}", b"[1]", b"\xff", b'{"run_id": "another"}\n'])
def test_damaged_record_of_a_run_keeps_its_points_and_is_named_with_a_remedy_that_works(
    journal: RunJournal, experiment: str, caplog: pytest.LogCaptureFixture, name: str, change: bytes
) -> None:
    known = open_run(mlflow.MlflowClient(), journal)
    if name == "tracking-run.json":
        journal.bucket.delete(f"{KEY}/tracking.json")
    waiting = journal.backlogs()
    journal.bucket.put(f"{KEY}/{name}", change)

    assert tracked_run(journal.bucket, {"training_uri": journal.bucket.uri(KEY), "mlflow_run_id": known}) == known
    assert f"{KEY}/{name} is damaged" in caplog.text
    assert "delete it: " in caplog.text
    assert journal.backlogs() == waiting
    journal.bucket.delete(f"{KEY}/{name}")
    run_id = deliver_if_reachable(journal)
    if name == "tracking.json":
        assert run_id == runs_of(experiment)[0].info.run_id
        assert_delivered_once(journal, experiment)
    else:
        assert journal.backlogs() == []


def test_run_id_that_was_changed_to_another_one_gets_no_points(journal: RunJournal, experiment: str) -> None:
    known, other = open_run(mlflow.MlflowClient(), journal), mlflow.MlflowClient().create_run("0").info.run_id
    key = f"{KEY}/tracking.json"
    journal.bucket.put(key, journal.bucket.get(key).replace(known.encode(), other.encode()))

    deliver_if_reachable(journal)

    assert mlflow.MlflowClient().get_metric_history(other, "loss") == []
    assert journal.backlogs()


def test_damaged_end_of_an_attempt_costs_only_the_status(journal: RunJournal, experiment: str, caplog: pytest.LogCaptureFixture) -> None:
    journal.bucket.put(f"tracking/{KEY}/000002-r.json", b'{"status": "FIN')

    assert deliver(mlflow.MlflowClient(), journal) == len(POINTS) + len(MORE)

    assert "000002-r.json is damaged" in caplog.text
    assert journal.backlogs() == []


def test_training_under_way_is_left_to_itself_until_its_journal_has_not_changed_for_long(
    journal: RunJournal, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = add_attempt(journal, [("loss", 0.0, 10, STARTED_MS)], None)
    deliver_all(journal.bucket)
    assert runs_of(experiment) == []
    monkeypatch.setattr(tracking_journal, "STILL", timedelta(0))
    deliver_all(journal.bucket)
    assert name not in journal.backlogs()
    (run,) = runs_of(experiment)
    assert run.data.metrics["loss"] == 0.0


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return `run(call)`: two threads call it, and both find no run before one of them makes one."""
    both_looked = threading.Barrier(2)
    look = mlflow_delivery._made

    def look_together(*arguments: Any) -> list[str]:
        found = look(*arguments)
        if threading.current_thread().name.startswith("deliverer") and not found:
            both_looked.wait(60)
        return found

    def run(call: Callable[[], object]) -> None:
        threads = [threading.Thread(target=call, name=f"deliverer {number}") for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    monkeypatch.setattr(mlflow_delivery, "_made", look_together)
    return run


def test_two_that_open_at_once_leave_one_run(
    journal: RunJournal, experiment: str, together: Callable[[Callable[[], object]], None]
) -> None:
    together(lambda: open_run(mlflow.MlflowClient(), journal))
    (run,) = runs_of(experiment)
    assert run.info.run_id == journal.run_id()


def test_two_that_deliver_at_once_make_one_run_with_each_point_once(
    journal: RunJournal, experiment: str, together: Callable[[Callable[[], object]], None]
) -> None:
    together(lambda: deliver_if_reachable(journal))
    deliver_if_reachable(journal)
    assert_delivered_once(journal, experiment)


def test_run_of_a_maker_that_was_killed_beside_another_is_deleted(journal: RunJournal, experiment: str) -> None:
    run_id = open_run(mlflow.MlflowClient(), journal)
    description = journal.description()
    assert description is not None
    twin = mlflow.MlflowClient().create_run(runs_of(experiment)[0].info.experiment_id, tags={ID_TAG: description.token})
    assert twin.info.run_id != run_id
    deliver_if_reachable(journal)
    assert_delivered_once(journal, experiment)


def test_nothing_is_lost_while_mlflow_is_away(
    journal: RunJournal, experiment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = journal.backlogs()
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        assert deliver_if_reachable(journal) is None
    assert f"metrics of {KEY} still wait for MLflow" in caplog.text
    assert journal.backlogs() == files
    deliver_all(journal.bucket)
    assert_delivered_once(journal, experiment)


def test_metric_that_mlflow_refuses_is_dropped_alone_and_named(
    journal: RunJournal, experiment: str, caplog: pytest.LogCaptureFixture
) -> None:
    add_attempt(journal, [("ndcg@10", 0.5, 4, STARTED_MS), ("mrr", 0.75, 4, STARTED_MS)], None)
    deliver_if_reachable(journal)
    assert runs_of(experiment)[0].data.metrics["mrr"] == 0.75
    assert "MLflow refuses the metric 'ndcg@10' of step 4, which is dropped" in caplog.text
    assert_delivered_once(journal, experiment)


def delete_run(client: Any, journal: RunJournal) -> None:
    client.delete_run(open_run(client, journal))


def delete_experiment(client: Any, journal: RunJournal) -> None:
    description = journal.description()
    assert description is not None
    client.delete_experiment(client.create_experiment(description.experiment))


def drop_address(client: Any, journal: RunJournal) -> None:
    journal.bucket.delete(f"{KEY}/tracking-run.json")


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (delete_run, "a user deleted their run from MLflow"),
        (delete_experiment, "a user deleted their experiment 'experiment "),
        (drop_address, "nothing says which run they are of"),
    ],
)
def test_points_of_a_run_or_an_experiment_that_a_user_or_the_retention_deleted_are_dropped(
    journal: RunJournal, caplog: pytest.LogCaptureFixture, lose: Callable[[Any, RunJournal], None], why: str
) -> None:
    lose(mlflow.MlflowClient(), journal)
    deliver_if_reachable(journal)
    assert f"metrics of {KEY} are dropped: {why}" in caplog.text
    assert journal.backlogs() == []


def test_metrics_of_a_training_in_a_deleted_experiment_wait_for_the_command_that_restores_it(journal: RunJournal, experiment: str) -> None:
    client = mlflow.MlflowClient()
    delete_experiment(client, journal)
    with pytest.raises(DeletedExperimentError, match=r"restore --experiment-id \d+$") as caught:
        open_run(client, journal)
    client.restore_experiment(str(caught.value).rsplit(" ", 1)[-1])
    deliver_if_reachable(journal)
    assert_delivered_once(journal, experiment)


def test_the_later_stages_read_the_run_from_the_trainings_work_folder(
    journal: RunJournal, experiment: str, caplog: pytest.LogCaptureFixture
) -> None:
    uri = journal.bucket.uri(KEY)
    with caplog.at_level(logging.INFO):
        found = tracked_run(journal.bucket, {"training_uri": uri, "mlflow_run_id": None})
    assert found == runs_of(experiment)[0].info.run_id
    assert "MLflow now has 10 points" in caplog.text
    assert tracked_run(journal.bucket, {"training_uri": uri, "mlflow_run_id": None}) == found
    assert tracked_run(journal.bucket, {"mlflow_run_id": found}) == found
    assert tracked_run(journal.bucket, {}) is None


@pytest.mark.parametrize("lost", ["the run", "the database"])
def test_run_that_mlflow_no_longer_has_is_none_for_the_later_stages(
    journal: RunJournal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: str
) -> None:
    run_id = deliver_if_reachable(journal)
    if lost == "the run":
        mlflow.MlflowClient().delete_run(run_id)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/another.db")
    assert tracked_run(journal.bucket, {"training_uri": journal.bucket.uri(KEY), "mlflow_run_id": run_id}) is None


def test_server_that_does_not_answer_is_not_waited_for_by_every_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, now, asked = Bucket(str(tmp_path / "store")), [0.0], []
    for number in range(10):
        RunJournal(bucket, f"stages/p/train/{number}").note("000001-r", Backlog())

    def hang(journal: RunJournal) -> None:
        asked.append(journal.key)
        now[0] += 40.0

    monkeypatch.setattr(mlflow_delivery, "deliver_if_reachable", hang)
    deliver_all(bucket, clock=lambda: now[0])

    assert len(asked) == 2
    assert "metrics of 8 more trainings wait" in caplog.text
