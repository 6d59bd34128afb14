"""The wheel that `make wheel` builds, installed beside nothing else: its files, its command, and no second registration of the plugin."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from training.contracts import ExitCode

ROOT = Path(__file__).resolve().parents[3]
OWN = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHONPATH")}
EXAMPLE = ROOT / "docs" / "examples" / "cancelled_orders" / "cancelled_orders.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = ["make", "INSTALLED=", "DEV_INSTALLED=", "HASH=", "DEV_HASH=", f"BIN={sys.prefix}/bin", f"DIST={folder}", "wheel"]
    command.append(f"WHEEL_SOURCES={os.path.relpath(folder / 'sources', ROOT)}")
    done = subprocess.run(command, cwd=ROOT, env=OWN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True, env=OWN, capture_output=True)
    return folder


def nightshift(installed: Path, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in OWN.items() if not name.startswith("NIGHTSHIFT_")}
    environment |= {"PYTHONPATH": str(installed), **variables}
    command = [sys.executable, str(installed / "bin" / "nightshift"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


@pytest.mark.slow
def test_wheel_is_pure_python_and_holds_every_file_of_training_and_the_plugin(wheel: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "training", "plugins"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wanted = {name.removeprefix("plugins/") for name in listed if (ROOT / name).is_file()} - {".airflowignore"}

    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert wheel.name == f"nightshift-{version()}-py3-none-any.whl"
    assert names == wanted
    assert {Path(name).suffix for name in names} == {".py", ".html", ".css", ".js"}


@pytest.mark.slow
def test_wheel_registers_the_command_and_no_plugin_of_airflow(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        entries = configparser.ConfigParser()
        entries.read_string(archive.read(name).decode())

    assert {section: dict(entries[section]) for section in entries.sections()} == {
        "console_scripts": {"nightshift": "nightshift.console:main"}
    }


@pytest.mark.slow
def test_installed_check_accepts_a_sound_file_and_reports_a_broken_one_outside_any_checkout(installed: Path, tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    (tmp_path / EXAMPLE.name).write_text(text, encoding="utf-8")
    (tmp_path / "broken.yaml").write_text(text.replace("name: cancelled_orders", "name: broken\nowners: [ann]"), encoding="utf-8")
    # The package's name is a common one: a folder of that name where the command runs is not imported.
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("raise SystemExit('imported from the current folder')", encoding="utf-8")

    (tmp_path / "suites" / "cancelled_orders").mkdir(parents=True)
    shutil.copy(EXAMPLE.parent / "orders.json", tmp_path / "suites" / "cancelled_orders")

    sound, broken = (
        nightshift(installed, tmp_path, "check", name, NIGHTSHIFT_EXPECTATIONS=str(tmp_path / "suites"))
        for name in (EXAMPLE.name, "broken.yaml")
    )

    assert (sound.returncode, sound.stderr) == (0, f"{EXAMPLE.name}: cancelled_orders is sound\n")
    assert broken.returncode == ExitCode.BAD_SPEC
    assert re.search(r"broken\.yaml:\d+.*owners: \[", broken.stderr), broken.stderr


@pytest.mark.slow
def test_installed_show_and_rollback_read_the_ledger_that_a_variable_names(installed: Path, tmp_path: Path) -> None:
    # Made by the installed migrations.
    database = {"NIGHTSHIFT_DATABASE": f"sqlite:///{tmp_path}/ledger.db"}

    shown = nightshift(installed, tmp_path, "show", **database)
    back = nightshift(installed, tmp_path, "rollback", "orders", "--reason", "complaints", "--yes", **database)

    assert (shown.returncode, shown.stdout) == (0, "nothing was decided yet\n"), shown.stderr
    assert back.returncode == ExitCode.DENIED, back.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run", "command.checkout"),
        ("services", "command.checkout"),
        ("show", "command.ledger"),
        ("rollback orders --reason x", "command.ledger"),
    ],
)
def test_command_that_needs_a_place_says_which_outside_any_checkout(installed: Path, tmp_path: Path, command: str, code: str) -> None:
    done = nightshift(installed, tmp_path, *command.split())

    assert done.returncode == ExitCode.BAD_SPEC
    assert f"[{code}]" in done.stderr
    assert str(tmp_path) in done.stderr


def test_version_of_the_installed_command_is_that_of_the_project(installed: Path, tmp_path: Path) -> None:
    assert nightshift(installed, tmp_path, "--version").stdout == f"nightshift {version()}\n"


def test_installed_code_has_no_commit_of_a_repository_around_it(installed: Path, tmp_path: Path) -> None:
    repository = tmp_path / "of_a_user"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=u", "-c", "user.email=u@example.com"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "theirs"], check=True)
    copied = repository / "copied"
    shutil.copytree(installed, copied)

    script = "from training.runtime.provenance import git_state; print(git_state()['commit'])"
    environment = {**OWN, "PYTHONPATH": str(copied), "NIGHTSHIFT_GIT_COMMIT": "of the image"}
    done = subprocess.run([sys.executable, "-P", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "of the image\n"


def test_tags_of_images_are_the_version_of_the_project() -> None:
    tags = {
        "docker/kubernetes/airflow-values.yaml": r"(?:defaultAirflowTag|tag): ([0-9.]+)",
        "docker/kubernetes/placement.yaml": r"nightshift-stage:([0-9.]+)",
        ".env.example": r"NIGHTSHIFT_VERSION=([0-9.]+)",
    }
    for name, pattern in tags.items():
        assert set(re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"))) == {version()}, name
    command = ["make", "INSTALLED=", "DEV_INSTALLED=", "BUILD=echo", "image-stage"]
    made = subprocess.run(command, cwd=ROOT, env=OWN, capture_output=True, text=True, check=True)
    assert f"-t nightshift-stage:{version()} ." in made.stdout
