"""The environment of the processes of an installation, the places noted for it, and the lines that a shell evaluates."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.environment import airflow_home, environment, shell_lines
from devstack.sources_file import note_places
from nightshift.settings import Settings
from nightshift.source_uris import noted_places

ROOT = Path(__file__).resolve().parents[3]


def test_every_address_follows_a_changed_port(settings: Settings) -> None:
    made = environment(settings, {})

    assert made["AIRFLOW__API__PORT"] == "28080"
    assert made["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:28080"
    assert made["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:28080/execution/"
    assert made["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:28050"


def test_another_airflows_settings_do_not_leak_in(settings: Settings) -> None:
    made = environment(
        settings, {"AIRFLOW_HOME": "/elsewhere", "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor", "AIRFLOW_CONFIG": "/x", "LANG": "C"}
    )

    assert made["AIRFLOW_HOME"] == str(airflow_home(settings))
    assert made["AIRFLOW__CORE__EXECUTOR"] == "devstack.executor.SleepTolerantLocalExecutor"
    assert "AIRFLOW_CONFIG" not in made
    assert made["LANG"] == "C"


def test_everything_written_lies_in_the_installations_home(settings: Settings) -> None:
    made = environment(settings, {})

    for name in (
        "AIRFLOW_HOME",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "NIGHTSHIFT_STORE",
        "SHOP_URI",
    ):
        assert str(settings.home) in made[name], name


def test_the_users_own_place_of_data_and_of_packages_are_kept(settings: Settings) -> None:
    made = environment(settings, {"SHOP_URI": "s3://shop", "PYTHONPATH": "/own"})

    assert made["SHOP_URI"] == "s3://shop"
    assert made["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(ROOT / "plugins"), "/own"]


def test_environment_of_a_prepared_shell_is_the_same_again(settings: Settings) -> None:
    once = environment(settings, {"PATH": "/bin"})

    assert environment(settings, once) == once


def test_a_shell_evaluates_the_lines_for_any_values(tmp_path: Path) -> None:
    home = tmp_path / "it's $HOME"
    lines = shell_lines(Settings.from_environment({"NIGHTSHIFT_HOME": str(home)}))

    seen = subprocess.run(["sh", "-c", f'{lines}\nprintf %s "$NIGHTSHIFT_HOME"'], capture_output=True, text=True, check=True).stdout  # noqa: S607

    assert seen == str(home)


def test_clean_shell_finds_the_packages_although_make_has_set_their_path_for_itself(settings: Settings) -> None:
    path = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    by_make = {**os.environ, "PYTHONPATH": path, "NIGHTSHIFT_HOME": str(settings.home)}
    command = [sys.executable, "-m", "devstack", "env"]
    lines = subprocess.run(command, env=by_make, capture_output=True, text=True, check=True).stdout

    script = f"{lines}\npython -c 'import nightshift.settings, training.registry; print(\"found\")' && nightshift --version"
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(settings.home)}
    seen = subprocess.run(["/bin/sh", "-c", script], env=clean, cwd=settings.home, capture_output=True, text=True, check=False)

    assert seen.stdout.startswith("found\nnightshift "), seen.stderr


def test_help_names_every_command() -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    command = [sys.executable, "-m", "devstack", "--help"]
    text = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True).stdout

    assert all(name in text for name in ("run", "start", "stop", "status", "follow", "env", "supervise")), shlex.join(command)


def test_no_limit_of_airflow_that_counts_time_asleep_can_end_a_running_task(settings: Settings) -> None:
    made = environment(settings, {})

    assert int(made["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"]) >= 10 * 365 * 86_400
    assert int(made["AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME"]) >= 30 * 86_400


def test_noted_place_stays_until_another_or_an_empty_one_is_set(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for name in [name for name in os.environ if name.endswith("_URI")]:
        monkeypatch.delenv(name)
    shop = (settings.home / "data" / "shop").as_uri()
    monkeypatch.setenv("FLIGHTS_URI", "/flights")
    note_places(settings, said.append)
    monkeypatch.delenv("FLIGHTS_URI")
    note_places(settings, said.append)
    assert noted_places(settings.home) == {"FLIGHTS_URI": "/flights", "SHOP_URI": shop}
    assert environment(settings)["FLIGHTS_URI"] == "/flights"
    assert said == []

    monkeypatch.setenv("FLIGHTS_URI", "s3://bucket/flights")
    note_places(settings, said.append)
    assert said == ["FLIGHTS_URI is now s3://bucket/flights (before: /flights), from the next run on"]
    monkeypatch.setenv("FLIGHTS_URI", "")
    note_places(settings, said.append)

    assert noted_places(settings.home) == {"SHOP_URI": shop}
    assert stat.S_IMODE((settings.home / "sources.json").stat().st_mode) == 0o600


def test_what_may_be_a_secret_is_never_noted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "FLIGHTS_URI": "s3://key:password@bucket",
        "ALERTS_URI": "https://hooks.example.com/T0/secret",
        "ORDERS_URI": "s3://bucket/x?password=secret",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/secret",
        "MLFLOW_TRACKING_URI": "file:///secret",
    }.items():
        monkeypatch.setenv(name, value)

    note_places(settings, lambda _text: None)

    assert noted_places(settings.home) == {"SHOP_URI": (settings.home / "data" / "shop").as_uri()}
