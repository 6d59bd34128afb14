"""`nightshift backfill` against a server that really listens; a scheduler is played where it ends the runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.models import DagModel, DagRun  # noqa: TID251 - what the server reads
from airflow.utils.session import create_session
from fastapi import Request
from sqlalchemy import update

from nightshift.client import backfill_command
from nightshift.queries import runs
from tests.commands import command
from tests.unit.plugins.client.test_client import Server

main = command("backfill")

PIPELINE = "search_ranking"
RANGE = [PIPELINE, "--from", "2026-02-01", "--to", "2026-02-03"]
SLOTS = [f"2026-02-0{day}T02:00:00+00:00" for day in (3, 1, 2)]


class Scheduler:
    """Starts the runs, and ends each one when it is looked at for the third time: by its start, by the command, and while it waits."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.failing: set[str] = set()
        """Instants whose runs fail."""
        self._start, self._run = runs.start_run, runs.run
        self._looks: Counter[str] = Counter()

    def start(self, name: str, run_id: str, conf: dict[str, Any], *, by: str) -> Any:
        self.started.append(conf["as_of"])
        return self._start(name, run_id, conf, by=by)

    def run(self, name: str, run_id: str) -> Any:
        self._looks[run_id] += 1
        if self._looks[run_id] == 3:
            state = "failed" if runs.conf_of(name, run_id)["as_of"] in self.failing else "success"
            with create_session() as session:
                session.execute(update(DagRun).where(DagRun.dag_id == name, DagRun.run_id == run_id).values(state=state))
        return self._run(name, run_id)


def on_day(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    """Set the command's clock to noon of a day in March; it stands still, so that no test runs into the next day."""
    noon = datetime(2026, 3, day, 12, tzinfo=UTC)
    monkeypatch.setattr(backfill_command, "datetime", type("Noon", (datetime,), {"now": classmethod(lambda cls, zone: noon)}))


def pause(*, is_paused: bool) -> None:
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == PIPELINE).values(is_paused=is_paused))


@pytest.fixture
def scheduler(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    made = Scheduler()
    monkeypatch.setattr(runs, "start_run", made.start)
    monkeypatch.setattr(runs, "run", made.run)

    @server.mounted.get("/api/v2/dags/{dag_id}/details")
    def details(dag_id: str) -> dict[str, str]:
        return {"timezone": "Asia/Tokyo"}

    on_day(monkeypatch, 1)
    pause(is_paused=False)
    yield made
    pause(is_paused=True)


@pytest.fixture
def asked(server: Server) -> list[Any]:
    """What was asked of Airflow's dry run, which answers with SLOTS."""
    bodies: list[Any] = []

    @server.mounted.post("/api/v2/backfills/dry_run")
    async def plan(request: Request) -> dict[str, Any]:
        bodies.append(await request.json())
        return {"backfills": [{"logical_date": slot} for slot in SLOTS]}

    return bodies


def test_slots_of_the_days_in_the_pipelines_zone_run_one_after_the_other(
    scheduler: Scheduler, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RANGE, "--set", "train.epochs=2"]) == 0
    assert asked == [{"dag_id": PIPELINE, "from_date": "2026-02-01T00:00:00+09:00", "to_date": "2026-02-03T23:59:59.999999+09:00"}]
    assert scheduler.started == sorted(SLOTS)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.endswith("success")] == ["success"] * 3


def test_the_same_command_starts_failed_runs_again_and_no_finished_one(
    scheduler: Scheduler, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    failing = sorted(SLOTS)[1]
    scheduler.failing = {failing}
    assert main(RANGE) == 1
    assert scheduler.started == sorted(SLOTS)[:2]

    scheduler.failing, scheduler.started = set(), []
    assert main(RANGE) == 0
    assert scheduler.started == sorted(SLOTS)[1:]


def test_the_same_command_on_a_later_day_runs_all_slots_again(
    scheduler: Scheduler, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (1, 1, 2):
        on_day(monkeypatch, day)
        assert main([*RANGE, "--force"]) == 0
    assert scheduler.started == 2 * sorted(SLOTS)


def test_keep_going_runs_the_rest_after_a_failure(scheduler: Scheduler, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    scheduler.failing = {sorted(SLOTS)[0]}
    assert main([*RANGE, "--keep-going", "--json"]) == 1
    output = capsys.readouterr().out
    assert [run["state"] for run in json.loads(output[output.index("[\n") :])] == ["failed", "success", "success"]


@pytest.mark.parametrize(
    ("days", "code"),
    [(("2026-02-03", "2026-02-01"), "backfill.range"), (("2099-02-01", "2099-02-02"), "backfill.empty")],
)
def test_range_that_has_no_runs_is_refused(
    scheduler: Scheduler, capsys: pytest.CaptureFixture[str], days: tuple[str, str], code: str
) -> None:
    assert main([PIPELINE, "--from", days[0], "--to", days[1]]) == 77
    assert f"[{code}]" in capsys.readouterr().err
    assert scheduler.started == []


@pytest.mark.usefixtures("server")
def test_paused_pipeline_is_refused_because_its_runs_would_wait(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RANGE) == 77
    assert "[pipeline.paused]" in capsys.readouterr().err


def test_pipeline_without_a_schedule_is_refused_with_the_command_that_starts_one_run(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = runs.pipeline
    monkeypatch.setattr(runs, "pipeline", lambda *given: pipeline(*given).model_copy(update={"schedule": None}))
    assert main(RANGE) == 77
    error = capsys.readouterr().err
    assert "[backfill.empty]" in error
    assert f"nightshift runs start {PIPELINE} --as-of" in error
    assert scheduler.started == []


def test_what_airflow_refuses_is_an_error_with_its_reason(scheduler: Scheduler, capsys: pytest.CaptureFixture[str]) -> None:
    # No route: 404, as from an Airflow that does not know the DAG.
    assert main(RANGE) == 77
    assert "[airflow.refused]" in capsys.readouterr().err
