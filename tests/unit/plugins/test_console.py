"""What the command `nightshift` runs in a checkout; tests/rest/unit/test_wheel.py has the installed one outside of any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.console import COMMANDS, checkout_above, process_of
from training.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("devstack/__main__.py", "plugins/nightshift_plugin.py", ".venv/bin/python", "deep/er/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    return tmp_path


def test_run_uses_code_and_python_of_the_checkout_and_passes_options_on(checkout: Path) -> None:
    argv, environ = process_of("run", ["orders", "--night", "2026-02-01"], folder=checkout / "deep" / "er", environ={"PYTHONPATH": "/own"})

    assert argv == [f"{checkout}/.venv/bin/python", "-P", "-m", "devstack", "run", "orders", "--night", "2026-02-01"]
    assert environ == {"PYTHONPATH": f"{checkout}:{checkout}/plugins:/own"}


def test_run_in_a_checkout_without_an_installation_names_the_command_that_installs(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").unlink()

    with pytest.raises(SpecError, match=r"\[command\.checkout\] .* is not installed \(make -C .* install\)"):
        process_of("run", [], folder=checkout, environ={})


@pytest.mark.parametrize("name", ["show", "rollback"])
def test_ledger_in_a_checkout_is_the_checkouts_unless_a_variable_names_another(checkout: Path, name: str) -> None:
    argv, environ = process_of(name, ["orders"], folder=checkout, environ={})
    _argv, named = process_of(name, ["orders"], folder=checkout, environ={"NIGHTSHIFT_DATABASE": "sqlite:////other.db"})

    assert argv == [sys.executable, "-P", "-m", "training.registry", name, "orders"]
    assert environ == {"NIGHTSHIFT_HOME": f"{checkout}/.local"}
    assert named == {"NIGHTSHIFT_DATABASE": "sqlite:////other.db"}


@pytest.mark.parametrize(
    ("given", "environ"), [(["--server", "https://a"], {}), (["--server=https://a"], {}), ([], {"NIGHTSHIFT_SERVER": "https://a"})]
)
@pytest.mark.parametrize("name", ["show", "rollback"])
def test_a_server_that_is_named_is_asked_instead_of_the_ledger(
    tmp_path: Path, name: str, given: list[str], environ: dict[str, str]
) -> None:
    argv, found = process_of(name, ["orders", *given], folder=tmp_path, environ=environ)

    assert argv == [sys.executable, "-P", "-m", "nightshift.client.models_command", name, "orders", *given]
    assert found == environ


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("checkpoints list orders", "nightshift.client.checkpoints_command"),
        ("checkpoints export orders r best f", "training.engine.checkpoint"),
        ("datasets deprecate orders 0a --reason x", "nightshift.client.datasets_command"),
    ],
)
def test_a_server_is_asked_for_what_it_has_and_the_store_for_the_rest(tmp_path: Path, words: str, module: str) -> None:
    name, *given = words.split()
    environ = {"NIGHTSHIFT_SERVER": "https://a", "NIGHTSHIFT_STORE": "s3://b", "NIGHTSHIFT_DATABASE": "sqlite:////l.db"}
    argv, found = process_of(name, given, folder=tmp_path, environ=environ)

    assert argv == [sys.executable, "-P", "-m", module, *given]
    assert found == environ


def test_rollback_on_a_laptop_writes_to_the_mlflow_of_the_installation(checkout: Path) -> None:
    home = checkout / ".local"
    home.mkdir()
    (home / "credentials.json").write_text(json.dumps({"mlflow_password": "p"}))

    _argv, found = process_of("rollback", ["orders"], folder=checkout, environ={"NIGHTSHIFT_MLFLOW_PORT": "5001"})
    _argv, named = process_of("rollback", ["orders"], folder=checkout, environ={"MLFLOW_TRACKING_URI": "https://mlflow"})

    assert {name: value for name, value in found.items() if name.startswith("MLFLOW_")} == {
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:5001",
        "MLFLOW_TRACKING_USERNAME": "admin",
        "MLFLOW_TRACKING_PASSWORD": "p",
    }
    assert {name: value for name, value in named.items() if name.startswith("MLFLOW_")} == {"MLFLOW_TRACKING_URI": "https://mlflow"}


def test_store_in_a_checkout_is_the_checkouts_unless_a_variable_names_another(checkout: Path) -> None:
    for environ in ({}, {"NIGHTSHIFT_STORE": "s3://models/store"}, {"NIGHTSHIFT_HOME": "/elsewhere"}):
        _argv, found = process_of("checkpoints", ["list", "orders"], folder=checkout, environ=environ)
        assert found == (environ or {"NIGHTSHIFT_HOME": f"{checkout}/.local"})


def test_this_repository_is_a_checkout_that_has_every_module_of_a_subcommand() -> None:
    assert checkout_above(ROOT / "docs") == ROOT
    modules = {module for command in COMMANDS.values() for module in (command.module, command.with_server) if module}
    for module in modules:
        path = ROOT / ("plugins" if module.startswith("nightshift.") else "") / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_module_runs_the_command_in_a_checkout_without_the_wheel() -> None:
    command = [sys.executable, "-m", "nightshift.console", "check", "dags/pipelines/search_ranking.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "dags/pipelines/search_ranking.yaml: search_ranking is sound\n")


def test_empty_folder_of_the_python_path_is_left_out(checkout: Path) -> None:
    for name in ("check", "run"):
        _argv, environ = process_of(name, [], folder=checkout, environ={"PYTHONPATH": ":/own::"})
        assert environ["PYTHONPATH"].split(":")[-1] == "/own"
        assert "" not in environ["PYTHONPATH"].split(":")


def test_checkout_of_another_user_is_not_one(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        os.chown(checkout, 4711, -1)
    else:
        monkeypatch.setattr("nightshift.console.os.getuid", lambda: 4711)
    with pytest.raises(SpecError, match=r"\[command\.checkout\]"):
        process_of("services", [], folder=checkout / "deep", environ={})
