from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.components import components, note_database_is_current, ports
from devstack.environment import (
    airflow_home,
    airflow_settings,
    credentials,
    environment,
    mlflow_home,
    prepare_home,
    shell_lines,
)
from devstack.service_environment import airflow_environment, digests
from devstack.shutdown import running
from devstack.sources_file import note_places
from devstack.status import addresses
from nightshift.execution.stage_environment import stage_environment
from nightshift.settings import Settings
from nightshift.source_uris import noted_places
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


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    variables = {"NIGHTSHIFT_HOME": str(tmp_path / "home"), "NIGHTSHIFT_AIRFLOW_PORT": "28080", "NIGHTSHIFT_MLFLOW_PORT": "28050"}
    return Settings.from_environment(variables)


def test_every_address_follows_a_changed_port(settings: Settings) -> None:
    made = environment(settings, {})

    assert made["AIRFLOW__API__PORT"] == "28080"
    assert made["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:28080"
    assert made["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:28080/execution/"
    assert made["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:28050"


@pytest.mark.parametrize(("num_files", "seconds"), [(0, "10"), (5, "10"), (20, "10"), (21, "11"), (200, "100"), (1_000, "500")])
def test_files_are_parsed_as_often_as_a_fifth_of_a_core_allows(tmp_path: Path, num_files: int, seconds: str) -> None:
    pipelines = tmp_path / "dags" / "pipelines"
    pipelines.mkdir(parents=True)
    for number in range(num_files):
        (tmp_path / "dags" / f"pipeline_{number}.py").touch()
    made = environment(Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path / "home"), "NIGHTSHIFT_PIPELINES": str(pipelines)}), {})
    assert made["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] == seconds


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


def test_secret_that_an_older_installation_lacks_is_added_and_the_others_stay(settings: Settings) -> None:
    path = settings.home / "credentials.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"airflow_password": "kept", "of_another_version": "kept too"}))

    made = credentials(settings)

    assert (made["airflow_password"], made["of_another_version"]) == ("kept", "kept too")
    assert len(made["jwt_secret"]) >= 64
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


@pytest.mark.parametrize("name", ["airflow/passwords.json", "mlflow/accounts.ini"])
def test_folder_in_place_of_a_file_that_start_writes_is_an_error_that_names_it(settings: Settings, name: str) -> None:
    (settings.home / name).mkdir(parents=True)

    with pytest.raises(NightshiftError, match=rf"home\.write.*{name} cannot be written") as caught:
        prepare_home(settings)
    assert caught.value.hint
    assert not list((settings.home / name).parent.glob(".*"))


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


def test_airflow_has_a_second_user_who_may_approve_what_the_first_one_started(settings: Settings) -> None:
    prepare_home(settings)
    passwords = json.loads((airflow_home(settings) / "passwords.json").read_text(encoding="utf-8"))

    assert environment(settings, {})["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin,approver:user"
    assert set(passwords) == {"admin", "approver"}
    assert passwords["admin"] != passwords["approver"]
    text = addresses(settings)
    assert all(f"login {name} / {password}" in text for name, password in passwords.items())
    assert f"http://127.0.0.1:28050  login admin / {credentials(settings)['mlflow_password']}" in text


def test_secrets_of_an_older_installation_are_kept_and_new_ones_added(settings: Settings) -> None:
    settings.home.mkdir()
    (settings.home / "credentials.json").write_text('{"airflow_password": "old", "jwt_secret": "kept"}', encoding="utf-8")

    made = credentials(settings)

    assert (made["airflow_password"], made["jwt_secret"]) == ("old", "kept")
    assert made["mlflow_password"]
    assert made["approver_password"]
    assert credentials(settings) == made


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


def test_a_shell_evaluates_the_lines_for_any_values(tmp_path: Path) -> None:
    home = tmp_path / "it's $HOME"
    lines = shell_lines(Settings.from_environment({"NIGHTSHIFT_HOME": str(home)}))

    seen = subprocess.run(["sh", "-c", f'{lines}\nprintf %s "$NIGHTSHIFT_HOME"'], capture_output=True, text=True, check=True).stdout  # noqa: S607

    assert seen == str(home)


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


def test_clean_shell_finds_the_packages_although_make_has_set_their_path_for_itself(settings: Settings) -> None:
    path = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    by_make = {**os.environ, "PYTHONPATH": path, "NIGHTSHIFT_HOME": str(settings.home)}
    command = [sys.executable, "-m", "devstack", "env"]
    lines = subprocess.run(command, env=by_make, capture_output=True, text=True, check=True).stdout

    script = f"{lines}\npython -c 'import nightshift.settings, training.registry; print(\"found\")' && nightshift --version"
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(settings.home)}
    seen = subprocess.run(["/bin/sh", "-c", script], env=clean, cwd=settings.home, capture_output=True, text=True, check=False)

    assert seen.stdout.startswith("found\nnightshift "), seen.stderr


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


def test_help_names_every_command() -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    command = [sys.executable, "-m", "devstack", "--help"]
    text = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True).stdout

    assert all(name in text for name in ("run", "start", "stop", "status", "follow", "env", "supervise")), shlex.join(command)


def test_no_limit_of_airflow_that_counts_time_asleep_can_end_a_running_task(settings: Settings) -> None:
    made = environment(settings, {})

    assert int(made["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"]) >= 10 * 365 * 86_400
    assert int(made["AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME"]) >= 30 * 86_400
