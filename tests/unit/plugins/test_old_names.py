"""Names that Airflow's database, users' files and registered models hold since the release before the rooms were divided."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.decoders import decode_deadline_reference, decode_timetable
from airflow.serialization.encoders import encode_deadline_reference, encode_timetable

from nightshift.airflow_ext.deadlines import TimeOfDayDeadline
from nightshift.airflow_ext.timetables import CronTimetable
from training.runtime.provenance import CHECKOUT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nightshift.alerts:deadline_missed", "nightshift.airflow_ext.alerts:deadline_missed"),
        ("nightshift.approvals:WatchRequest", "nightshift.operators.approval:WatchRequest"),
        ("nightshift.kubernetes.watch:WatchLaunch", "nightshift.execution.kubernetes.trigger:WatchLaunch"),
        ("nightshift.factory:pipeline_dag", "nightshift.wiring.pipeline:pipeline_dag"),
        ("nightshift.housekeeping:housekeeping_dag", "nightshift.wiring.housekeeping:housekeeping_dag"),
        ("nightshift.rollbacks:rollback_dag", "nightshift.wiring.rollback:rollback_dag"),
        ("nightshift.services.executor:SleepTolerantLocalExecutor", "devstack.executor:SleepTolerantLocalExecutor"),
        ("nightshift.services.sqlite:CONNECT_ARGS", "devstack.sqlite:CONNECT_ARGS"),
    ],
)
def test_old_path_gives_the_same_object(old: str, new: str) -> None:
    def found(place: str) -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(module), name)

    assert found(old) is found(new)


def test_stored_timetable_of_the_old_path_starts_the_same_nights() -> None:
    stored = encode_timetable(CronTimetable("0 2 * * *", timezone="UTC", pipeline="search_ranking"))
    assert stored["__type"] == "nightshift.airflow_ext.timetables.CronTimetable"
    read = decode_timetable({**stored, "__type": "nightshift.timetables.Nights"})
    assert isinstance(read, CronTimetable)
    assert read.serialize() == CronTimetable("0 2 * * *", timezone="UTC", pipeline="search_ranking").serialize()


def test_stored_deadline_of_the_old_path_is_the_same_time_of_day() -> None:
    stored = encode_deadline_reference(TimeOfDayDeadline(at="06:30", timezone="UTC"))
    old = {key: value.replace("airflow_ext.", "").replace("TimeOfDayDeadline", "NotDoneBy") for key, value in stored.items()}
    assert old != stored
    reference = decode_deadline_reference(old)
    assert reference.serialize_reference()["at"] == "06:30"


def test_dag_file_of_the_old_paths_makes_the_same_dag(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "search_ranking.yaml").write_bytes((CHECKOUT / "dags/pipelines/search_ranking.yaml").read_bytes())
    file = tmp_path / "search_ranking.py"
    file.write_text("from nightshift.factory import pipeline_dag  # an Airflow DAG\n\ndag = pipeline_dag(__file__)\n", encoding="utf-8")
    space: dict[str, Any] = {"__file__": str(file)}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), space)  # noqa: S102 - a DAG file is a program
    assert isinstance(space["dag"], DAG)
    assert space["dag"].task_ids == ["resolve", "wait", "ingest", "validate", "prepare", "train", "evaluate", "promote"]


def test_old_command_of_the_services_still_answers() -> None:
    command = [sys.executable, "-m", "nightshift.services", "--help"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "plugins")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    assert "backfill" in done.stdout
