"""`nightshift schedule`, `--unpause` and `--wait`; Airflow's own route for a pause is played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.models import DagModel, DagRun  # noqa: TID251 - what the server reads
from airflow.utils.session import create_session
from fastapi import Request
from sqlalchemy import update

from nightshift.queries import runs
from tests.commands import command
from tests.unit.plugins.client.test_client import Server

schedule, status = command("schedule"), command("status")
start, listed = command("runs", "start"), command("runs", "list")
PIPELINE = "search_ranking"


def pause(*, is_paused: bool) -> None:
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == PIPELINE).values(is_paused=is_paused))


def number_of_runs() -> int:
    with create_session() as session:
        return session.query(DagRun).where(DagRun.dag_id == PIPELINE).count()


@pytest.fixture
def airflow(server: Server) -> Iterator[Server]:
    @server.mounted.patch("/api/v2/dags/{dag_id}")
    async def change(dag_id: str, request: Request) -> dict[str, Any]:
        pause(**await request.json())
        return {}

    yield server
    pause(is_paused=True)


@pytest.mark.usefixtures("airflow")
def test_a_schedule_is_switched_on_and_off_by_the_name_of_its_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule(["on", PIPELINE]) == 0
    assert not runs.pipeline(PIPELINE).is_paused
    assert "search_ranking is on: schedule 0 2 * * *, next run " in capsys.readouterr().out
    assert schedule(["off", PIPELINE]) == 0
    assert runs.pipeline(PIPELINE).is_paused
    assert "search_ranking is off: its runs wait until `nightshift schedule on search_ranking`" in capsys.readouterr().out
    assert schedule(["on", "nothing"]) == 77
    assert "[pipeline.unknown]" in capsys.readouterr().err


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize(
    "command_line",
    [
        ["runs", "start", PIPELINE],
        ["restore", f"{PIPELINE}:night", "best"],
        ["register", PIPELINE, "s3://m/1.ubj", "--format", "xgboost_json"],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_start_that_would_wait_for_a_paused_pipeline_queues_nothing(command_line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = number_of_runs()
    assert command(*command_line)(["--wait"]) == 77
    words = (
        "search_ranking is paused in Airflow: its runs would wait, so none was queued (--unpause, or nightshift schedule on search_ranking)"
    )
    assert f"[pipeline.paused] {words}" in capsys.readouterr().err
    assert number_of_runs() == before


@pytest.mark.usefixtures("airflow")
def test_a_key_whose_run_has_ended_shows_it_although_the_pipeline_is_paused(capsys: pytest.CaptureFixture[str]) -> None:
    assert start([PIPELINE, "--key", "ended"]) == 0
    with create_session() as session:
        (run_id,) = {line.split()[0].partition(":")[2] for line in capsys.readouterr().out.splitlines() if line.startswith(f"{PIPELINE}:")}
        session.execute(update(DagRun).where(DagRun.dag_id == PIPELINE, DagRun.run_id == run_id).values(state="success"))
    assert start([PIPELINE, "--key", "ended", "--wait"]) == 0
    assert "state:   success" in capsys.readouterr().out


@pytest.mark.usefixtures("airflow")
def test_a_start_that_waits_ends_where_the_pipeline_is_paused_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pause(is_paused=False)
    begin = runs.start_run

    def begins(*given: Any, **options: Any) -> Any:
        found = begin(*given, **options)
        pause(is_paused=True)
        return found

    monkeypatch.setattr(runs, "start_run", begins)
    assert start([PIPELINE, "--wait"]) == 77
    output = capsys.readouterr()
    run_id = next(line for line in output.out.splitlines() if line.startswith(f"{PIPELINE}:"))
    assert f"[pipeline.paused] search_ranking is paused in Airflow: {run_id} waits (nightshift schedule on search_ranking)" in output.err


@pytest.mark.usefixtures("airflow")
def test_a_run_of_a_paused_pipeline_says_what_it_waits_for_until_it_is_switched_on(capsys: pytest.CaptureFixture[str]) -> None:
    start([PIPELINE, "--key", "waits"])
    run_id = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith(f"{PIPELINE}:"))
    words = "waits for search_ranking, which is paused: nightshift schedule on search_ranking"

    def shown() -> list[bool]:
        found = []
        for command_line, begin in ((["--limit", "1"], run_id), ([run_id], "state: "), ([], f"{PIPELINE} ")):
            (listed if "--limit" in command_line else status)(command_line)
            lines = capsys.readouterr().out.splitlines()
            found.append(any(line.startswith(begin) and words in line for line in lines))
        return found

    assert shown() == [True, True, True]
    schedule(["on", PIPELINE])
    assert shown() == [False, False, False]


@pytest.mark.usefixtures("airflow")
def test_a_start_that_unpauses_waits_for_the_end_of_its_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    look = runs.run

    def ends(name: str, run_id: str) -> Any:
        if not runs.pipeline(name).is_paused:
            with create_session() as session:
                session.execute(update(DagRun).where(DagRun.dag_id == name, DagRun.run_id == run_id).values(state="success"))
        return look(name, run_id)

    monkeypatch.setattr(runs, "run", ends)
    assert start([PIPELINE, "--unpause", "--wait"]) == 0
    assert "state:   success" in capsys.readouterr().out
