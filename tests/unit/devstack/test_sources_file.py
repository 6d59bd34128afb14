"""The places of data that a running command's nights read do not change under it."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.run_command import find_spec
from devstack.service_environment import airflow_environment, digests, mlflow_environment
from devstack.sources_file import note_places, require_noted_places
from nightshift.airflow_ext.schedule_hold import hold_path
from nightshift.settings import Settings
from nightshift.source_uris import noted_places
from training.errors import DeniedError, NightshiftError


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.endswith("_URI") or name == "NIGHTSHIFT_WEBHOOK_SECRET"]:
        monkeypatch.delenv(name)
    made = Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})
    monkeypatch.setenv("FLIGHTS_URI", "/flights")
    note_places(made, print)
    return made


def test_webhook_and_key_of_one_shell_reach_services_that_another_one_starts(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    given = {"ALERTS_URI": "https://hooks.example.com/T0/hidden", "NIGHTSHIFT_WEBHOOK_SECRET": "whsec_hidden"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    note_places(settings, said.append)
    started_with = digests(settings)
    for name in given:
        monkeypatch.delenv(name)
    note_places(settings, said.append)

    assert {name: airflow_environment(settings).get(name) for name in given} == given
    assert digests(settings) == started_with, "the services are not old for the other shell"
    assert not given.keys() & mlflow_environment(settings).keys()
    assert stat.S_IMODE((settings.home / "alerts.json").stat().st_mode) == 0o600
    assert "hidden" not in str(said) + (settings.home / "sources.json").read_text(encoding="utf-8")

    other_pipelines = settings.home / "other"
    other_pipelines.mkdir()
    note_places(dataclasses.replace(settings, pipelines_path=other_pipelines), said.append)
    assert airflow_environment(settings).get("ALERTS_URI") == given["ALERTS_URI"], "another command's pipelines name no webhook"

    monkeypatch.setenv("ALERTS_URI", "")
    note_places(settings, said.append)
    monkeypatch.delenv("ALERTS_URI")
    assert "ALERTS_URI" not in airflow_environment(settings)


def test_damaged_file_of_webhooks_is_refused_without_the_address(settings: Settings) -> None:
    (settings.home / "alerts.json").write_text(json.dumps({"PATH": "hidden"}), encoding="utf-8")
    with pytest.raises(NightshiftError, match=r"alerts\.damaged.*'PATH' is not a webhook's variable") as caught:
        note_places(settings, print)
    assert "hidden" not in str(caught.value)


@contextmanager
def command_at_work(settings: Settings, dag_id: str) -> Iterator[None]:
    """Hold a DAG as `make run` and `make backfill` do."""
    path = hold_path(settings.home, dag_id)
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.mark.parametrize("value", ["/other", ""])
def test_place_that_a_command_at_work_reads_cannot_change(settings: Settings, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    before = noted_places(settings.home)
    monkeypatch.setenv("FLIGHTS_URI", value)
    monkeypatch.setenv("NEW_URI", "/new")

    with (
        command_at_work(settings, "flight_delay"),
        pytest.raises(NightshiftError, match=r"services\.busy.*FLIGHTS_URI.*nights of flight_delay.*unset FLIGHTS_URI"),
    ):
        note_places(settings, print)
    assert noted_places(settings.home) == before

    note_places(settings, print)
    assert noted_places(settings.home).get("FLIGHTS_URI") == (value or None)


def test_places_that_no_command_at_work_reads_and_new_ones_are_noted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW_URI", "/new")
    with command_at_work(settings, "flight_delay"):
        note_places(settings, print)
    monkeypatch.setenv("FLIGHTS_URI", "/other")
    with command_at_work(settings, "search_ranking"):
        note_places(settings, print)

    assert noted_places(settings.home)["NEW_URI"] == "/new"
    assert noted_places(settings.home)["FLIGHTS_URI"] == "/other"


def test_hold_file_that_a_killed_command_left_keeps_no_place(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with command_at_work(settings, "flight_delay"):
        pass
    monkeypatch.setenv("FLIGHTS_URI", "/other")

    note_places(settings, print)

    assert noted_places(settings.home)["FLIGHTS_URI"] == "/other"


def test_a_pipeline_that_there_is_not_has_the_name_that_was_probably_meant(settings: Settings) -> None:
    with pytest.raises(DeniedError, match=r"there is no pipeline 'search_rankin' in .* \(did you mean search_ranking\?\)") as refused:
        find_spec(settings, "search_rankin")
    assert refused.value.code == "pipeline.unknown"


def test_command_whose_place_another_one_changed_before_its_nights_began_ends(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    flights = find_spec(settings, "flight_delay")
    require_noted_places(settings, flights)
    monkeypatch.setenv("FLIGHTS_URI", "/other")
    note_places(settings, print)
    monkeypatch.setenv("FLIGHTS_URI", "/flights")

    with pytest.raises(NightshiftError, match=r"services\.busy.*FLIGHTS_URI to '/other'.*this one has '/flights'"):
        require_noted_places(settings, flights)
    require_noted_places(settings, find_spec(settings, "search_ranking"))
