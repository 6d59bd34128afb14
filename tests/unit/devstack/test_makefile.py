"""What users give to `make` reaches the program as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# The variables by which one make tells another of itself: under `make test` they would be this test's.
OWN = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
HOSTILE = "it's; touch made; $(shell touch made) `touch made` $$(touch made)"


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize(
    ("target", "options"),
    [("run", {"NIGHT": "--night=", "CONF": "--conf "}), ("backfill", {"FROM": "--from=", "TO": "--to="})],
)
def test_value_with_quotes_and_commands_is_one_argument_and_runs_nothing(
    tmp_path: Path, target: str, options: dict[str, str], by_environment: bool
) -> None:
    values = {name: f"{HOSTILE} {name}" for name in ("PIPELINE", *options)}
    given = [] if by_environment else [f"{name}={value}" for name, value in values.items()]
    command = ["make", "--file", str(ROOT / "Makefile"), "INSTALLED=", "HASH=", "DEV_HASH=", "PYTHON=", "SERVICES=printf '%s\\n'", *given]
    environment = {**OWN, **(values if by_environment else {})}

    done = subprocess.run([*command, target], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    expected = [target, values["PIPELINE"]]
    for name, option in options.items():
        expected += [option.rstrip(), values[name]] if option.endswith(" ") else [option + values[name]]
    assert done.stdout.splitlines() == expected
    assert not list(tmp_path.iterdir())


def test_second_line_of_a_value_is_no_command(tmp_path: Path) -> None:
    value = '{"train":\n{"epochs": 5}}'
    command = ["make", "--file", str(ROOT / "Makefile"), "INSTALLED=", "HASH=", "DEV_HASH=", "PYTHON=", "SERVICES=printf '%s\\n'"]

    done = subprocess.run([*command, f"CONF={value}", "run"], env=OWN, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == ["run", "search_ranking", "--conf", '{"train": {"epochs": 5}}'], done.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_installation_prints_progress_and_ends_with_the_exit_code_of_pip(tmp_path: Path, code: int) -> None:
    for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt"):
        (tmp_path / name).write_text("torch==1\n")
    fake = tmp_path / "pip"
    # Ends once it has been announced twice: its caller's output is the file.
    fake.write_text(f"#!/bin/sh\nuntil [ $(grep -c still said) -ge 2 ]; do sleep 0.05; done\nexit {code}\n")
    fake.chmod(0o755)
    arguments = ["INSTALLED=installed", "HASH=", "DEV_HASH=", "PYTHON=false", f"PIP={fake}", "TICK_SECONDS=0.05", "BIN=bin"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()

    command = ["make", "--file", str(ROOT / "Makefile"), *arguments, "install"]
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(command, env=OWN, cwd=tmp_path, stdout=subprocess.PIPE, stderr=said, check=False)

    # `eval "$(make env)"` would take it as commands.
    assert done.stdout == b""

    lines = (tmp_path / "said").read_text().splitlines()
    assert lines[:3] == ["installing torch (once)", "  still installing", "  still installing"]
    assert (done.returncode == 0) == (code == 0)
    assert (tmp_path / "installed").exists() == (code == 0)
