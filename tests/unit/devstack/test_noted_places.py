"""The places of data that a running command's nights read do not change under it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devstack.night import find_spec
from devstack.noted_places import note_places, require_noted_places
from nightshift.airflow_ext.holds import hold_path
from nightshift.settings import Settings
from nightshift.sources import noted_places
from training.errors import NightshiftError


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.endswith("_URI")]:
        monkeypatch.delenv(name)
    made = Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})
    monkeypatch.setenv("FLIGHTS_URI", "/flights")
    note_places(made, print)
    return made


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


def test_command_whose_place_another_one_changed_before_its_nights_began_ends(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    flights = find_spec(settings, "flight_delay")
    require_noted_places(settings, flights)
    monkeypatch.setenv("FLIGHTS_URI", "/other")
    note_places(settings, print)
    monkeypatch.setenv("FLIGHTS_URI", "/flights")

    with pytest.raises(NightshiftError, match=r"services\.busy.*FLIGHTS_URI to '/other'.*this one has '/flights'"):
        require_noted_places(settings, flights)
    require_noted_places(settings, find_spec(settings, "search_ranking"))
