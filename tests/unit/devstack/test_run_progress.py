from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devstack.run_progress import TAIL_BYTES, Follower, TaskView, failure_text, log_events, log_path
from nightshift.settings import Settings

NOW = datetime(2026, 2, 1, 2, 0, 30, tzinfo=UTC)
RUN = "night-2026-02-01"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})


def write_log(settings: Settings, view: TaskView, *events: dict[str, Any]) -> Path:
    path = log_path(settings, "search_ranking", RUN, view)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def test_running_task_has_its_seconds_so_far_and_an_ended_one_its_own() -> None:
    running = {
        "task_id": "train",
        "state": "running",
        "try_number": 1,
        "start_date": "2026-02-01T02:00:00Z",
        "duration": 99.0,
        "pool": "cpu",
    }
    ended = {**running, "state": "success", "duration": 12.5}
    waiting = {"task_id": "promote", "state": None, "try_number": 0, "start_date": None, "duration": None, "pool": "cpu"}

    assert TaskView.of(running, NOW) == TaskView("train", "running", 1, 30.0, "cpu")
    assert TaskView.of(ended, NOW).seconds == 12.5
    assert TaskView.of(waiting, NOW) == TaskView("promote", "none", 0, 0.0, "cpu")


def test_failure_text_is_what_the_exception_said(settings: Settings) -> None:
    view = TaskView("validate", "failed", 2, 3.0, "cpu")
    error = {
        "level": "error",
        "event": "Task failed with exception",
        "error_detail": [{"exc_type": "X", "exc_value": "[schema.missing] price"}],
    }
    write_log(settings, view, {"level": "info", "event": "start"}, error, {"level": "info", "event": "end"})

    assert failure_text(settings, "search_ranking", RUN, view) == "[schema.missing] price"


def test_failure_text_without_an_exception_is_the_last_error(settings: Settings) -> None:
    view = TaskView("validate", "failed", 1, 3.0, "cpu")
    write_log(settings, view, {"level": "error", "event": "first"}, {"level": "critical", "event": "last"})

    assert failure_text(settings, "search_ranking", RUN, view) == "last"


def test_failure_before_the_first_line_of_log_gives_the_state_and_where_to_look(settings: Settings) -> None:
    text = failure_text(settings, "search_ranking", RUN, TaskView("validate", "failed", 1, 0.0, "cpu"))
    assert text == f"it ended before its first line of log (state failed); see {settings.home}/logs/scheduler.log"


def test_failure_without_an_error_in_its_log_gives_the_state_and_the_log(settings: Settings) -> None:
    view = TaskView("validate", "failed", 1, 0.0, "cpu")
    path = write_log(settings, view, {"level": "info", "event": "start"})
    text = failure_text(settings, "search_ranking", RUN, view)
    assert text == f"its log ends without an error, as after a kill (state failed): {path}"


def test_long_log_is_read_from_its_end_and_a_half_written_line_is_left_out(settings: Settings) -> None:
    view = TaskView("train", "running", 1, 3.0, "cpu")
    events = [{"event": f"step {number}", "level": "info"} for number in range(2000)]
    path = write_log(settings, view, *events)
    assert path.stat().st_size > 2 * TAIL_BYTES
    with path.open("a") as file:
        file.write('{"event": "half')

    read = log_events(path)

    assert read[-1] == events[-1]
    assert len(read) < len(events)


class OneRun:
    """Airflow's REST API as far as a follower sees it, one answer after the other."""

    def __init__(self, *moments: tuple[str, list[dict[str, Any]]]) -> None:
        self._moments = list(moments)

    def keep_up(self) -> None:
        pass

    def get(self, path: str, **_query: object) -> Any:
        if path.endswith("/taskInstances"):
            tasks = self._moments[0][1]
            if len(self._moments) > 1:
                self._moments.pop(0)
            return {"task_instances": tasks}
        return {"state": self._moments[0][0]}


def task(task_id: str, state: str, try_number: int = 1) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "state": state,
        "try_number": try_number,
        "start_date": "2026-02-01T02:00:00Z",
        "duration": 1.5,
        "pool": "cpu",
    }


def test_each_stage_is_printed_once_in_the_order_of_the_chain(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devstack.run_progress.POLL_SECONDS", 0)
    early = [task("ingest", "running"), task("resolve", "success")]
    late = [task("train", "success"), task("ingest", "success"), task("resolve", "success")]
    said: list[str] = []

    state = Follower(
        settings, OneRun(("running", early), ("running", early), ("success", late)), "search_ranking", RUN, said.append
    ).follow()

    assert state == "success"
    assert [line.split()[:2] for line in said] == [["resolve", "done"], ["ingest", "done"], ["train", "done"]]


def test_failed_try_is_reported_with_its_reason(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devstack.run_progress.POLL_SECONDS", 0)
    write_log(settings, TaskView("train", "up_for_retry", 1, 0.0, "cpu"), {"level": "error", "event": "the store does not answer"})
    moments = ("running", [task("train", "up_for_retry", 1)]), ("success", [task("train", "success", 2)])
    said: list[str] = []

    Follower(settings, OneRun(*moments), "search_ranking", RUN, said.append).follow()

    assert "try 1 failed, is retried" in said[0]
    assert said[1].strip() == "the store does not answer"
    assert said[2].split()[:2] == ["train", "done"]


WAITS = [
    ("queued", [], "waiting for Airflow to begin the run, after earlier ones of this pipeline"),
    ("running", [], "waiting for Airflow to end the run"),
    ("running", [task("ingest", "success"), task("train", "queued", 0)], "train waits for a worker"),
    ("running", [task("ingest", "success"), task("validate", "scheduled", 0)], "validate waits for a slot of the pool cpu"),
    ("running", [task("wait", "up_for_reschedule")], "wait waits"),
    ("running", [task("train", "up_for_retry")], "train is retried soon"),
    ("running", [task("ingest", "success")], "waiting for Airflow to end the run"),
]


@pytest.mark.parametrize(("run_state", "tasks", "words"), WAITS)
def test_run_in_which_no_task_works_says_what_it_waits_for_and_for_how_long(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, run_state: str, tasks: list[dict[str, Any]], words: str
) -> None:
    monkeypatch.setattr("devstack.run_progress.POLL_SECONDS", 0)
    monkeypatch.setattr("devstack.run_progress.PLAIN_PROGRESS_SECONDS", 0)
    said: list[str] = []

    Follower(settings, OneRun((run_state, tasks), ("success", [])), "search_ranking", RUN, said.append).follow()

    spoken = [" ".join(line.split()) for line in said]
    assert f"{words} 0 s" in spoken, spoken


def test_running_task_is_shown_with_its_seconds_also_before_it_has_a_log(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devstack.run_progress.POLL_SECONDS", 0)
    monkeypatch.setattr("devstack.run_progress.PLAIN_PROGRESS_SECONDS", 0)
    said: list[str] = []
    moments = ("running", [task("evaluate", "running")]), ("success", [])

    Follower(settings, OneRun(*moments), "search_ranking", RUN, said.append).follow()

    assert said[0].split()[:2] == ["evaluate", "running"]
    assert said[0].endswith(" s")
