"""Settings of an installation."""

import runpy
from pathlib import Path

import pytest

from nightshift.doctor import storage
from nightshift.doctor.findings import Installation
from nightshift.execution.backend import backend_of
from nightshift.settings import Settings
from nightshift.slots import check_pools, parallelism
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT


def test_nothing_set_means_the_documented_defaults() -> None:
    settings = Settings.from_environment({})
    home = CHECKOUT / ".local"
    assert settings.home == home
    assert settings.store_uri == f"file://{home}/store"
    assert settings.database_url == f"sqlite:///{home}/nightshift.db"
    assert settings.pipelines_path == CHECKOUT / "dags" / "pipelines"
    assert settings.expectations_path == CHECKOUT / "expectations"
    assert (settings.airflow_port, settings.mlflow_port) == (8080, 5000)
    assert (settings.backend, settings.model_packages, settings.mlflow_uri) == ("local", (), "http://127.0.0.1:5000")


def test_places_follow_the_home_and_the_mlflow_port() -> None:
    settings = Settings.from_environment({"NIGHTSHIFT_HOME": "/data/./night/", "NIGHTSHIFT_MLFLOW_PORT": "5001", "NIGHTSHIFT_STORE": " "})
    assert settings.home == Path("/data/night")
    assert settings.store_uri == "file:///data/night/store"
    assert settings.database_url == "sqlite:////data/night/nightshift.db"
    assert settings.mlflow_uri == "http://127.0.0.1:5001"


@pytest.mark.parametrize(
    ("given", "store_uri"),
    [
        ("/data/store/", "file:///data/store"),
        ("file:///data/store/", "file:///data/store"),
        ("/my data/store", "file:///my%20data/store"),
        ("file:///my%20data/store", "file:///my%20data/store"),
        ("file:///my data/store", "file:///my%20data/store"),
        ("s3://bucket/night/", "s3://bucket/night"),
    ],
)
def test_a_store_is_a_folder_or_a_bucket(given: str, store_uri: str) -> None:
    assert Settings.from_environment({"NIGHTSHIFT_STORE": given}).store_uri == store_uri


def test_model_packages_are_split() -> None:
    assert Settings.from_environment({"NIGHTSHIFT_MODEL_PACKAGES": "shop_models, more ,"}).model_packages == ("shop_models", "more")


def test_all_problems_are_reported_at_once_without_secrets() -> None:
    wrong = {
        "NIGHTSHIFT_HOME": "night",
        "NIGHTSHIFT_STORE": "ftp://somewhere",
        "NIGHTSHIFT_DATABASE": "mysql://ada:hunter22@host/db",
        "NIGHTSHIFT_AIRFLOW_PORT": "80800",
        "NIGHTSHIFT_MODEL_PACKAGES": "a.b",
        "NIGHTSHIFT_SLOTS": "cpu:4,train:0",
        "MLFLOW_TRACKING_URI": "http://",
    }
    with pytest.raises(SpecError) as caught:
        Settings.from_environment(wrong)
    assert {(problem.field, problem.code) for problem in caught.value.problems} == {
        ("NIGHTSHIFT_HOME", "settings.path"),
        ("NIGHTSHIFT_STORE", "settings.store"),
        ("NIGHTSHIFT_DATABASE", "settings.database"),
        ("NIGHTSHIFT_AIRFLOW_PORT", "settings.port"),
        ("NIGHTSHIFT_MODEL_PACKAGES", "settings.packages"),
        ("NIGHTSHIFT_SLOTS", "settings.slots"),
        ("MLFLOW_TRACKING_URI", "settings.mlflow"),
    }
    assert "hunter22" not in str(caught.value)
    assert "is not a valid port (a number from 1 to 65535)" in str(caught.value)


def test_a_pool_that_is_given_slots_twice_is_refused() -> None:
    with pytest.raises(SpecError, match=r"NIGHTSHIFT_SLOTS: \[settings.slots\] names the pool cpu twice \(name it once\)"):
        Settings.from_environment({"NIGHTSHIFT_SLOTS": "cpu:4,train:1,cpu:2"})


def test_slots_of_a_pool_that_no_pipeline_uses_are_refused_with_the_pools_there_are(tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text('train: {placement: {pool: "night_gpus", gpus: 1}}\n')
    (tmp_path / "link.yaml").symlink_to(tmp_path / "gone")
    environ = {"NIGHTSHIFT_PIPELINES": str(tmp_path), "NIGHTSHIFT_SLOTS": "cpus:12,night_gpus:2"}
    settings = Settings.from_environment(environ)
    with pytest.raises(SpecError, match=r"uses: cpus \(there are cpu, gpu, housekeeping, night_gpus, train; ") as caught:
        check_pools(settings)
    (found,) = [each for each in storage.pipelines(Installation(settings=settings)) if each.check == "pools"]
    assert (found.is_ok, found.hint) == (False, caught.value.problems[0].hint)
    # A pool whose pipeline is gone ends no command but the next start: housekeeping computes this too.
    assert parallelism(settings) == parallelism(Settings.from_environment({**environ, "NIGHTSHIFT_SLOTS": "night_gpus:2"})) + 12
    assert parallelism(Settings.from_environment({**environ, "NIGHTSHIFT_SLOTS": "cpu:12,train:2,night_gpus:2"})) == 21


@pytest.mark.parametrize(
    ("slots", "code", "printed"), [("cpu:12,train:2", 0, ("19\n", "")), ("cpus:12", 64, ("", "error: environment: 1"))]
)
def test_a_container_prints_its_parallelism_or_a_line_that_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slots: str, code: int, printed: tuple[str, str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_SLOTS", slots)
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(CHECKOUT / "plugins" / "nightshift" / "slots.py"), run_name="__main__")
    found = capsys.readouterr()
    assert (caught.value.code, found.out, found.err[: len(printed[1])]) == (code, *printed)


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match=r"\[settings.backend\] there is no backend 'moon' \(use kubernetes or local\)"):
        backend_of(Settings.from_environment({"NIGHTSHIFT_BACKEND": "moon"}))
