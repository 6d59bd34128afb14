"""What commands do to services that run: two starts at once, a new variable in mid-night, a dead API server, a backfill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from devstack.processes import marked
from devstack.supervisor_state import read_state
from nightshift.source_uris import noted_places
from tests.integration.installation import ROOT, Installation

HANG_SECONDS = 600
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(HANG_SECONDS + 100),
]

PIPELINE = "search_ranking"


class Commands(Installation):
    """An installation whose services are not started yet."""

    def background(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `python -m devstack …`."""
        command = [sys.executable, "-m", "devstack", *arguments]
        return subprocess.Popen(
            command, env={**self.environment, **variables}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def is_paused(self, dag_id: str) -> bool:
        return bool(self.api.get(f"/dags/{dag_id}")["is_paused"])


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Everything but the services; the first test starts them."""
    made = Commands.prepare(tmp_path_factory.mktemp("commands"))
    assert isinstance(made, Commands)
    try:
        yield made
    finally:
        made.stop()


def test_two_starts_at_once_make_one_supervisor_and_one_set_of_secrets(fresh: Commands) -> None:
    starts = [fresh.background("start") for _ in range(2)]
    said = [start.communicate(timeout=HANG_SECONDS)[0] for start in starts]

    # On a machine with too much to do, Airflow is not ready in time; then the second start finds it running all the same.
    assert all(start.returncode == 0 or "[services.not_ready]" in text for start, text in zip(starts, said, strict=True)), said
    assert sum("is starting the services; waiting for it" in text for text in said) == 1, said
    assert sum("starting MLflow and Airflow" in text for text in said) == 1, said
    supervisors = marked(lambda mark: mark.startswith("supervisor:") and mark.endswith(f":{fresh.home}"))
    state = read_state(fresh.home)
    assert state is not None
    assert [process.pid for process in supervisors] == [state.supervisor.pid]
    assert {entry.restarts for entry in state.components} == {0}
    password = json.loads((fresh.home / "credentials.json").read_text())["airflow_password"]
    assert all(password in text for text in said if "[services.not_ready]" not in text)


def test_new_place_in_mid_night_restarts_nothing_and_a_setting_that_would_is_refused(fresh: Commands) -> None:
    night = fresh.background("run", PIPELINE, "--night", "2026-02-01")
    fresh.until(lambda: fresh.api.find(f"/dags/{PIPELINE}/dagRuns/night-2026-02-01"), "the run", timeout_seconds=HANG_SECONDS)
    fresh.wait_task(PIPELINE, "night-2026-02-01", "train", "running", timeout_seconds=HANG_SECONDS)
    before = read_state(fresh.home)

    fresh.environment["FLIGHTS_URI"] = "s3://flights-of-another-team"
    fresh.services("start")
    assert noted_places(fresh.home)["FLIGHTS_URI"] == "s3://flights-of-another-team"
    refused = fresh.background("start", NIGHTSHIFT_WEBHOOK_SECRET="another")
    said = refused.communicate(timeout=HANG_SECONDS)[0]

    assert refused.returncode == 1
    assert "[services.busy]" in said
    assert "NIGHTSHIFT_WEBHOOK_SECRET" in said
    assert f"night-2026-02-01 of {PIPELINE}" in said
    assert "make stop" in said
    after = read_state(fresh.home)
    assert before is not None
    assert after is not None
    assert [entry.process for entry in after.components] == [entry.process for entry in before.components]
    assert after.supervisor == before.supervisor
    text = night.communicate(timeout=HANG_SECONDS)[0]
    assert night.returncode == 0, text
    assert fresh.is_paused(PIPELINE)


def test_make_run_outlives_the_api_server_and_pauses_the_dag(fresh: Commands) -> None:
    night = fresh.background("run", PIPELINE, "--night", "2026-02-02")
    fresh.until(lambda: fresh.api.find(f"/dags/{PIPELINE}/dagRuns/night-2026-02-02"), "the run", timeout_seconds=HANG_SECONDS)

    fresh.kill("api-server")

    text = night.communicate(timeout=HANG_SECONDS)[0]
    assert night.returncode == 0, text
    assert "decision  " in text
    assert fresh.is_paused(PIPELINE)


def test_interrupted_night_is_paused_and_the_next_make_run_continues_it(fresh: Commands) -> None:
    night = fresh.background("run", PIPELINE, "--night", "2026-02-03")
    fresh.until(lambda: fresh.api.find(f"/dags/{PIPELINE}/dagRuns/night-2026-02-03"), "the run", timeout_seconds=HANG_SECONDS)

    night.send_signal(signal.SIGINT)

    text = night.communicate(timeout=HANG_SECONDS)[0]
    assert night.returncode == 130, text
    assert "night-2026-02-03 of search_ranking is not finished" in text
    assert fresh.is_paused(PIPELINE)
    text = fresh.services("run", PIPELINE, "--night", "2026-02-03")
    assert "night-2026-02-03 of search_ranking still runs; following it" in text
    assert "decision  " in text
    assert fresh.is_paused(PIPELINE)


def test_backfill_runs_its_nights_in_order_and_starts_none_of_today(fresh: Commands) -> None:
    name = fresh.add_pipeline("refilled", schedule="0 2 * * 1-5")
    # Its schedule has run before, so Airflow wants to make up the latest slot as soon as it is on.
    fresh.until(lambda: fresh.api.find(f"/dags/{name}"), f"DAG {name}")
    earlier_slot(fresh, name)
    # Airflow plans the next slot as it parses the file, which it does where the YAML has changed.
    (fresh.dags / "pipelines" / f"{name}.yaml").touch()
    fresh.until(lambda: is_due(fresh, name), "a slot that is due", timeout_seconds=HANG_SECONDS)

    said = fresh.services("backfill", name, "--from", "2026-01-09", "--to", "2026-01-12")

    lines = [line.split() for line in said.splitlines() if line.startswith("2026-01-")]
    assert [line[0] for line in lines] == ["2026-01-09", "2026-01-12"], said
    assert all(line[1] == "ndcg@10" and line[-1] in ("accepted", "rejected") for line in lines), said
    assert [line[3] == "-" for line in lines] == [True, False], said
    runs = {run["dag_run_id"]: run for run in fresh.api.get(f"/dags/{name}/dagRuns", limit=100)["dag_runs"]}
    nights = sorted(run_id for run_id in runs if run_id != "of-the-schedule")
    assert nights == ["night-2026-01-09", "night-2026-01-12"]
    ends = [(runs[night]["start_date"], runs[night]["end_date"]) for night in nights]
    assert ends == sorted(ends)
    assert all(end <= following for (_, end), (following, _) in pairwise(ends))
    as_of = [fresh.xcom(name, night, "resolve")["as_of"] for night in nights]
    assert as_of == [datetime(2026, 1, day, 2, tzinfo=UTC).isoformat() for day in (9, 12)]
    assert fresh.is_paused(name)


def test_repeated_backfill_runs_only_what_is_not_done_and_a_failed_night_stops_it(fresh: Commands) -> None:
    # A missing day of the shop would be made again.
    (damaged,) = (fresh.shop / "clicks" / "dt=2026-01-12").glob("*.parquet")
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-100])
    broken = fresh.background("backfill", "refilled", "--from", "2026-01-12", "--to", "2026-01-14")
    said = broken.communicate(timeout=HANG_SECONDS)[0]
    assert broken.returncode == 1, said
    assert "night-2026-01-12 succeeded before and is not run again" in said
    assert "make backfill PIPELINE=refilled FROM=2026-01-13 TO=2026-01-14" in said
    assert fresh.is_paused("refilled")
    damaged.write_bytes(sound)

    said = fresh.services("backfill", "refilled", "--from", "2026-01-13", "--to", "2026-01-13")

    assert [line.split()[0] for line in said.splitlines() if line.startswith("2026-01-")] == ["2026-01-13"]
    said = fresh.services("backfill", "refilled", "--from", "2026-01-08", "--to", "2026-01-08")
    assert "1 of them are before champion version" in said
    assert "none of them is promoted" in said


def earlier_slot(fresh: Commands, dag_id: str) -> None:
    """Leave a run by schedule of last month in Airflow's record, as if the schedule had been on then."""
    script = Path(__file__).with_name("scheduled_run.py")
    fresh.command("sh", "-c", f'eval "$({sys.executable} -m devstack env)" && exec {sys.executable} {script} {dag_id}')


def is_due(fresh: Commands, dag_id: str) -> bool:
    due = fresh.api.get(f"/dags/{dag_id}")["next_dagrun_run_after"]
    return due is not None and datetime.fromisoformat(due) < datetime.now(UTC)
