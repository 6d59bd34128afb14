"""What a version of a small model costs MLflow's server, and that MLflow serves it where nothing of this project is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pandas as pd
import pytest

from nightshift.operators.stage_work import rivals_of
from nightshift.settings import Settings
from tests.integration.installation import free_ports
from tests.unit.training.evaluation.model_files import FRAME, model_folder
from tests.unit.training.registry.registered import Registry
from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.models.predictor import load_predictor

pytestmark = pytest.mark.slow

MAX_FILES = 8
MAX_REQUESTS = 50
REQUEST = re.compile(r'"(GET|POST|PUT|PATCH|DELETE) (/api/\S+) HTTP')


class Server:
    """MLflow's server as installations run it, whose log has a line for each request."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{port}"
        self.artifacts = folder / "artifacts"
        self._log = folder / "server.log"
        command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}", "--workers=1"]
        places = [f"--backend-store-uri=sqlite:///{folder}/mlflow.db", f"--artifacts-destination={self.artifacts.as_uri()}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([*command, *places], cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        _await(f"{self.uri}/health", self.process)

    def requests(self) -> list[tuple[str, str]]:
        return REQUEST.findall(self._log.read_text(encoding="utf-8"))


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - a server of this test
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    found = Server(tmp_path / "server")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, found.uri)
    yield found
    found.process.terminate()
    found.process.wait(60)


def test_a_version_of_a_small_model_is_few_requests_and_few_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database_url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", database_url)
    bench = EvaluateBench(tmp_path / "bench", "binary")
    settings = Settings.from_environment()
    counts, actions = [], []
    for night, (epochs, depth) in enumerate(((1, 1), (20, 3), (20, 4))):
        bench.spec = bench.spec_of({"epochs: 20": f"epochs: {epochs}", "max_depth: 3": f"max_depth: {depth}"})
        work, dataset = f"night {night}", {"dataset": bench.dataset_uri}
        before = len(server.requests())
        model = bench.stage("train", dataset, {"world_size": 1}, work=work)
        training = bench.store.work_folder("orders", "train", work.encode().hex().rjust(64, "0"))
        parameters = {"training_uri": training.uri, "mlflow_run_id": model.scalars.get("mlflow_run_id")}
        inputs = {**dataset, "model": model.artifact_uri}
        evaluation = bench.stage("evaluate", inputs, {**rivals_of(bench.spec, settings), **parameters}, work=work)
        inputs |= {"evaluation": evaluation.artifact_uri, "snapshot": bench.snapshot_uri}
        actions.append(bench.stage("promote", inputs, parameters, work=work).scalars["action"])
        counts.append(len(server.requests()) - before)
    sys.stdout.write(f"requests of each night: {counts}\n")
    assert actions == ["promoted", "promoted", "recorded"]
    assert max(counts) <= MAX_REQUESTS, counts
    versions = mlflow.MlflowClient().search_model_versions("name = 'orders'")
    assert len(versions) == 3
    for version in versions:
        (folder,) = server.artifacts.glob(f"*/models/{version.source.removeprefix('models:/')}")
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) <= MAX_FILES, files


ROWS = {"value": [float(value) for value in FRAME["value"][:6]]}


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a registered model of trees."""
    files = {path.name: path.read_bytes() for path in model_folder(tmp_path / "model").iterdir()}
    return Registry(tmp_path / "registry", monkeypatch).register(files)[1]


def test_mlflow_serves_a_version_where_nothing_of_this_project_is_installed(fetched: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    kept = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    environment = {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(fetched), "--env-manager=local", f"--port={port}"]
    process = subprocess.Popen([*command, "--host=127.0.0.1"], cwd="/", env=environment)
    try:
        _await(f"http://127.0.0.1:{port}/ping", process)
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            data=json.dumps({"dataframe_split": {"columns": list(ROWS), "data": [[value] for value in ROWS["value"]]}}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - a server of this test
            scores = json.loads(answer.read())["predictions"]
    finally:
        process.terminate()
        process.wait(60)
    assert scores == pytest.approx(load_predictor(tmp_path / "model").predict(pd.DataFrame(ROWS)).tolist())


def test_mlflow_finds_the_packages_and_the_python_of_a_version(fetched: Path) -> None:
    requirements = Path(mlflow.pyfunc.get_model_dependencies(str(fetched))).read_text(encoding="utf-8").split()
    assert f"mlflow=={mlflow.__version__}" in requirements
    assert any(requirement.startswith("xgboost-cpu==") for requirement in requirements)
    assert not any(requirement.startswith("torch") for requirement in requirements)
    environment = mlflow.utils.virtualenv._get_python_env(fetched)
    assert environment.dependencies == requirements
    assert environment.python == ".".join(map(str, sys.version_info[:3]))


def test_a_version_says_which_of_its_libraries_are_installed_in_another_version(fetched: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "xgboost_cpu-1.0.dist-info").mkdir(parents=True)
    (other / "xgboost_cpu-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: xgboost-cpu\nVersion: 1.0\n", "utf-8")
    program = f"import mlflow; mlflow.pyfunc.load_model({str(fetched)!r})"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for path in ("", str(other))
    ]
    assert "other libraries" not in outputs[0]
    assert re.search(
        r"registered with other libraries than are installed here: xgboost-cpu \S+ \(installed: 1\.0\)$", outputs[1], re.MULTILINE
    )
