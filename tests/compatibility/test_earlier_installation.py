"""An installation of an earlier version is started by this one: a waiting approval is answered, a night under way ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.compatibility.earlier_state import earlier_state, pinned_environment
from tests.compatibility.record_state import NAME
from tests.integration.installation import Installation, free_ports

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

ASKING = f"{NAME}.approval"
UNDER_WAY = "night-2026-03-16"


@pytest.fixture
def earlier() -> Iterator[Installation]:
    with earlier_state() as home:
        # Its time has come, whatever day it is.
        with closing(sqlite3.connect(home / "airflow/airflow.db")) as database:
            database.execute("UPDATE deadline SET deadline_time = '2026-11-22 16:30:30.000000'")
            database.commit()
        airflow_port, mlflow_port = free_ports(2)
        ports = {"NIGHTSHIFT_AIRFLOW_PORT": str(airflow_port), "NIGHTSHIFT_MLFLOW_PORT": str(mlflow_port)}
        installation = Installation(home, {**pinned_environment(), **ports})
        try:
            installation.services("start")
            yield installation
        finally:
            installation.stop()


def test_earlier_installation_answers_its_approval_and_ends_its_night(earlier: Installation) -> None:
    (run,) = earlier.api.get(f"/dags/{ASKING}/dagRuns")["dag_runs"]
    run_id = str(run["dag_run_id"])
    # The trigger of before runs in this version's triggerer.
    assert earlier.tasks(ASKING, run_id)["ask"]["state"] == "deferred"
    path = f"/dags/{ASKING}/dagRuns/{run_id}/taskInstances/ask/-1/hitlDetails"
    earlier.api.patch(path, {"chosen_options": ["Approve"], "params_input": {"note": "after the update"}})
    assert earlier.wait(ASKING, run_id) == "success", earlier.why(ASKING, run_id)
    entry = earlier.ledger.history(NAME)[-1]
    assert (entry.version, entry.outcome, entry.action) == ("2", "approved", "promoted")
    assert "after the update" in entry.reasons[-1]["words"]

    # Stopped behind `validate`; the DAG has a new version meanwhile.
    earlier.unpause(NAME)
    assert earlier.wait(NAME, UNDER_WAY) == "success", earlier.why(NAME, UNDER_WAY)
    states = {name: (task["state"], task["try_number"]) for name, task in earlier.tasks(NAME, UNDER_WAY).items()}
    assert set(states.values()) == {("success", 1)}, states
    history = earlier.ledger.history(NAME)
    assert [entry.version for entry in history] == ["1", "2", "2", "3"]
    # The model of the version before is what the new one was compared with, on the same rows.
    assert history[-1].evidence["champion"]["version"] == "2"
    assert history[-1].evidence["champion_metrics"].keys() == history[1].evidence["champion_metrics"].keys()

    def callback() -> str | None:
        with closing(sqlite3.connect(earlier.home / "airflow/airflow.db")) as database:
            state: str | None = database.execute("SELECT state FROM callback").fetchone()[0]
        return state if state in ("success", "failed") else None

    assert earlier.until(callback, "callback of the missed deadline", timeout_seconds=300) == "success"
