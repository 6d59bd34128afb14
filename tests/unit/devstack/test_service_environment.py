"""What the services are started with, and when they are outdated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.components import components, note_database_is_current, ports
from devstack.environment import (
    airflow_home,
    airflow_settings,
    environment,
    mlflow_home,
    prepare_home,
)
from devstack.service_environment import airflow_environment, digests
from devstack.shutdown import running
from nightshift.settings import Settings
from training.errors import NightshiftError

ROOT = Path(__file__).resolve().parents[3]


def test_digests_tell_a_changed_setting_and_hide_its_value(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERTS_URI", "https://name:secret@hooks.example.com")
    before = digests(settings)
    monkeypatch.setenv("ALERTS_URI", "https://hooks.example.com")
    after = digests(settings)

    assert {name for name in after if after[name] != before.get(name)} == {"ALERTS_URI"}
    assert "secret" not in str(before)
    assert "code" in before


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "OMP_WAIT_POLICY", "NIGHTSHIFT_RETENTION"])
def test_change_of_a_documented_variable_makes_running_services_outdated(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = digests(settings)
    monkeypatch.setenv(name, "")
    assert digests(settings).keys() - before.keys() == {name}


def test_places_of_data_and_variables_that_no_pipeline_names_need_no_restart(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests(settings)
    monkeypatch.setenv("FLIGHTS_URI", "file:///flights")
    monkeypatch.setenv("SHOP_URI", "s3://shop")
    monkeypatch.setenv("OTHER_TEAMS_URI", "https://elsewhere.example.com")

    assert digests(settings) == before


def test_services_look_places_up_and_have_none_of_their_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_URI", "file:///flights")
    monkeypatch.setenv("ALERTS_URI", "https://hooks.example.com")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials")

    for component in components(settings):
        assert not {"FLIGHTS_URI", "SHOP_URI"} & component.environment.keys(), component.name
        is_airflow = not component.name.startswith("mlflow")
        assert component.environment.get("ALERTS_URI") == ("https://hooks.example.com" if is_airflow else None)
        assert component.environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") == ("/v2/credentials" if is_airflow else None)


OF_A_SHELL = {
    "HOME": "/home/ada",
    "LANG": "C.UTF-8",
    "GITHUB_TOKEN": "secret",
    "NIGHTSHIFT_TOKEN": "secret",
    "NIGHTSHIFT_SERVER": "https://airflow.example.com",
    "NIGHTSHIFT_WEBHOOK_SECRET": "secret",
    "NIGHTSHIFT_STAGE_MEMORY": "4GiB",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "MLFLOW_BACKEND_STORE_URI": "postgresql://ada:secret@db/mlflow",
    "MLFLOW_SERVER_X_FRAME_OPTIONS": "DENY",
    "AIRFLOW_CONN_SLACK_DEFAULT": "slack://:secret@",
    "ALERTS_URI": "https://hooks.example.com/secret",
    "WAREHOUSE_URI": "postgresql://ada:secret@db/x",
    "SHOP_URI": "s3://shop",
}


EVERYWHERE = {
    *("PATH", "HOME", "LANG", "PYTHONPATH", "PYTHONWARNINGS", "DO_NOT_TRACK", "GIT_PYTHON_REFRESH"),
    *("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "MLFLOW_DISABLE_TELEMETRY"),
}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - {"PATH"}:
        monkeypatch.delenv(name)
    for name, value in OF_A_SHELL.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("shell")
def test_mlflows_server_gets_its_own_variables_alone(settings: Settings) -> None:
    own = {"MLFLOW_SERVER_X_FRAME_OPTIONS", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"}
    own |= {"MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_FLASK_SERVER_SECRET_KEY"}
    for component in components(settings):
        if component.name.startswith("mlflow"):
            assert component.environment.keys() == EVERYWHERE | own, component.name


@pytest.mark.usefixtures("shell")
def test_airflows_services_get_the_settings_and_no_token_of_a_client_nor_what_a_shell_has_besides(settings: Settings) -> None:
    own = {
        *("NIGHTSHIFT_HOME", "NIGHTSHIFT_STORE", "NIGHTSHIFT_DATABASE", "NIGHTSHIFT_PIPELINES", "NIGHTSHIFT_EXPECTATIONS"),
        *("NIGHTSHIFT_AIRFLOW_PORT", "NIGHTSHIFT_MLFLOW_PORT", "NIGHTSHIFT_STAGE_MEMORY", "NIGHTSHIFT_WEBHOOK_SECRET"),
        *("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "ALERTS_URI", "AWS_SECRET_ACCESS_KEY"),
    }
    services = [component for component in components(settings) if not component.name.startswith("mlflow")]
    assert {component.name for component in services} >= {"scheduler", "dag-processor", "api-server", "triggerer"}
    for component in services:
        assert component.environment.keys() == EVERYWHERE | own | airflow_settings(settings).keys(), component.name


def test_every_setting_of_nightshift_reaches_airflows_services_but_those_of_a_client(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8").partition("## Set by Nightshift")[0]
    documented = set(re.findall(r"^\| `(NIGHTSHIFT_\w+)`", text, re.MULTILINE))
    assert "NIGHTSHIFT_TABLE_MEMORY" in documented
    for name in documented:
        monkeypatch.setenv(name, "1")
    assert documented - airflow_environment(settings).keys() == {"NIGHTSHIFT_TOKEN", "NIGHTSHIFT_SERVER"}


def test_services_with_packages_of_users_are_not_old_for_the_command_that_started_them(settings: Settings) -> None:
    shop_models = ROOT / "docs" / "examples" / "cancelled_orders"
    code = "from devstack.service_environment import *; print(digests(Settings.from_environment()))"
    command = {**os.environ, "NIGHTSHIFT_HOME": str(settings.home), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    command |= {"NIGHTSHIFT_MODEL_PATH": str(shop_models), "NIGHTSHIFT_MODEL_PACKAGES": "shop_models"}
    supervisor = environment(Settings.from_environment(command), command)

    seen = [
        subprocess.run(
            [sys.executable, "-c", code], env=variables, cwd=settings.home.parent, capture_output=True, text=True, check=True
        ).stdout
        for variables in (command, supervisor)
    ]

    assert seen[0] == seen[1]


def test_first_start_makes_the_databases_of_airflow_and_mlflow_in_drafts_and_later_ones_do_not(settings: Settings) -> None:
    prepare_home(settings)
    first = {component.name: component for component in components(settings)}
    assert first["scheduler"].needs == "airflow-database"
    assert first["mlflow"].needs == "mlflow-databases"
    for step in ("airflow-database", "mlflow-databases"):
        assert "devstack.sqlite_migration" in first[step].command, "a killed migration leaves a database that none accepts"

    (airflow_home(settings) / "airflow.db").touch()
    for name in ("mlflow.db", "accounts.db"):
        (mlflow_home(settings) / name).touch()
    note_database_is_current(settings)
    later = {component.name: component for component in components(settings)}

    assert not {"airflow-database", "mlflow-databases"} & later.keys()
    assert {component.needs for component in later.values()} == {""}


def test_another_tracking_server_means_that_none_of_ours_is_started(settings: Settings) -> None:
    elsewhere = Settings.from_environment({"NIGHTSHIFT_HOME": str(settings.home), "MLFLOW_TRACKING_URI": "https://mlflow.example"})

    assert "mlflow" in {component.name for component in components(settings)}
    assert "mlflow" not in {component.name for component in components(elsewhere)}
    assert [port.service for port in ports(elsewhere)] == ["Airflow"]


DAMAGED_STATES = {
    "list": "[]",
    "nothing in it": "{}",
    "nested": "[" * 100_000,
    "group of processes": '{"supervisor": {"pid": -1, "start_ticks": 0, "boot_id": "b"}, "components": [], "settings": {}}',
    "text": '{"supervisor": {"pid": "1", "start_ticks": 0, "boot_id": "b"}, "components": [], "settings": {}}',
    "component": '{"supervisor": {"pid": 1, "start_ticks": 0, "boot_id": "b"}, "components": [3], "settings": {}}',
}


@pytest.mark.parametrize("text", DAMAGED_STATES.values(), ids=DAMAGED_STATES)
def test_damaged_state_of_the_services_is_an_error_that_names_the_file(settings: Settings, text: str) -> None:
    settings.home.mkdir()
    (settings.home / "services.json").write_text(text)

    with pytest.raises(NightshiftError, match=r"services\.state.*services\.json is damaged.*delete it"):
        running(settings.home)
