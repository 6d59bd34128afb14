"""The logins of an installation, and who may read what it writes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.components import components
from devstack.environment import airflow_home, credentials, environment, prepare_home, shell_lines
from devstack.status import addresses
from nightshift.execution.stage_environment import stage_environment
from nightshift.settings import Settings
from training.errors import NightshiftError
from training.spec import load_spec

ROOT = Path(__file__).resolve().parents[3]
MAKE_SECRETS = """
import json
from devstack.environment import credentials
from nightshift.settings import Settings
print("ready", flush=True)
input()
print(json.dumps(credentials(Settings.from_environment())))
"""


def test_secrets_are_made_once_and_readable_by_their_user_alone(settings: Settings) -> None:
    first = credentials(settings)
    prepare_home(settings)

    assert credentials(settings) == first
    assert len(first["jwt_secret"]) >= 64
    for path in (settings.home / "credentials.json", airflow_home(settings) / "passwords.json", settings.home / "mlflow" / "accounts.ini"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_secrets_made_by_several_commands_at_once_are_the_same(settings: Settings) -> None:
    variables = {**os.environ, "NIGHTSHIFT_HOME": str(settings.home), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    commands = [
        subprocess.Popen([sys.executable, "-c", MAKE_SECRETS], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for command in commands:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
    for command in commands:
        assert command.stdin is not None
        command.stdin.write("\n")
        command.stdin.flush()
    seen = [json.loads(command.communicate(timeout=240)[0]) for command in commands]

    assert seen == [credentials(settings)] * len(commands)
    assert not list(settings.home.glob(".credentials*"))


def test_missing_secrets_are_added_and_the_others_stay(settings: Settings) -> None:
    path = settings.home / "credentials.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"airflow_password": "kept", "unknown": "kept too"}))

    made = credentials(settings)

    assert (made["airflow_password"], made["unknown"]) == ("kept", "kept too")
    assert len(made["jwt_secret"]) >= 64
    assert made["mlflow_password"]
    assert made["approver_password"]
    assert json.loads(path.read_text()) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


DAMAGED_SECRETS = {
    "empty file": "",
    "cut": '{"airflow_password": "a',
    "list": "[]",
    "number": '{"airflow_password": 3}',
    "empty secret": '{"airflow_password": ""}',
    "blank secret": '{"jwt_secret": " "}',
    "secret with a line end": '{"mlflow_password": "a\\nadmin_username = eve"}',
    "cut key": '{"fernet_key": "c2hvcnQ="}',
    "nested": "[" * 100_000,
}


@pytest.mark.parametrize("text", DAMAGED_SECRETS.values(), ids=DAMAGED_SECRETS)
def test_damaged_secrets_are_an_error_that_names_the_file(settings: Settings, text: str) -> None:
    path = settings.home / "credentials.json"
    path.parent.mkdir()
    path.write_text(text)

    with pytest.raises(NightshiftError, match=r"credentials\.json is damaged.*make stop") as caught:
        credentials(settings)
    assert caught.value.code == "services.credentials"
    assert path.read_text() == text
    assert "eve" not in str(caught.value)


def test_folder_in_place_of_the_secrets_is_an_error_that_names_it(settings: Settings) -> None:
    (settings.home / "credentials.json").mkdir(parents=True)

    with pytest.raises(NightshiftError, match=r"services\.credentials.*credentials\.json cannot be read: Is a directory.*make stop"):
        credentials(settings)


def test_airflow_has_a_second_user_who_may_approve_what_the_first_one_started(settings: Settings) -> None:
    prepare_home(settings)
    passwords = json.loads((airflow_home(settings) / "passwords.json").read_text(encoding="utf-8"))

    assert environment(settings, {})["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin,approver:user"
    assert set(passwords) == {"admin", "approver"}
    assert passwords["admin"] != passwords["approver"]
    text = addresses(settings)
    assert all(f"login {name} / {password}" in text for name, password in passwords.items())
    assert f"http://127.0.0.1:28050  login admin / {credentials(settings)['mlflow_password']}" in text


def test_every_process_has_mlflows_login_and_unpickles_nothing(settings: Settings) -> None:
    made = environment(settings, {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "true", "MLFLOW_TRACKING_USERNAME": "x"})
    stage = stage_environment(settings, "evaluate", load_spec(ROOT / "dags" / "pipelines" / "search_ranking.yaml"), made)
    (server,) = [component.environment for component in components(settings) if component.name == "mlflow"]

    for variables in (made, stage):
        assert variables["MLFLOW_TRACKING_USERNAME"] == "admin"
        assert variables["MLFLOW_TRACKING_PASSWORD"] == credentials(settings)["mlflow_password"]
    assert {variables["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] for variables in (made, stage, server)} == {"false"}
    assert {component.environment["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] for component in components(settings)} == {"false"}
    assert "export MLFLOW_TRACKING_PASSWORD=" in shell_lines(settings)


def test_the_login_to_another_tracking_server_is_the_users_own(settings: Settings) -> None:
    elsewhere = Settings.from_environment({"NIGHTSHIFT_HOME": str(settings.home), "MLFLOW_TRACKING_URI": "https://mlflow.example"})

    assert environment(elsewhere, {"MLFLOW_TRACKING_USERNAME": "ann"})["MLFLOW_TRACKING_USERNAME"] == "ann"
    assert "MLFLOW_TRACKING_PASSWORD" not in environment(elsewhere, {})
    assert "https://mlflow.example  login" not in addresses(elsewhere)


def test_new_credentials_get_mlflow_a_new_account_and_old_ones_keep_it(settings: Settings) -> None:
    prepare_home(settings)
    accounts = settings.home / "mlflow" / "accounts.db"
    accounts.touch()
    prepare_home(settings)
    assert accounts.exists()

    (settings.home / "credentials.json").unlink()
    prepare_home(settings)
    assert not accounts.exists()


@pytest.mark.parametrize("name", ["airflow/passwords.json", "mlflow/accounts.ini"])
def test_folder_in_place_of_a_file_that_start_writes_is_an_error_that_names_it(settings: Settings, name: str) -> None:
    (settings.home / name).mkdir(parents=True)

    with pytest.raises(NightshiftError, match=rf"home\.write.*{name} cannot be written") as caught:
        prepare_home(settings)
    assert caught.value.hint
    assert not list((settings.home / name).parent.glob(".*"))


def test_another_user_of_the_machine_cannot_enter_the_installation(settings: Settings) -> None:
    settings.home.mkdir(mode=0o755)
    settings.home.chmod(0o755)

    prepare_home(settings)

    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700


def test_what_a_command_of_the_services_writes_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    script = "from devstack.__main__ import main; main(['status']); open('made', 'w').close()"
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "PYTHONPATH": path, "NIGHTSHIFT_HOME": str(tmp_path / "home")}
    subprocess.run(["sh", "-c", 'umask 022 && exec "$0" -c "$1"', sys.executable, script], cwd=tmp_path, env=environment, check=True)  # noqa: S607

    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600
