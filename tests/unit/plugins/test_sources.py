"""Places of data that commands have noted, as runs and stages see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightshift.local import stage_environment
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


@pytest.mark.parametrize("text", ["", "[]", '{"A_URI": 3}', '{"A_URI"'])
def test_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.json").write_text(text)

    with pytest.raises(NightshiftError, match=r"sources\.damaged.*sources\.json is damaged") as caught:
        with_noted_places(tmp_path, {})
    assert caught.value.hint
