"""Which DAG files Airflow is asked to parse: those whose pipeline changed, and few others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.models.dag import DagModel, DagTag  # noqa: TID251 - what the dag-processor writes
from airflow.models.dagbag import DagPriorityParsingRequest  # noqa: TID251 - what it reads
from airflow.models.dagbundle import DagBundleModel  # noqa: TID251 - as above
from airflow.models.errors import ParseImportError  # noqa: TID251 - as above
from airflow.utils.session import create_session
from sqlalchemy import delete, select

from devstack.environment import airflow_settings
from nightshift.airflow_ext import dag_bundle
from nightshift.airflow_ext.dag_bundle import PipelineBundle
from nightshift.pipeline_files import yaml_of
from nightshift.settings import Settings
from training.runtime.provenance import CHECKOUT
from training.spec.rules.names import PIPELINE_TAG

NAME = "watched"
LONG_AGO, NOW = timedelta(days=1), timedelta()


class Watched:
    """A folder of DAG files, and what Airflow's database says of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pipelines").mkdir(parents=True)
        self.bundle = PipelineBundle(name=NAME, path=str(folder), refresh_interval=0)

    def pipeline(self, name: str, *, parsed: timedelta, written: bool = True, dag_id: str = "", **columns: Any) -> Path:
        """Write a pipeline that was parsed some time before now; return its YAML."""
        file = self.folder / f"{name}.py"
        file.touch()
        if written:
            yaml_of(file).touch()
        at = datetime.now(UTC) - parsed
        tags = [] if dag_id else [DagTag(name=PIPELINE_TAG)]
        values = {"timetable_periodic": False, "is_stale": False, "fileloc": str(file), **columns}
        with create_session() as session:
            dag = DagModel(dag_id=dag_id or name, bundle_name=NAME, relative_fileloc=file.name, last_parsed_time=at, tags=tags, **values)
            session.add(dag)
        # A change of a file is dated by the kernel's last tick.
        while file.stat().st_ctime <= at.timestamp():
            file.touch()
        return yaml_of(file)

    def failed(self, name: str, *, parsed: timedelta) -> None:
        """Note that a file did not load."""
        (self.folder / f"{name}.py").touch()
        with create_session() as session:
            at = datetime.now(UTC) - parsed
            session.add(ParseImportError(filename=f"{name}.py", bundle_name=NAME, timestamp=at, stacktrace="no module"))

    def requested(self) -> list[str]:
        """Refresh as the dag-processor does; return what it finds requested, which it removes."""
        self.bundle.refresh()
        with create_session() as session:
            found = session.scalars(select(DagPriorityParsingRequest).where(DagPriorityParsingRequest.bundle_name == NAME)).all()
            places = [request.relative_fileloc for request in found]
            for request in found:
                session.delete(request)
        return places


def clear() -> None:
    with create_session() as session:
        session.execute(delete(DagPriorityParsingRequest).where(DagPriorityParsingRequest.bundle_name == NAME))
        session.execute(delete(ParseImportError).where(ParseImportError.bundle_name == NAME))
        for dag in session.scalars(select(DagModel).where(DagModel.bundle_name == NAME)):
            session.delete(dag)


