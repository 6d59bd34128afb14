"""Places of data that commands have noted, as runs and stages see them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.settings import Settings
from nightshift.source_uris import places_of, resolved
from training.errors import NightshiftError, SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec


def note(home: Path, **places: str) -> None:
    (home / "sources.json").write_text(json.dumps(places))


def settings_of(home: Path, places: str = "") -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_HOME": str(home), "NIGHTSHIFT_PLACES": places})


def test_own_environment_counts_before_what_is_noted(tmp_path: Path) -> None:
    note(tmp_path, FLIGHTS_URI="/noted", SHOP_URI="/noted")

    seen = places_of(settings_of(tmp_path), {"FLIGHTS_URI": "/exported", "SHOP_URI": " ", "PATH": ""})

    assert seen == {"FLIGHTS_URI": "/exported", "SHOP_URI": "/noted"}


def test_without_a_file_the_places_are_those_that_the_operator_lists(tmp_path: Path) -> None:
    environ = {"FLIGHTS_URI": "/exported", "ORDERS_URI": "/not listed", "ALERTS_URI": "https://hooks.test/secret"}
    assert places_of(settings_of(tmp_path, "FLIGHTS_URI, SHOP_URI"), environ) == {"FLIGHTS_URI": "/exported"}


@pytest.mark.parametrize("names", ["AIRFLOW_X_URI", "SHOP", "SHOP_URI,MLFLOW_TRACKING_URI", "SHOP_URI=/secret", "/secret"])
def test_list_with_what_is_no_name_of_a_place_is_refused_without_showing_it(tmp_path: Path, names: str) -> None:
    with pytest.raises(SpecError) as caught:
        settings_of(tmp_path, names)
    assert caught.value.code == "settings.places"
    assert "secret" not in str(caught.value)


def test_a_place_is_no_webhook(tmp_path: Path) -> None:
    note(tmp_path, SHOP_URI="/noted")
    spec = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")
    with pytest.raises(SpecError, match="ALERTS_URI is a place of data") as caught:
        resolved(spec, settings_of(tmp_path, "ALERTS_URI"), {"ALERTS_URI": "https://hooks.test/secret"})
    assert "secret" not in str(caught.value)


DAMAGED = {
    "empty": "",
    "list": "[]",
    "cut": '{"A_URI"',
    "number": '{"A_URI": 3}',
    "name that is none of a place": '{"PATH": "/evil"}',
    "name that Airflow reads": '{"AIRFLOW__CORE__X_URI": "/evil"}',
    "nested": "[" * 100_000,
    **{f"value {value!r}": json.dumps({"A_URI": value}) for value in ("somewhere", "//host/share", "/a\nb", "", "/")},
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.json").write_text(text)

    with pytest.raises(NightshiftError, match=r"sources\.damaged.*sources\.json is damaged") as caught:
        places_of(settings_of(tmp_path), {})
    assert caught.value.hint


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
            places_of(settings_of(tmp_path), {})
        assert caught.value.hint
        path.rmdir() if path.is_dir() else path.unlink()
