"""A store or a database that cannot be used: the same clear error at every entry, and no service is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.storage_check import require_places
from nightshift.settings import Settings
from training.errors import NightshiftError
from training.store import Store

ROOT = Path(__file__).resolve().parents[4]
SECRET = "hunter2"


def settings_of(home: Path, **more: str) -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_HOME": str(home), **more})


def run(home: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTSHIFT_", "AIRFLOW_", "MLFLOW_"))}
    environment = {**kept, "NIGHTSHIFT_HOME": str(home), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}", **more}
    return subprocess.run([sys.executable, "-m", *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_usable_places_are_accepted_and_nothing_is_left_in_the_store(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "home")
    require_places(settings)
    require_places(settings)
    assert Store(settings.store_uri).bucket.list("") == []
    assert (tmp_path / "home" / "nightshift.db").is_file()


@pytest.mark.parametrize("below", ["file", "file/store", "file/deeper/store", "broken-link"])
def test_store_that_is_a_file_or_below_one_is_refused_with_the_file_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "broken-link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NightshiftError) as caught:
        require_places(settings_of(tmp_path / "home", NIGHTSHIFT_STORE=str(tmp_path / below)))
    assert caught.value.code == "store.location"
    assert f"'{tmp_path / below.split('/', maxsplit=1)[0]}' is a file" in str(caught.value)
    assert "NIGHTSHIFT_STORE" in str(caught.value)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(("place", "code"), [("/proc/nightshift/store", "storage.unavailable"), ("/sys/nightshift", "storage.denied")])
def test_store_that_cannot_be_made_is_reported_with_what_to_do(tmp_path: Path, place: str, code: str) -> None:
    with pytest.raises(NightshiftError, match=f"could not make the folder file://{place}") as caught:
        require_places(settings_of(tmp_path / "home", NIGHTSHIFT_STORE=place))
    assert caught.value.code == code
    assert caught.value.hint


def test_store_that_is_not_writable_is_reported(tmp_path: Path) -> None:
    # A folder of the kernel's, in which not even root can make a file.
    with pytest.raises(NightshiftError, match=r"create file:///sys/kernel/probe/") as caught:
        require_places(settings_of(tmp_path / "home", NIGHTSHIFT_STORE="/sys/kernel"))
    assert caught.value.code in ("storage.denied", "storage.unavailable")


def test_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(NightshiftError, match=r"NIGHTSHIFT_HOME: \[settings.path\] .* is a file"):
        require_places(settings_of(tmp_path / "home"))


WRONG = {
    "store is a file": ({"NIGHTSHIFT_STORE": "{home}/file"}, "store.location", 64),
    "database is damaged": ({"NIGHTSHIFT_DATABASE": "sqlite:///{home}/file"}, "database.damaged", 65),
    "database is a folder": ({"NIGHTSHIFT_DATABASE": "sqlite:///{home}/folder"}, "database.unavailable", 74),
    "URL of the database": ({"NIGHTSHIFT_DATABASE": f"postgresql://u:{SECRET}@h:{SECRET}/db"}, "database.url", 64),
    "database with its password as an option": (
        {"NIGHTSHIFT_DATABASE": f"postgresql+psycopg2://127.0.0.1:1/d?password={SECRET}"},
        "database.unavailable",
        74,
    ),
}
STARTS = [("devstack", "run"), ("devstack", "start")]
REGISTRY = ("training.registry", "check")
CASES = [(command, wrong) for wrong in WRONG for command in STARTS] + [(REGISTRY, wrong) for wrong in WRONG if "database" in wrong]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "wrong"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_wrong_place_ends_a_command_with_its_code_before_anything_is_started(tmp_path: Path, command: tuple[str, ...], wrong: str) -> None:
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    (home / "file").write_text("not a database\n" * 100)
    more, code, exit_code = WRONG[wrong]
    done = run(home, *command, **{name: value.format(home=home) for name, value in more.items()})
    assert done.returncode == exit_code, done.stderr
    assert f"[{code}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert not (home / "airflow").exists()
    assert not (home / "services.json").exists()


@pytest.mark.slow
def test_stage_whose_store_is_a_file_ends_with_the_code_of_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    request = f"file://{tmp_path}/file/stages/p/ingest/{'f' * 64}/attempts/{'a' * 32}/_REQUEST.json"
    done = run(tmp_path, "training.stages.ingest", request)
    assert done.returncode == 64, done.stderr
    assert "[store.location]" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o1755])
def test_home_that_every_user_may_write_to_is_refused_and_stays_as_it_is(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(mode)
    for command in (["start"], ["run", "search_ranking"], ["backfill", "search_ranking", "--from", "2026-01-01", "--to", "2026-01-02"]):
        done = run(home, "devstack", *command)
        assert "[home.shared]" in done.stderr
        assert "NIGHTSHIFT_HOME" in done.stderr
        assert done.returncode != 0
    assert home.stat().st_mode & 0o7777 == mode
    assert list(home.iterdir()) == []


def test_installation_on_a_disk_that_shows_modes_of_its_own_is_accepted_again(tmp_path: Path) -> None:
    home = tmp_path / "mounted"
    home.mkdir()
    (home / "credentials.json").write_text("{}")
    home.chmod(0o777)
    require_places(settings_of(home))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_home_of_another_user_is_refused_even_for_root(tmp_path: Path) -> None:
    home = tmp_path / "other"
    home.mkdir()
    os.chown(home, 12345, 12345)
    with pytest.raises(NightshiftError, match=r"home\.owner"):
        require_places(settings_of(home))
