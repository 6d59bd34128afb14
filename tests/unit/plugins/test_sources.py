"""Places of data that commands have noted, as runs and stages see them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.execution.local import stage_environment
from nightshift.settings import Settings
from nightshift.sources import with_noted_places
from training.errors import NightshiftError


def note(home: Path, **places: str) -> None:
    (home / "sources.json").write_text(json.dumps(places))


def test_own_environment_counts_before_what_is_noted(tmp_path: Path) -> None:
    note(tmp_path, FLIGHTS_URI="/noted", SHOP_URI="/noted")

    seen = with_noted_places(tmp_path, {"FLIGHTS_URI": "/exported", "SHOP_URI": " ", "PATH": ""})

    assert seen == {"FLIGHTS_URI": "/exported", "SHOP_URI": "/noted", "PATH": ""}


def test_without_a_file_the_environment_is_all_there_is(tmp_path: Path) -> None:
    assert with_noted_places(tmp_path, {"FLIGHTS_URI": "/exported"}) == {"FLIGHTS_URI": "/exported"}


def test_stage_sees_noted_places(tmp_path: Path) -> None:
    note(tmp_path, FLIGHTS_URI="/noted", SHOP_URI="/noted")
    settings = Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})

    seen = stage_environment(settings, "ingest", {"FLIGHTS_URI": "/exported"})

    assert (seen["FLIGHTS_URI"], seen["SHOP_URI"]) == ("/exported", "/noted")


DAMAGED = {
    "empty": "",
    "list": "[]",
    "cut": '{"A_URI"',
    "number": '{"A_URI": 3}',
    "name that is none of a place": '{"PATH": "/evil"}',
    "name that Airflow reads": '{"AIRFLOW__CORE__X_URI": "/evil"}',
    "nested": "[" * 100_000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.json").write_text(text)

    with pytest.raises(NightshiftError, match=r"sources\.damaged.*sources\.json is damaged") as caught:
        with_noted_places(tmp_path, {})
    assert caught.value.hint


@pytest.mark.parametrize("value", ["somewhere", "//host/share", "/a\nb", "", "/"])
def test_value_that_names_no_data_is_left_out_as_earlier_versions_noted_such(tmp_path: Path, value: str) -> None:
    (tmp_path / "sources.json").write_text(json.dumps({"BASE_URI": value, "SHOP_URI": "/shop"}))

    assert with_noted_places(tmp_path, {}) == {"SHOP_URI": "/shop"}


def test_what_is_no_readable_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "sources.json"
    makers: list[Callable[[], object]] = [
        path.mkdir,
        lambda: os.mkfifo(path),
        lambda: path.write_bytes(b"\xff"),
        lambda: path.symlink_to(path),
    ]
    for make in makers:
        make()
        with pytest.raises(NightshiftError, match=r"sources\.damaged.*sources\.json") as caught:
            with_noted_places(tmp_path, {})
        assert caught.value.hint
        path.rmdir() if path.is_dir() else path.unlink()