@pytest.fixture
def watched(airflow_dags: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # Files of a test are new: a parse of now counts as later than they are.
    monkeypatch.setattr(dag_bundle, "READING", timedelta())
    clear()
    with create_session() as session:
        session.merge(DagBundleModel(name=NAME))
    yield Watched(tmp_path / "dags")
    clear()
    with create_session() as session:
        session.execute(delete(DagBundleModel).where(DagBundleModel.name == NAME))


def test_only_the_file_of_a_changed_yaml_is_parsed_again(watched: Watched) -> None:
    changed = watched.pipeline("changed", parsed=NOW)
    watched.pipeline("same", parsed=NOW)
    assert watched.requested() == []
    changed.write_text("name: changed\n", encoding="utf-8")
    assert watched.requested() == ["changed.py"]


def test_a_yaml_is_new_that_an_older_file_took_the_place_of(watched: Watched) -> None:
    older = watched.folder / "older"
    older.touch()
    os.utime(older, (0, 0))
    yaml = watched.pipeline("restored", parsed=NOW)
    assert watched.requested() == []
    older.replace(yaml)
    assert watched.requested() == ["restored.py"]


def test_a_yaml_is_new_where_a_link_or_a_folder_leads_to_an_older_one(watched: Watched) -> None:
    for release in ("first", "second"):
        (watched.folder / release).mkdir()
        (watched.folder / release / "linked.yaml").touch()
    (watched.folder / "pipelines").rmdir()
    (watched.folder / "pipelines").symlink_to("second")
    watched.pipeline("linked", parsed=NOW, written=False)
    assert watched.requested() == []
    (watched.folder / "pipelines").unlink()
    (watched.folder / "pipelines").symlink_to("first")
    assert watched.requested() == ["linked.py"]
    assert watched.requested() == ["linked.py"], "until it is parsed"


def test_a_yaml_that_cannot_be_looked_at_hides_no_change_of_another(watched: Watched) -> None:
    watched.pipeline("around", parsed=NOW, written=False)
    (watched.folder / "pipelines" / "around.yaml").symlink_to("around.yaml")
    watched.pipeline("changed", parsed=LONG_AGO)
    assert watched.requested() == ["around.py", "changed.py"]


def test_a_change_during_a_parse_is_parsed_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.pipeline("edited", parsed=NOW)
    monkeypatch.setattr(dag_bundle, "READING", timedelta(seconds=5))
    assert watched.requested() == ["edited.py"]


def test_a_request_that_was_lost_is_made_again(watched: Watched) -> None:
    watched.pipeline("changed", parsed=LONG_AGO)
    assert watched.requested() == ["changed.py"]
    assert watched.requested() == ["changed.py"]


def test_a_refresh_that_follows_at_once_asks_for_nothing(watched: Watched) -> None:
    watched.pipeline("changed", parsed=LONG_AGO)
    watched.bundle.refresh_interval = 600
    assert watched.requested() == ["changed.py"]
    assert watched.requested() == []


def test_a_pipeline_whose_yaml_is_removed_is_parsed_until_airflow_has_the_error(watched: Watched) -> None:
    watched.pipeline("removed", parsed=NOW, written=False)
    assert watched.requested() == ["removed.py"]
    watched.failed("removed", parsed=NOW)
    assert watched.requested() == []


def test_a_removed_dag_file_is_not_asked_for(watched: Watched) -> None:
    watched.pipeline("removed", parsed=LONG_AGO)
    (watched.folder / "removed.py").unlink()
    assert watched.requested() == []


def test_another_dag_of_the_folder_is_left_to_airflow(watched: Watched) -> None:
    watched.pipeline("serve", parsed=LONG_AGO, written=False, dag_id="serving")
    watched.pipeline("renamed", parsed=LONG_AGO, written=False, dag_id="of_before", is_stale=True)
    assert watched.requested() == []


def test_a_file_that_did_not_load_is_parsed_again_after_a_minute_the_oldest_first(watched: Watched) -> None:
    watched.failed("older", parsed=timedelta(minutes=3))
    watched.failed("old", parsed=timedelta(minutes=2))
    watched.failed("new", parsed=timedelta(seconds=30))
    assert watched.requested() == ["older.py"]


def test_a_yaml_that_is_corrected_is_parsed_at_once(watched: Watched) -> None:
    watched.failed("corrected", parsed=timedelta(seconds=30))
    yaml_of(watched.folder / "corrected.py").touch()
    assert watched.requested() == ["corrected.py"]


def test_a_dag_that_a_killed_parse_took_out_of_service_is_parsed_again(watched: Watched) -> None:
    watched.pipeline("lost", parsed=NOW, is_stale=True)
    assert watched.requested() == ["lost.py"]


def test_a_helper_dag_that_its_pipeline_no_longer_has_is_no_reason_to_parse(watched: Watched) -> None:
    watched.pipeline("owner", parsed=NOW)
    with create_session() as session:
        old = datetime.now(UTC) - LONG_AGO
        session.add(
            DagModel(dag_id="owner.canary", bundle_name=NAME, relative_fileloc="owner.py", fileloc="", last_parsed_time=old, is_stale=True)
        )
    assert watched.requested() == []


def test_a_slot_that_passed_without_a_run_is_planned_again_once(watched: Watched) -> None:
    passed = {"timetable_periodic": True, "next_dagrun_create_after": datetime.now(UTC) - timedelta(minutes=5)}
    watched.pipeline("paused", parsed=timedelta(hours=3), dag_id="paused.first", **passed)
    watched.pipeline("planned", parsed=timedelta(minutes=3), dag_id="planned.first", **passed)
    coming = {"timetable_periodic": True, "next_dagrun_create_after": datetime.now(UTC) + timedelta(minutes=5)}
    watched.pipeline("coming", parsed=timedelta(hours=3), dag_id="coming.first", **coming)
    assert watched.requested() == ["paused.py"]


def test_a_schedule_that_was_held_is_asked_for_its_next_run_every_hour(watched: Watched) -> None:
    watched.pipeline("held", parsed=timedelta(hours=2), dag_id="held.first", timetable_periodic=True)
    watched.pipeline("held_now", parsed=timedelta(minutes=2), dag_id="held_now.first", timetable_periodic=True)
    watched.pipeline("by_hand", parsed=timedelta(hours=2), dag_id="by_hand.first")
    assert watched.requested() == ["held.py"]


def test_every_kind_of_installation_has_the_bundle_and_leaves_unchanged_files_alone_for_a_day(tmp_path: Path) -> None:
    laptop = airflow_settings(Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)}))
    compose = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text(encoding="utf-8"))["x-airflow"]["environment"]
    chart = yaml.safe_load((CHECKOUT / "docker" / "kubernetes" / "airflow-values.yaml").read_text(encoding="utf-8"))
    of_chart = {f"AIRFLOW__DAG_PROCESSOR__{name.upper()}": value for name, value in chart["config"]["dag_processor"].items()}
    for found in (laptop, compose, of_chart):
        (bundle,) = json.loads(found["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
        assert bundle["classpath"] == f"{PipelineBundle.__module__}.{PipelineBundle.__qualname__}"
        assert bundle["name"] == "dags-folder"
        assert found["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] == "86400"
