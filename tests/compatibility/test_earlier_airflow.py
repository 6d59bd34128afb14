"""Airflow's database of an earlier version: its DAGs, deferred task, trigger and deadline work with the code of this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devstack.environment import environment
from nightshift.settings import Settings
from tests.compatibility.earlier_state import earlier_state, pinned_environment
from tests.compatibility.record_state import NAME
from training.registry.ledger import Ledger

pytestmark = pytest.mark.slow

READER = Path(__file__).with_name("read_airflow_state.py")
STAGES = ["resolve", "ingest", "validate", "prepare", "train", "evaluate", "promote"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of this version reads and does with the database; it is started once."""
    out = tmp_path_factory.mktemp("found") / "found.json"
    with earlier_state() as home:
        base = pinned_environment()
        services = environment(Settings.from_environment(base), base)
        done = subprocess.run([sys.executable, READER, out], env=services, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        parts = json.loads(out.read_text(encoding="utf-8"))
        parts["output"] = done.stdout + done.stderr
        history = Ledger(services["NIGHTSHIFT_DATABASE"]).history(NAME)
        parts["history"] = [(entry.version, entry.outcome, entry.decided_by) for entry in history]
        return parts


def part(found: dict[str, Any], name: str) -> Any:
    """Return what one function of the process found."""
    if isinstance(found[name], dict):
        assert "error" not in found[name], found[name].get("error")
    return found[name]


def test_all_stored_versions_of_the_dags_are_deserialised(found: dict[str, Any]) -> None:
    dags = part(found, "serialised_dags")
    assert [(dag["dag_id"], dag["version"]) for dag in dags] == [(NAME, 1), (NAME, 2), (f"{NAME}.approval", 1)]
    assert [list(dag["tasks"]) for dag in dags] == [STAGES, STAGES, ["ask", "promote"]]
    assert {pool for dag in dags for pool in dag["tasks"].values()} == {"cpu", "train"}
    assert all(links == ["Log of the attempt", "Report", "Reused from"] for links in dags[0]["links"].values() if links)


def test_stored_timetable_starts_the_next_night(found: dict[str, Any]) -> None:
    nights = [dag for dag in part(found, "serialised_dags") if dag["dag_id"] == NAME]
    assert {dag["stored_timetable"] for dag in nights} == {"nightshift.timetables.Nights"}
    # 03:00 of 1 January in Amsterdam.
    assert {dag["next_run"] for dag in nights} == {"2027-01-01T02:00:00+00:00"}


def test_stored_deadline_is_evaluated_to_the_stored_time(found: dict[str, Any]) -> None:
    deadline = part(found, "deadlines")
    assert deadline["class_path"] == "nightshift.deadlines.NotDoneBy"
    assert deadline["run"] == "night-2026-03-16"
    assert deadline["evaluated"] == deadline["stored"]


def test_stored_callback_of_a_missed_deadline_sends_its_alert(found: dict[str, Any]) -> None:
    missed = part(found, "missed_deadline")
    assert missed == {"path": "nightshift.alerts.deadline_missed", "succeeded": True, "message": None}
    assert "not done by 06:30 Europe/Amsterdam" in found["output"]


def test_stored_trigger_fires_at_an_answer_and_at_the_end_of_its_time(found: dict[str, Any]) -> None:
    trigger = part(found, "trigger")
    assert trigger["class_path"] == "nightshift.approvals.WatchRequest"
    assert trigger["event"]["chosen_options"] == ["Approve"]
    assert trigger["event"]["responded_by_user"] == {"id": "ann", "name": "ann"}
    assert trigger["after_its_time"]["error_type"] == "timeout"


def test_deferred_task_is_resumed_by_its_stored_method_and_records_the_answer(found: dict[str, Any]) -> None:
    resumed = part(found, "resumed_task")
    assert resumed == {"import_errors": {}, "method": "execute_complete", "result": "approved"}
    assert found["history"] == [
        ("1", "accepted", f"{NAME}/night-2026-03-14/promote"),
        ("2", "needs_approval", f"{NAME}/night-2026-03-15/promote"),
        ("2", "approved", "ann"),
    ]


def test_run_under_way_continues_from_the_stored_results(found: dict[str, Any]) -> None:
    stage = part(found, "next_stage")
    assert stage == {
        "run": "night-2026-03-16",
        "as_of": "2026-03-16T02:00:00+00:00",
        "done": ["ingest", "resolve", "validate"],
        "inputs": ["snapshot", "validation"],
    }
