"""What the command `nightshift` runs in a checkout; tests/rest/unit/test_wheel.py has the installed one outside of any."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nightshift.client import local_reader
from nightshift.console import COMMANDS, OF_DEVSTACK, checkout_above, devstack_process, main, run
from training.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("devstack/__main__.py", "plugins/nightshift_plugin.py", ".venv/bin/python", "deep/er/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    return tmp_path


def test_run_uses_code_and_python_of_the_checkout_and_passes_options_on(checkout: Path) -> None:
    argv, environ = devstack_process(
        "run", ["orders", "--night", "2026-02-01"], folder=checkout / "deep" / "er", environ={"PYTHONPATH": "/own"}
    )

    assert argv == [f"{checkout}/.venv/bin/python", "-P", "-m", "devstack", "run", "orders", "--night", "2026-02-01"]
    assert environ == {"PYTHONPATH": f"{checkout}:{checkout}/plugins:/own"}


def test_run_in_a_checkout_without_an_installation_names_the_command_that_installs(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").unlink()

    with pytest.raises(SpecError, match=r"\[command\.checkout\] .* is not installed \(make -C .* install\)"):
        devstack_process("run", [], folder=checkout, environ={})


def typed(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in a folder, as a shell does."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["nightshift", *words.split()])
    return main()


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIGHTSHIFT_HOME", "NIGHTSHIFT_DATABASE", "NIGHTSHIFT_STORE", "NIGHTSHIFT_SERVER"):
        # Set first: what the command sets is undone, too.
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("words", ["show", "datasets list", "checkpoints list orders"])
def test_ledger_and_store_in_a_checkout_are_the_checkouts(
    checkout: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / ".local").mkdir()
    assert typed(words, checkout / "deep", monkeypatch) == 0
    assert {"show": "nothing was decided", "datasets list": "no snapshot"}.get(words, "no checkpoint") in capsys.readouterr().out
    assert list((checkout / ".local").iterdir())


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(("variable", "words"), [("NIGHTSHIFT_DATABASE", "show"), ("NIGHTSHIFT_STORE", "checkpoints list orders")])
def test_ledger_and_store_in_a_checkout_are_those_that_variables_name(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, variable: str, words: str
) -> None:
    other = tmp_path_factory.mktemp("other")
    monkeypatch.setenv(variable, f"sqlite:///{other}/ledger.db" if variable == "NIGHTSHIFT_DATABASE" else str(other / "store"))
    assert typed(words, checkout, monkeypatch) == 0
    assert list(other.iterdir())
    assert not (checkout / ".local").exists()


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("words", ["show", "rollback orders --reason x --yes", "datasets list"])
def test_without_variables_outside_of_a_checkout_the_ledgers_place_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert typed(words, tmp_path, monkeypatch) == 64
    assert "[command.ledger]" in capsys.readouterr().err


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("option", ["--server https://a", "--server=https://a", ""])
@pytest.mark.parametrize("words", ["show orders", "rollback orders --reason x", "datasets list orders", "checkpoints list orders"])
def test_a_server_that_is_named_is_asked_instead_of_ledger_and_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, option: str
) -> None:
    if not option:
        monkeypatch.setenv("NIGHTSHIFT_SERVER", "https://a")
    assert typed(f"{words} {option}", tmp_path, monkeypatch) == 77
    assert "[access.unauthenticated] there is no token for https://a" in capsys.readouterr().err


def test_what_a_server_does_not_have_is_read_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_SERVER", "https://a")
    monkeypatch.setenv("NIGHTSHIFT_STORE", str(tmp_path / "store"))
    assert run(["checkpoints", "export", "orders", "r", "best", "f"]) == 64
    assert "[checkpoint.unknown]" in capsys.readouterr().err


def test_rollback_on_a_laptop_writes_to_the_mlflow_of_the_installation(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = checkout / ".local"
    home.mkdir()
    (home / "credentials.json").write_text(json.dumps({"mlflow_password": "p"}))
    laptop = {"NIGHTSHIFT_HOME": str(home), "NIGHTSHIFT_MLFLOW_PORT": "5001"}

    assert local_reader.mlflow_variables(laptop) == {
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:5001",
        "MLFLOW_TRACKING_USERNAME": "admin",
        "MLFLOW_TRACKING_PASSWORD": "p",
    }
    assert local_reader.mlflow_variables({**laptop, "MLFLOW_TRACKING_URI": "https://mlflow"}) == {}


def test_this_repository_is_a_checkout_that_has_every_module_of_a_subcommand() -> None:
    assert checkout_above(ROOT / "docs") == ROOT
    for name, command in COMMANDS.items():
        assert importlib.util.find_spec(command.module), name
        assert name in OF_DEVSTACK or hasattr(importlib.import_module(command.module), command.function), name


def test_module_runs_the_command_in_a_checkout_without_the_wheel() -> None:
    command = [sys.executable, "-m", "nightshift.console", "check", "dags/pipelines/search_ranking.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "dags/pipelines/search_ranking.yaml: search_ranking is sound\n")


def test_empty_folder_of_the_python_path_is_left_out(checkout: Path) -> None:
    _argv, environ = devstack_process("run", [], folder=checkout, environ={"PYTHONPATH": ":/own::"})
    assert environ["PYTHONPATH"].split(":")[-1] == "/own"
    assert "" not in environ["PYTHONPATH"].split(":")


def test_checkout_of_another_user_is_not_one(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        os.chown(checkout, 4711, -1)
    else:
        monkeypatch.setattr("nightshift.console.os.getuid", lambda: 4711)
    with pytest.raises(SpecError, match=r"\[command\.checkout\]"):
        devstack_process("services", [], folder=checkout / "deep", environ={})


def test_version_of_a_checkout_is_that_of_its_project(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    with pytest.raises(SystemExit):
        run(["--version"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"nightshift {project['version']} (a checkout)\n"
