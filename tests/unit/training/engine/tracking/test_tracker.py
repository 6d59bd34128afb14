"""Metrics on their way to the journal and to MLflow: sent in batches, kept while it is away, sent once by the next attempt."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.engine.loop_bench import WORK_ID, LoopBench
from training.engine.tracking import tracker as tracking
from training.engine.tracking.mlflow_delivery import deliver_all, deliver_if_reachable, open_run
from training.engine.tracking.mlflow_journal import RunJournal
from training.engine.tracking.tracker import Parent, Tracker, finish_parent
from training.errors import UnavailableError
from training.store.metric_journal import JournalWriter, MetricJournal


class Server:
    """What a tracking server was sent, by the calls of its client; `away` makes each call fail."""

    def __init__(self) -> None:
        self.away = False
        self.runs: dict[str, dict[str, Any]] = {}
        self.numbers = itertools.count(1)
        self.kinds: dict[str, tuple[str, str]] = {}

    def set_experiment(self, name: str) -> SimpleNamespace:
        self._answer()
        return SimpleNamespace(experiment_id=f"experiment of {name}", tags={})

    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        self._answer()
        self.kinds[experiment_id] = (key, value)

    def create_run(self, experiment_id: str, start_time: int, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        self._answer()
        assert start_time > 1.7e12
        run_id = f"run-{next(self.numbers)}"
        self.runs[run_id] = {"experiment": experiment_id, "name": run_name, "tags": dict(tags), "points": [], "params": {}, "batches": []}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def search_runs(self, experiment_ids: list[str], filter_string: str) -> list[SimpleNamespace]:
        self._answer()
        _tag, name, _equal, value = filter_string.replace("`", "'").split("'")[:4]
        found = [run_id for run_id, run in self.runs.items() if run["experiment"] in experiment_ids and run["tags"].get(name) == value]
        return [SimpleNamespace(info=SimpleNamespace(run_id=run_id)) for run_id in found]

    def delete_run(self, run_id: str) -> None:
        self._answer()
        del self.runs[run_id]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self._answer()
        points = [(metric.key, metric.value, metric.step, metric.timestamp) for metric in metrics]
        # MLflow's server keeps one of two equal points.
        self.runs[run_id]["points"] += [point for point in points if point not in self.runs[run_id]["points"]]
        self.runs[run_id]["params"] |= {param.key: param.value for param in params}
        self.runs[run_id]["batches"].append(len(metrics))

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self._answer()
        assert end_time > 1.7e12
        self.runs[run_id]["status"] = status

    def _answer(self) -> None:
        if self.away:
            raise ConnectionError("connection refused\nat 127.0.0.1")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    entities = SimpleNamespace(
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    module: Any = SimpleNamespace(MlflowClient=lambda: made, set_experiment=made.set_experiment, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(tracking, "SEND_SECONDS", 0.001)
    monkeypatch.setattr(tracking, "WRITE_SECONDS", 0.001)
    # Only what a test asks for by name is tried again while the server is away.
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 1e9)
    return made


def tracker_of(bench: LoopBench, *, rank: int = 0, parent: Parent | None = None, **parameters: Any) -> Tracker:
    return Tracker(bench.context(rank=rank), tags={"mine": "yes"}, parameters={"epochs": 3, **parameters}, parent=parent)


def names_and_steps(points: list[tuple[str, float, int, int]]) -> list[tuple[str, float, int]]:
    return [(name, value, step) for name, value, step, _at in points]


def journal_of(bench: LoopBench) -> RunJournal:
    return RunJournal(bench.store.bucket, f"stages/p/train/{WORK_ID}")


def lacking(bench: LoopBench) -> list[tuple[str, float | str, int]]:
    """Return the points that MLflow may lack, by the store."""
    journal = journal_of(bench)
    batches = [batch for name in journal.backlogs() for batch in journal.batches(name, journal.backlog(name).after)]
    return [(point.name, point.value, point.step) for batch in batches for point in batch]


def test_metrics_parameters_tags_and_status_reach_the_run(bench: LoopBench, server: Server) -> None:
    tracker = tracker_of(bench, long="x" * 501)
    tracker.log(1, loss=0.5, norm=1.5)
    tracker.log(2, loss=0.25)
    assert tracker.close()
    tracker.finish("FINISHED")
    ((run_id, run),) = server.runs.items()
    assert tracker.run_id == run_id
    assert names_and_steps(run["points"]) == [("loss", 0.5, 1), ("norm", 1.5, 1), ("loss", 0.25, 2)]
    assert all(at > 1.7e12 for *_, at in run["points"]), "milliseconds since the epoch"
    assert run["params"] == {"epochs": "3", "long": "x" * 500}
    assert run["name"] == "2026-01-01 01:00 CET", "the instant in the pipeline's time zone"
    assert (run["tags"]["nightshift.run_id"], run["tags"]["mlflow.user"]) == ("r", "search-relevance")
    assert server.kinds == {"experiment of p": ("mlflow.experimentKind", "custom_model_development")}
    assert run["experiment"] == "experiment of p"
    assert run["status"] == "FINISHED"
    tags = run["tags"]
    assert (tags["mine"], tags["nightshift.pipeline"], tags["nightshift.fingerprint"]) == ("yes", "p", WORK_ID)
    assert tags["nightshift.as_of"] == "2026-01-01T00:00:00+00:00"
    assert tags["nightshift.git_dirty"] in ("true", "false")
    assert bench.store.bucket.list("tracking") == []


def test_short_timeouts_of_mlflows_client_end_with_the_tracking(bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)

    def retries() -> str | None:
        return os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES")

    tracker = tracker_of(bench)
    tracker.log(1, loss=0.5)
    assert retries() == "1"
    assert tracker.close()
    tracker.finish("FINISHED")
    assert (retries(), os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]) == (None, "77")


def test_samples_of_the_machine_are_logged_at_the_newest_step(bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.engine.tracking.machine_metrics.SAMPLE_SECONDS", 0.0)
    tracker = tracker_of(bench)
    tracker.log(7, loss=1.0)
    deadline = time.monotonic() + 60
    while not any(name == "memory_bytes" for run in server.runs.values() for name, *_ in run["points"]):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    assert tracker.close()
    ((_, run),) = server.runs.items()
    samples = {name: step for name, _, step, _ in run["points"] if name != "loss"}
    assert samples == {"cpu_cores_used": 7, "memory_bytes": 7}


def test_many_points_go_in_batches_of_a_thousand(bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "SEND_SECONDS", 1e6)
    tracker = tracker_of(bench)
    for step in range(2500):
        tracker.log(step, loss=1.0)
    assert tracker.close()
    (run,) = server.runs.values()
    assert run["batches"] == [0, 1000, 1000, 500], "the first has the parameters"
    assert [step for _name, _value, step in names_and_steps(run["points"])] == list(range(2500))


def test_points_that_cannot_be_sent_go_to_the_store_and_the_next_attempt_sends_them_once_to_the_same_run(
    bench: LoopBench, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    first = tracker_of(bench)
    first.log(1, loss=4.0)
    assert first.close()
    server.away = True
    second = tracker_of(bench)
    second.log(2, loss=3.0)
    second.log(3, loss=2.0)
    assert not second.close()
    second.finish("FAILED")
    assert lacking(bench) == [("loss", 4.0, 1), ("loss", 3.0, 2), ("loss", 2.0, 3)], "the first attempt was killed: what it sent is unknown"
    assert "tracking delayed: metrics wait in the store for MLflow (connection refused)" in caplog.text
    assert caplog.text.count("metrics wait for MLflow: connection refused") == 1
    server.away = False
    third = tracker_of(bench)
    third.log(4, loss=1.0)
    assert third.close()
    ((run_id, run),) = server.runs.items()
    assert third.run_id == run_id == first.run_id
    assert sorted(names_and_steps(run["points"]), key=lambda point: point[2]) == [("loss", float(5 - step), step) for step in range(1, 5)]
    assert journal_of(bench).backlogs() == ["000003-r"]
    assert "status" not in run, "the end of the attempt before says nothing about the one that runs"
    third.finish("FINISHED")
    assert run["status"] == "FINISHED"
    assert journal_of(bench).backlogs() == []


def test_an_attempt_keeps_what_the_one_before_could_not_send(bench: LoopBench, server: Server) -> None:
    server.away = True
    for step in (1, 2):
        tracker = tracker_of(bench)
        tracker.log(step, loss=float(step))
        assert not tracker.close()
    assert lacking(bench) == [("loss", 1.0, 1), ("loss", 2.0, 2)]


def test_points_are_in_the_store_while_the_training_runs_and_mlflow_is_away(bench: LoopBench, server: Server) -> None:
    server.away = True
    tracker = tracker_of(bench)
    tracker.log(1, loss=1.0)
    while not lacking(bench):
        threading.Event().wait(0.01)
    assert lacking(bench) == [("loss", 1.0, 1)], "a process that is killed now loses nothing"
    assert not tracker.close()


def test_points_are_kept_after_housekeeping_took_a_training_that_had_slept_for_killed(bench: LoopBench, server: Server) -> None:
    tracker, journal = tracker_of(bench), journal_of(bench)
    tracker.log(1, loss=1.0)
    while journal.run_id() is None:
        threading.Event().wait(0.01)
    deliver_if_reachable(journal)
    assert journal.backlogs() == []
    server.away = True
    tracker._noted_at -= 3600
    tracker.log(2, loss=2.0)
    while not lacking(bench):
        threading.Event().wait(0.01)
    assert ("loss", 2.0, 2) in lacking(bench), "a process that is killed now loses nothing"
    assert not tracker.close()


def test_status_stays_where_a_slow_store_delays_the_last_points_until_a_note_is_due(
    bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, waits, answers = JournalWriter.append, threading.Event(), threading.Event()

    def slow(writer: JournalWriter, points: Any) -> int:
        waits.set()
        assert answers.wait(20)
        return append(writer, points)

    monkeypatch.setattr(JournalWriter, "append", slow)
    monkeypatch.setattr(tracking, "WRITE_LIMIT_SECONDS", 0.0)
    tracker = tracker_of(bench)
    tracker.log(1, loss=1.0)
    assert waits.wait(20)
    assert not tracker.close()
    tracker._noted_at -= 3600
    tracker.finish("FINISHED")
    answers.set()
    tracker._writing.close(20)
    deliver_if_reachable(journal_of(bench))
    (run,) = server.runs.values()
    assert (run["status"], names_and_steps(run["points"])[0]) == ("FINISHED", ("loss", 1.0, 1))


def test_server_that_comes_back_gets_what_was_kept_without_another_attempt(
    bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.away = True
    tracker = tracker_of(bench)
    tracker.log(1, loss=1.0)
    while not tracker._sending.failure:
        threading.Event().wait(0.01)
    server.away = False
    assert tracker.close(), "the last try does not wait for the pause to end"
    (run,) = server.runs.values()
    assert names_and_steps(run["points"]) == [("loss", 1.0, 1)]


def test_points_above_the_limit_are_dropped_and_counted(
    bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "MAX_PENDING", 3)
    monkeypatch.setattr(tracking, "WRITE_SECONDS", 1e6)
    tracker = tracker_of(bench)
    for step in range(6):
        tracker.log(step, loss=1.0, norm=2.0)
    assert not tracker.close()
    assert [step for _name, _value, step in lacking(bench)] == [0, 0, 1, 1]
    assert "8 points of metrics were dropped" in caplog.text


def test_ranks_other_than_the_first_track_nothing(bench: LoopBench, server: Server) -> None:
    tracker = tracker_of(bench, rank=1)
    tracker.log(1, loss=1.0)
    assert tracker.close()
    tracker.finish("FINISHED")
    assert server.runs == {}
    assert not tracker._sending._thread.is_alive()


def test_process_that_ends_without_closing_its_tracker_is_not_held_by_it(bench: LoopBench, server: Server) -> None:
    tracker = tracker_of(bench)
    assert [thread.daemon for thread in threading.enumerate() if thread.name in ("metrics", "tracking")] == [True, True]
    tracker.close()


def test_store_that_takes_no_journal_ends_no_training(
    bench: LoopBench, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_journal: MetricJournal) -> None:
        raise UnavailableError("storage.unavailable", "the storage is away")

    monkeypatch.setattr(MetricJournal, "places", away)
    tracker = tracker_of(bench)
    tracker.log(1, loss=1.0)
    assert not tracker.close()
    tracker.finish("FINISHED")
    assert caplog.text.count("metrics wait for the store: [storage.unavailable] the storage is away") == 1
    assert "1 points of metrics were dropped: [storage.unavailable] the storage is away" in caplog.text


def test_attempt_that_was_taken_for_dead_adds_no_point_and_no_status(bench: LoopBench, server: Server) -> None:
    tracker = tracker_of(bench)
    tracker.log(1, loss=1.0)
    while not server.runs:
        threading.Event().wait(0.01)
    JournalWriter(live_journal(bench), "a2").append([("loss", 2.0, 1, 1)])
    tracker.log(2, loss=3.0)
    tracker.close()
    tracker.finish("FAILED")
    (run,) = server.runs.values()
    assert names_and_steps(run["points"]) == [("loss", 1.0, 1)]
    assert "status" not in run


def test_run_that_cannot_be_closed_is_closed_later(bench: LoopBench, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    tracker = tracker_of(bench)
    assert tracker.close()
    server.away = True
    tracker.finish("FINISHED")
    assert "the status of the MLflow run run-1 is not set now: connection refused" in caplog.text
    server.away = False
    assert deliver_if_reachable(journal_of(bench)) == tracker.run_id
    (run,) = server.runs.values()
    assert run["status"] == "FINISHED"
    assert journal_of(bench).backlogs() == []


PARENT = Parent(key="studies/s", name="study", child_name="trial 3", tags={"of": "study"})


def test_trial_is_nested_in_the_run_of_its_study_which_is_made_once(bench: LoopBench, server: Server) -> None:
    tracker = tracker_of(bench, parent=PARENT)
    assert tracker.close()
    (study, trial) = server.runs.values()
    assert study["name"] == "study"
    assert study["tags"]["of"] == "study"
    assert trial["name"] == "trial 3"
    assert trial["tags"]["mlflow.parentRunId"] == "run-1"
    assert open_run(server, RunJournal(bench.store.bucket, "studies/s")) == "run-1"
    assert len(server.runs) == 2


def test_finished_study_has_its_metrics_and_parameters_also_when_mlflow_was_away(
    bench: LoopBench, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    finish_parent(bench.store.bucket, PARENT.key, {"lr": "1"}, {"best": 0.5})
    assert server.runs == {}, "there is no study"
    tracker = tracker_of(bench, parent=PARENT)
    assert tracker.close()
    tracker.finish("FINISHED")
    server.away = True
    finish_parent(bench.store.bucket, PARENT.key, {"lr": "x" * 501}, {"best": 0.5})
    assert "metrics of studies/s still wait for MLflow: connection refused" in caplog.text
    server.away = False
    deliver_all(bench.store.bucket)
    study = server.runs["run-1"]
    assert names_and_steps(study["points"]) == [("best", 0.5, 0)]
    assert (study["params"], study["status"]) == ({"lr": "x" * 500}, "FINISHED")
    assert bench.store.bucket.list("tracking") == []


def live_journal(bench: LoopBench) -> MetricJournal:
    request = bench.context().request
    return MetricJournal(bench.store.bucket, request.pipeline, request.run.run_id)


@pytest.mark.parametrize("is_away", [False, True])
def test_points_are_in_the_journal_of_the_run_whether_mlflow_answers_or_not(bench: LoopBench, server: Server, is_away: bool) -> None:
    server.away = is_away
    tracker = tracker_of(bench)
    for step in range(3):
        tracker.log(step, loss=1.0 / (step + 1), norm=2.0)
    tracker.close()
    found = [(point.attempt, point.name, point.value, point.step) for point in live_journal(bench).after(0)]
    assert found == [(1, name, value, step) for step in range(3) for name, value in (("loss", 1.0 / (step + 1)), ("norm", 2.0))]
