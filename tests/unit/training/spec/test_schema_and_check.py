"""The editors' JSON Schema, and the check on the command line."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from training.contracts import ExitCode
from training.spec import check, schema
from training.spec.reader.yaml import read_document

Changed = Callable[..., bytes]

R = "search_ranking"


def test_schema_file_is_current(pipelines: Path) -> None:
    assert (pipelines / schema.SCHEMA_NAME).read_text(encoding="utf-8") == schema.schema_text()


@pytest.mark.parametrize("name", [R, "flight_delay"])
def test_shipped_pipelines_fit_the_schema_and_name_it(pipelines: Path, name: str) -> None:
    text = (pipelines / f"{name}.yaml").read_bytes()
    assert text.startswith(f"# yaml-language-server: $schema={schema.SCHEMA_NAME}\n".encode())
    jsonschema.Draft202012Validator(schema.pipeline_schema()).validate(read_document(text, name).value)


@pytest.mark.parametrize(
    "change",
    [
        ("owner:", "ownr:"),
        ("epochs: 3", "epochs: 0"),
        ("hidden: [64, 32]", "hiden: [64, 32]"),
        ("window: 30d", "window: 30 days"),
        ("name: search_ranking", "name: A"),
        ("kind: parquet", "kind: orc"),
    ],
)
def test_schema_refuses_what_the_loader_refuses(changed: Changed, change: tuple[str, str]) -> None:
    value = read_document(changed(R, change), R).value
    assert list(jsonschema.Draft202012Validator(schema.pipeline_schema()).iter_errors(value))


def test_check_of_the_schema_fails_until_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_PIPELINES", str(tmp_path))
    assert schema.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert schema.main([]) == 0
    assert schema.main(["--check"]) == 0
    assert json.loads((tmp_path / schema.SCHEMA_NAME).read_text())["title"] == "Nightshift pipeline"


def test_broken_file_among_sound_ones_spoils_none_of_them(tmp_path: Path, changed: Changed) -> None:
    for number in range(5):
        (tmp_path / f"p{number}.yaml").write_bytes(changed(R, ("name: search_ranking", f"name: p{number}")))
    (tmp_path / "p3.yaml").write_bytes(b"name: [")
    specs, errors = check.check_files(str(path) for path in tmp_path.iterdir())
    assert sorted(checked.spec.name for checked in specs.values()) == ["p0", "p1", "p2", "p4"]
    assert [(Path(error.source).name, error.problems[0].line) for error in errors] == [("p3.yaml", 2)]


def test_two_files_of_one_pipeline_are_both_refused_and_name_one_another(tmp_path: Path, changed: Changed) -> None:
    paths = [tmp_path / folder / "search_ranking.yaml" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(changed(R))
    specs, errors = check.check_files(map(str, paths))
    assert specs == {}
    assert [error.message for error in errors] == [
        f"{one}: name: [name.clash] {other} is the pipeline 'search_ranking' too (give one another name)"
        for one, other in ((paths[0], paths[1]), (paths[1], paths[0]))
    ]


def test_check_says_what_is_wrong_and_ends_with_the_code_for_it(tmp_path: Path, changed: Changed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sound, broken = tmp_path / "search_ranking.yaml", tmp_path / "other.yaml"
    sound.write_bytes(changed(R))
    broken.write_bytes(changed(R, ("name: search_ranking", "name: other"), ("epochs: 3", "epochs: 0"), ("seed: 17", "seed: -1")))
    assert check.main([str(sound)]) == ExitCode.DONE
    assert caplog.messages == [f"{sound}: search_ranking is sound"]
    caplog.clear()
    assert check.main([str(sound), str(broken)]) == ExitCode.BAD_SPEC
    assert "2 problems" in caplog.messages[1]
    assert caplog.messages[1].count("[field.range]") == 2


def test_check_runs_as_a_command(pipelines: Path, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("- a")
    command = [sys.executable, "-m", "training.spec.check", str(tmp_path / "x.yaml")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=pipelines.parents[1], check=False)
    assert (found.returncode, "[spec.shape] expected one mapping, found a list" in found.stderr) == (64, True)


def test_check_in_a_python_without_the_requirements_says_which_python_to_use(pipelines: Path) -> None:
    # Without site-packages the interpreter is like the system's.
    command = [sys.executable, "-S", "-m", "training.spec.check", str(pipelines / f"{R}.yaml")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=pipelines.parents[1], env={"PATH": "/usr/bin:/bin"}, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith(f"error: [python.packages] {sys.executable} has no pydantic")
    assert "make env" in found.stderr
    assert "Traceback" not in found.stderr


def test_check_in_a_python_with_some_of_the_requirements_says_the_same(pipelines: Path, tmp_path: Path) -> None:
    for name in ("pydantic", "yaml"):
        (tmp_path / f"{name}.py").touch()
    command = [sys.executable, "-S", "-m", "training.spec.check", str(pipelines / f"{R}.yaml")]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, cwd=pipelines.parents[1], env=env, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith(f"error: [python.packages] {sys.executable} has no croniter, ")
    assert "Traceback" not in found.stderr


def test_check_needs_no_environment_of_the_installation(pipelines: Path) -> None:
    command = [sys.executable, "-m", "training.spec.check", str(pipelines / f"{R}.yaml")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=pipelines.parents[1], env={"PATH": "/usr/bin:/bin"}, check=False)
    assert (found.returncode, found.stderr.count("is sound")) == (0, 1)
