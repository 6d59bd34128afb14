"""`nightshift status`, `logs`, `open` and `restore` against a server that really listens."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.models import DagRun, Pool, TaskInstance  # noqa: TID251 - what the server reads
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - as above
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy import delete, update

from nightshift.client import logs_command
from nightshift.client.client import Client
from nightshift.queries.schemas import Run
from tests.commands import command
from tests.unit.plugins.client.test_client import Server
from tests.unit.plugins.seeded_installation import DONE
from tests.unit.training.registry.scenes import decide_on
from training.engine.checkpoint.catalog import named
from training.installation import home_folder
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.reasons import Reason
from training.store import Store
from training.store.work_folder import StoreUri

status, logs, opens, runs = (command(name) for name in ("status", "logs", "open", "runs"))
RUN = f"search_ranking:{DONE}"
FAILED = "search_ranking:manual__2026-02-02T02:00:00+00:00"
LOG = "/api/v2/dags/search_ranking/dagRuns/{run_id}/taskInstances/{stage}/logs/{number}"


@pytest.mark.usefixtures("server")
def test_status_is_a_line_for_each_pipeline_and_fails_where_a_last_run_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert status([]) == 1
    head, flights, ranking = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["pipeline", "next", "run", "champion", "shows", "gains", "above", "waits", "last", "run", "state", "note"]
    assert (flights[0], flights[1], ranking[0], *ranking[2:5]) == ("flight_delay", "paused", "search_ranking", "1.1.0", "–", "1.3.0")
    assert ranking[-1] == "failed"


@pytest.mark.usefixtures("server")
def test_status_says_that_mlflow_lags_behind_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    decide_on(Ledger(), 9, "rejected", model="search_ranking", evidence={"pipeline": "search_ranking"})
    status([])
    assert capsys.readouterr().out.splitlines()[2].endswith("decisions about search_ranking that MLflow does not show: 1")


@pytest.mark.usefixtures("server")
def test_status_has_the_gain_that_the_newest_interval_shows(capsys: pytest.CaptureFixture[str]) -> None:
    interval = Reason(gate="significance", passed=False, words="lower end > 0 required", numbers={"low": -0.01, "high": 0.03})
    decide_on(Ledger(), 9, "rejected", model="search_ranking", evidence={"pipeline": "search_ranking"}, reasons=[interval])
    status([])
    assert capsys.readouterr().out.splitlines()[2].split()[3] == "0.02"


@pytest.mark.usefixtures("server")
def test_status_names_the_models_of_a_pipeline_that_has_decided_about_two(capsys: pytest.CaptureFixture[str]) -> None:
    decide_on(Ledger(), 9, model="ranking_of_searches", evidence={"pipeline": "search_ranking"})
    status([])
    row = capsys.readouterr().out.splitlines()[2]
    assert "ranking_of_searches 1.9.0, search_ranking 1.1.0  –                  search_ranking 1.3.0" in row


@pytest.mark.usefixtures("server")
def test_status_for_programs_has_the_records_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    status(["--json"])
    flights, ranking = json.loads(capsys.readouterr().out)
    assert flights["pipeline"]["name"] == "flight_delay"
    assert (ranking["last_run"]["state"], ranking["models"][0]["champion"]["version"]) == ("failed", "1")


@pytest.mark.usefixtures("server")
def test_status_asks_for_all_pipelines_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    send = Client._send

    def noted(self: Client, method: str, path: str, **options: Any) -> Any:
        asked.append(path)
        return send(self, method, path, **options)

    monkeypatch.setattr(Client, "_send", noted)
    status([])
    assert asked == ["/models", "/pipelines", "/failed-helpers"]


@pytest.fixture
def failing_rollback(server: Server) -> Server:
    """The DAG `rollback` has succeeded once, then failed twice; a fourth run waits. That of a study has failed, and then succeeded."""
    ran_at = datetime(2026, 2, 1, 2, tzinfo=UTC)
    with create_session() as session:
        for dag_id, states in (("rollback", ("success", "failed", "failed", "queued")), ("search_ranking.tune", ("failed", "success"))):
            dag = SerializedDagModel.get_dag(dag_id, session=session)
            assert dag is not None
            for number, state in enumerate(states):
                run = dag.create_dagrun(
                    run_id=f"r{number}",
                    run_after=ran_at,
                    logical_date=None,
                    data_interval=None,
                    run_type=DagRunType.MANUAL,
                    triggered_by=DagRunTriggeredByType.REST_API,
                    conf={"order": "0" * 32} if dag_id == "rollback" else {},
                    state=DagRunState(state),
                    session=session,
                )
                session.flush()
                run.end_date = ran_at + timedelta(hours=number)
                run.note = f"failed in rollback: [rollback.order] try {number}" if state == "failed" else None
                for task in run.get_task_instances(session=session):
                    task.state, task.try_number, task.start_date = state, 1, ran_at
    return server


@pytest.mark.usefixtures("failing_rollback")
def test_status_has_a_line_for_a_helper_dag_whose_last_ended_run_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id.in_(["search_ranking", "flight_delay"])))
    assert status([]) == 1
    _head, *pipelines, line = capsys.readouterr().out.splitlines()
    assert (len(pipelines), line.split()[0]) == (2, "rollback")
    assert line.endswith("failed  since 2026-02-01T03:00:00+00:00; failed in rollback: [rollback.order] try 2")
    status(["--json"])
    assert json.loads(capsys.readouterr().out)[-1]["last_run"]["id"] == "rollback:r2"


def test_logs_of_a_name_are_those_of_its_newest_run_that_has_started_also_of_a_helper_dag(
    failing_rollback: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, list[str]]] = []

    @failing_rollback.mounted.get("/api/v2/dags/rollback/dagRuns")
    def runs_of(request: Request) -> JSONResponse:
        asked.append({name: request.query_params.getlist(name) for name in request.query_params})
        return JSONResponse({"dag_runs": [{"dag_run_id": "r2"}]})

    @failing_rollback.mounted.get("/api/v2/dags/rollback/dagRuns/r2/taskInstances/rollback/logs/1")
    def log() -> JSONResponse:
        return JSONResponse({"content": [ERROR], "continuation_token": None})

    assert logs(["rollback"]) == 0
    assert asked == [{"state": ["running", "success", "failed"], "order_by": ["-id"], "limit": ["1"]}]
    assert "DataError: 3 rows" in capsys.readouterr().out


@pytest.mark.usefixtures("server")
def test_status_of_a_run_is_the_run_with_its_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert status([RUN]) == 0
    printed = capsys.readouterr().out
    runs(["show", RUN])
    assert capsys.readouterr().out == printed
    assert status([FAILED]) == 1


@pytest.mark.parametrize(
    ("slots", "state", "words"),
    [
        (1, "scheduled", "waits for one of 1 slots of the pool nights; tasks that go before it: 1"),
        (9, "scheduled", "waits for the scheduler, which starts it next"),
        (1, "queued", "waits for a process that runs it"),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_waiting_task_says_for_what(capsys: pytest.CaptureFixture[str], slots: int, state: str, words: str) -> None:
    with create_session() as session:
        session.execute(delete(Pool).where(Pool.pool == "nights"))
        session.add(Pool(pool="nights", slots=slots, description="", include_deferred=False))
        of_the_run = update(TaskInstance).where(TaskInstance.dag_id == "search_ranking", TaskInstance.run_id == DONE)
        for task_id, now in (("ingest", state), ("evaluate", "running"), ("promote", "scheduled")):
            session.execute(of_the_run.where(TaskInstance.task_id == task_id).values(state=now, pool="nights"))
    status([RUN])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("ingest"))
    assert words in line


def airflow_log(server: Server, chunks: list[tuple[list[Any], str | None]]) -> list[dict[str, str]]:
    """Answer as Airflow does: a part of the log, and the token of the next one. Return the queries that came."""
    queries: list[dict[str, str]] = []
    with create_session() as session:
        change = update(TaskInstance).where(TaskInstance.run_id == DONE, TaskInstance.task_id == "train")
        session.execute(change.values(try_number=2, start_date=datetime(2026, 2, 1, 2, tzinfo=UTC)))

    @server.mounted.get(LOG)
    def log(run_id: str, stage: str, number: int, request: Request) -> JSONResponse:
        queries.append({"stage": stage, "number": str(number), **request.query_params})
        content, token = chunks.pop(0)
        return JSONResponse({"content": content, "continuation_token": token})

    return queries


STAGE = {"event": "02:00:02 WARNING training.watcher: slow", "timestamp": "2026-02-01T02:00:02Z", "level": "info"}
EPOCH = {"event": "epoch 1\nloss 0.5", "timestamp": "2026-02-01T02:00:01Z", "level": "info"}
ERROR = {"event": "task failed", "level": "error", "error_detail": [{"exc_type": "DataError", "exc_value": "3 rows\x1b[2J"}]}


def test_log_is_printed_to_its_end_without_what_controls_the_terminal(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    queries = airflow_log(
        server,
        [([{"event": "::group::sources"}, EPOCH, STAGE, "Could not read served logs: refused"], "next part"), ([ERROR, "plain"], None)],
    )
    assert logs([RUN, "train"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "2026-02-01T02:00:01Z info epoch 1",
        "loss 0.5",
        "2026-02-01T02:00:02Z warning training.watcher: slow",
        "error task failed",
        "  DataError: 3 rows\\u001b[2J",
        "plain",
    ]
    assert output.err.splitlines()[-1] == "train, try 2"
    assert [query.get("token") for query in queries] == [None, "next part"]


def test_log_that_is_followed_waits_for_its_next_part_and_ends_with_the_run(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs_command, "POLL_SECONDS", 0.01)
    airflow_log(server, [([], "1"), ([EPOCH], "2"), ([], "3"), ([ERROR], None)])
    # Without a stage: all that have started, until the run has ended.
    assert logs([RUN, "--follow"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "epoch" in line or "failed" in line] == ["1", "failed"]


def test_log_of_an_earlier_try_is_asked_for_by_its_number(server: Server) -> None:
    queries = airflow_log(server, [([], None)])
    assert logs([RUN, "train", "--try", "1"]) == 0
    assert queries == [{"stage": "train", "number": "1"}]


def test_log_for_programs_is_a_record_a_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    airflow_log(server, [([EPOCH], None)])
    assert logs([RUN, "train", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")] == [EPOCH]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("arguments", [[RUN, "nothing"], [RUN, "train", "--try", "7"], [FAILED]])
def test_log_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert logs(arguments) == 77
    assert "[logs.none]" in capsys.readouterr().err


def test_a_page_is_opened_or_its_address_printed(
    monkeypatch: pytest.MonkeyPatch, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    assert opens([RUN]) == 0
    assert capsys.readouterr().out == ""
    assert opened == [f"{server.url}/dags/search_ranking/runs/manual__2026-02-01T02%3A00%3A00%2B00%3A00"]

    monkeypatch.setattr(webbrowser, "open", lambda _address: False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.com/")
    assert opens(["search_ranking"]) == 0
    assert capsys.readouterr().out == "https://mlflow.example.com/#/models/search_ranking\n"
    assert opens(["search_ranking", "--pipeline"]) == 0
    assert capsys.readouterr().out == f"{server.url}/dags/search_ranking\n"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert opens(["search_ranking", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"url": f"{server.url}/dags/search_ranking"}
    assert opens(["nothing"]) == 77


@pytest.mark.usefixtures("server")
def test_restore_starts_a_run_whose_training_begins_at_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("restore")([RUN, "3", "--set", "train.learning_rate=0.5", "--json"]) == 0
    output = capsys.readouterr().out
    run = json.loads(output[output.index("{\n") :])
    wanted = StoreUri(named(Store(str(home_folder() / "store")), "search_ranking", DONE, "epoch_3").uri).digest
    assert run["parameters"]["train"] == {"from_checkpoint": wanted, "learning_rate": 0.5}


@pytest.mark.usefixtures("server")
def test_a_start_that_waits_shows_each_stage_once_and_then_the_outcome(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_looks(client: Client, id: str, *, each: Callable[[Run], None]) -> Run:
        run = client.run(RUN)
        each(run)
        each(run)
        return run

    monkeypatch.setattr(Client, "wait", two_looks)
    monkeypatch.setattr(Client, "require_on", lambda client, name, **_options: client.pipeline(name))
    assert runs(["start", "search_ranking", "--wait"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("train")] == [["train", "success"]]
    assert lines.index("state:   success") > lines.index(next(line for line in lines if line.startswith("train")))


@pytest.mark.usefixtures("server")
def test_start_without_promotion_is_said_in_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert runs(["start", "search_ranking", "--no-promote", "--json"]) == 0
    output = capsys.readouterr().out
    assert json.loads(output[output.index("{\n") :])["parameters"] == {"promote": False}
