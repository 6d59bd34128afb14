"""What the shells are offered, and the examples of each `--help`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.completion import SHELLS, model_names
from nightshift.console import parser
from tests.command_examples import all_leaves, example_of

ROOT = Path(__file__).resolve().parents[3]


def offered(line: str, folder: Path, tmp_path: Path, **variables: str) -> set[str]:
    """Return what a shell would show after this line."""
    output = tmp_path / "offered"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(output),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        **variables,
    }
    command = [sys.executable, "-P", "-m", "nightshift.console"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {each.strip() for each in output.read_text().split("\v") if each.strip()}


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    for name, model in (("orders", "churn"), ("returns", "fraud")):
        (folder / f"{name}.yaml").write_text(f"name: {name}\ntrain: {{model: ranker}}\npromote: {{model: {model}, approval: automatic}}\n")
    return folder


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("nightshift ro", {"rollback"}),
        ("nightshift runs ", {"list", "metrics", "show", "start", "restore"}),
        ("nightshift runs start o", {"orders"}),
        ("nightshift runs list --state ", {"queued", "running", "success", "failed"}),
        ("nightshift approve ", {"churn", "fraud"}),
        ("nightshift rollback churn --re", {"--reason"}),
        ("nightshift show f", {"fraud"}),
        ("nightshift backfill r", {"returns"}),
        ("nightshift completion z", {"zsh"}),
        ("nightshift run --ni", {"--night"}),
        ("nightshift run r", {"returns"}),
        ("nightshift checkpoints export o", {"orders"}),
    ],
)
def test_commands_options_and_names_are_offered(pipelines: Path, tmp_path: Path, line: str, wanted: set[str]) -> None:
    found = offered(line, tmp_path, tmp_path, NIGHTSHIFT_PIPELINES=str(pipelines))
    assert wanted <= found
    assert {each for each in found if not each.startswith("-")} <= wanted | {"--help"}


def test_names_of_a_checkout_are_offered_in_it(tmp_path: Path) -> None:
    assert offered("nightshift runs start ", ROOT / "docs", tmp_path, NIGHTSHIFT_PIPELINES="") >= {"flight_delay", "search_ranking"}


def test_models_are_those_that_pipelines_promote(pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, names in ((pipelines, ["churn", "fraud"]), (ROOT / "dags" / "pipelines", ["flight_delay", "search_ranking"])):
        monkeypatch.setenv("NIGHTSHIFT_PIPELINES", str(folder))
        assert model_names() == names


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_accepts_the_code_that_is_printed_for_it(shell: str) -> None:
    command = [sys.executable, "-m", "nightshift.console", "completion", shell]
    code = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}, capture_output=True, text=True, check=True
    ).stdout
    assert "nightshift" in code
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=code, text=True, check=True, capture_output=True)


@pytest.mark.parametrize("words", sorted(words for words, _leaf in all_leaves()))
def test_help_of_each_command_has_an_example_that_the_command_accepts(words: str) -> None:
    given = example_of(dict(all_leaves())[words])
    # `runs restore` has a name of its own.
    assert " ".join(given).startswith(words.removeprefix("runs ") if words == "runs restore" else words)
    parser(given).parse_args(given)
