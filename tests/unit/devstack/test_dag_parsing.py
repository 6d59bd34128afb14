"""Waits for the dag-processor end once it has read what is awaited, or after a time in which it could have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from devstack import dag_parsing, lifecycle, wait_messages
from devstack.airflow_api import AirflowApi
from devstack.dag_parsing import MAX_SECONDS, PARSE_SECONDS, ParseLimit, wait_for_dags
from nightshift.pipeline_files import yaml_of
from nightshift.settings import Settings


class Health:
    """Airflow's health, as a test sets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.dag_processor = "healthy"

    def health(self) -> dict[str, str]:
        return {"dag_processor": self.dag_processor} if self.dag_processor else {}

    def limit(self) -> ParseLimit:
        return ParseLimit(cast("AirflowApi", self), clock=lambda: self.now)


def test_wait_for_a_healthy_dag_processor_ends_after_its_limit() -> None:
    airflow = Health()
    limit = airflow.limit()
    airflow.now = PARSE_SECONDS
    assert not limit.is_spent()
    airflow.now += 1
    assert limit.is_spent()


@pytest.mark.parametrize("state", ["unhealthy", ""], ids=["stopped", "no answer"])
def test_dag_processor_that_was_away_has_the_whole_time_once_it_is_back(state: str) -> None:
    airflow = Health()
    limit = airflow.limit()
    airflow.dag_processor, airflow.now = state, PARSE_SECONDS + 1
    assert not limit.is_spent()
    airflow.dag_processor, airflow.now = "healthy", 2 * PARSE_SECONDS
    assert not limit.is_spent()
    airflow.now = 2 * PARSE_SECONDS + 2
    assert limit.is_spent()


def test_dag_processor_that_stays_away_ends_the_wait_at_last() -> None:
    airflow = Health()
    limit = airflow.limit()
    airflow.dag_processor = "unhealthy"
    while airflow.now < MAX_SECONDS:
        airflow.now += PARSE_SECONDS / 2
        spent = limit.is_spent()
    assert not spent
    airflow.now += 1
    assert limit.is_spent()


class Reader(Health):
    """Airflow with a dag-processor that reads a DAG file at each question, in pages of two."""

    def __init__(self, *dags: str, loads: tuple[str, ...] = (), broken: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.dags, self.loads, self.broken = list(dags), list(loads), broken

    def get(self, path: str, *, limit: int, offset: int) -> Any:
        del limit
        if path == "/dags" and not offset and self.loads:
            self.dags.append(self.loads.pop(0))
        found = [{"dag_id": name} for name in self.dags] if path == "/dags" else [{"filename": f"{name}.py"} for name in self.broken]
        return {"dags" if path == "/dags" else "import_errors": found[offset : offset + 2]}

    def close(self) -> None:
        pass


def files(folder: Path, *pipelines: str) -> Path:
    (folder / "pipelines").mkdir()
    for name in pipelines:
        (folder / f"{name}.py").touch()
        yaml_of(folder / f"{name}.py").touch()
    (folder / "housekeeping.py").touch()
    (folder / "of_a_user.py").touch()
    return folder


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag_parsing, "PAGE", 2)
    monkeypatch.setattr(dag_parsing, "POLL_SECONDS", 0)


def test_every_dag_that_loads_is_awaited_and_one_that_does_not_is_known(tmp_path: Path) -> None:
    said: list[str] = []
    airflow = Reader("of_another", loads=("housekeeping", "first", "second", "third"), broken=("fourth",))
    wait_for_dags(cast("AirflowApi", airflow), files(tmp_path, "first", "second", "third", "fourth"), said.append)
    assert (airflow.loads, said) == ([], [])


def test_a_dag_processor_that_reads_no_further_file_ends_the_wait_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag_parsing, "PARSE_SECONDS", -1)
    said: list[str] = []
    wait_for_dags(cast("AirflowApi", Reader("housekeeping")), files(tmp_path, "first", "second"), said.append)
    assert said == ["Airflow has not read 2 of 3 DAG files yet (first, second): make status shows its log files"]


def test_a_start_ends_once_all_dag_files_are_read_and_says_how_many_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow, said = Reader(loads=("housekeeping", "first", "second")), list[str]()
    monkeypatch.setattr(wait_messages, "EVERY_SECONDS", 0)
    monkeypatch.setattr(lifecycle, "api", lambda _settings: airflow)
    for step in ("require_free", "require_places", "prepare_home", "note_places", "_launch_supervisor", "wait_ready"):
        monkeypatch.setattr(lifecycle, step, lambda *_given, **_named: None)
    for step in ("note_database_is_current", "pause_leftovers"):
        monkeypatch.setattr(lifecycle, step, lambda *_given: None)
    pipelines = files(tmp_path, "first", "second") / "pipelines"
    variables = {"NIGHTSHIFT_HOME": str(tmp_path / "home"), "NIGHTSHIFT_PIPELINES": str(pipelines)}
    lifecycle.start(Settings.from_environment(variables), said.append)
    assert [line.removeprefix("  waiting for Airflow, which has read ") for line in said[1:]] == [
        "1 of 3 DAG files  0 s",
        "2 of 3 DAG files  0 s",
        "services are up after 0 s",
    ]
