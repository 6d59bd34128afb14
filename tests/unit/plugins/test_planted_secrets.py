"""Seven secrets in the environment, and every path that takes a URI and fails: none of them is in what the path leaves behind."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from nightshift.airflow_ext import alerts, run_notes
from nightshift.execution.local import LocalLauncher, child_command, program_of
from nightshift.execution.stage_environment import stage_environment
from nightshift.operators.failure_message import FAILURE
from nightshift.operators.resolve import ResolveOperator
from nightshift.settings import Settings
from training.contracts import ExitCode, RunIdentity, StageRequest
from training.errors import NightshiftError
from training.runtime.provenance import CHECKOUT
from training.sanitizing import masked
from training.spec import freeze, load_spec, resolve_uris
from training.spec.pipeline_spec import Alerts
from training.store import Store

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
URI = '"${SHOP_URI}/clicks"'
MARK = "swordfish"
"""In each secret, and in nothing else."""
PLANTED = {
    "MLFLOW_BACKEND_STORE_URI": f"postgresql://mlflow:{MARK}-database@db:5432/mlflow",
    "ALERTS_URI": f"https://hooks.example.test/services/T0/{MARK}-webhook",
    "NIGHTSHIFT_TOKEN": f"{MARK}-token",
    "NIGHTSHIFT_WEBHOOK_SECRET": f"{MARK}-webhook-secret",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}-aws-key",
    "MLFLOW_TRACKING_PASSWORD": f"{MARK}-mlflow",
    "AIRFLOW_CONN_SLACK_URI": f"slack://:{MARK}-slack@",
    # Of a team, by no known name, and a place that an operator has mistaken for one.
    "WAREHOUSE_URI": f"postgresql://ada:{MARK}-warehouse@db/x",
    "BROKEN_URI": f"s3://key:{MARK}-broken@bucket/x",
    "FOLDER_URI": f"/srv/{MARK}-folder",
}
NAMED = [name for name in PLANTED if name.endswith("_URI")]
Context = Callable[..., Any]
Execute = Callable[[BaseOperator, Any], Any]


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """A file that is no place's, and a link to it in the shop."""
    file = tmp_path_factory.mktemp("outside") / "secret.txt"
    file.write_text(f"{MARK}-first-bytes")
    (shop.parent / "link").symlink_to(file)
    return file


@pytest.fixture(autouse=True)
def planted(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NIGHTSHIFT_PLACES", "SHOP_URI,BROKEN_URI")


class Left:
    """What a failed task leaves: its error with causes, XCom, the note of its run, the alert, its log, and the installation's files."""

    def __init__(self, home: Path, context: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self.xcom: dict[str, Any] = {}
        self._home, self._context, self._capfd, self._caplog = home, context, capfd, caplog
        context["ti"].xcom_push = lambda key, value: self.xcom.update({key: value})

    def after(self, error: BaseException) -> str:
        alerts.task_failed(Alerts(on=["failure"], webhook="${ALERTS_URI}"))({**self._context, "exception": error})
        trace = "".join(traceback.format_exception(error))
        note = masked(run_notes.failure_line({"resolve": self.xcom.get(FAILURE)}))
        paths = [path for path in self._home.rglob("*") if path.is_file() and self._home / "shop" not in path.parents]
        files = [path.read_bytes().decode("latin-1") for path in paths]
        out, err = self._capfd.readouterr()
        return "\n".join([str(error), trace, json.dumps(self.xcom), note, out, err, self._caplog.text, *files])


@pytest.fixture
def fails(
    installation: Path,
    context_of: Context,
    execute: Execute,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Return `fails(conf, text)`: resolve a run, which ends in an error, and return all that it leaves."""
    monkeypatch.setattr(alerts.urllib.request, "urlopen", lambda *_args, **_options: (_ for _ in ()).throw(OSError(PLANTED["ALERTS_URI"])))

    def run(conf: dict[str, Any], text: str | None = None) -> str:
        path = SPEC_PATH
        if text is not None:
            path = installation / "search_ranking.yaml"
            path.write_text(text)
        context = context_of("resolve", conf=conf)
        left = Left(installation, context, capfd, caplog)
        with pytest.raises(Exception, match=r"\[[a-z_]+\.[a-z_]+\]") as caught:
            execute(ResolveOperator(task_id="resolve", spec_path=str(path)), context)
        return left.after(caught.value)

    return run


def registration(**keys: str) -> dict[str, Any]:
    return {"registration": {"artifact_uri": "${SHOP_URI}/m.ubj", "format": "xgboost_json", **keys}}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("key", ["artifact_uri", "transforms_uri"])
def test_a_trigger_that_names_a_variable_shows_none_of_its_value(fails: Callable[..., str], shop: Path, name: str, key: str) -> None:
    (shop.parent / "m.ubj").write_bytes(b"{U\x01aU\x01}")
    left = fails(registration(**{key: f"${{{name}}}/m.json"}))
    assert name in left
    assert MARK not in left


YAMLS = {
    "source": (URI, '"${NAME}/clicks"'),
    "union": (f"uri: {URI}", f'uri: {URI}\n    union: [{{table: more, kind: parquet, uri: "${{NAME}}/x", partition: "dt={{date}}"}}]'),
    "webhook": ('"${ALERTS_URI}"', '"${NAME}"'),
}


@pytest.mark.parametrize("name", [name for name in NAMED if name != "ALERTS_URI"])
@pytest.mark.parametrize("place", YAMLS)
def test_a_yaml_that_names_a_variable_shows_none_of_its_value(fails: Callable[..., str], name: str, place: str) -> None:
    old, new = YAMLS[place]
    text = SPEC_PATH.read_text()
    assert old in text
    left = fails({}, text.replace(old, new.replace("NAME", name)))
    assert name in left
    assert MARK not in left


def test_a_webhook_as_the_place_of_the_data_shows_none_of_its_address(fails: Callable[..., str]) -> None:
    left = fails({}, SPEC_PATH.read_text().replace(URI, '"${ALERTS_URI}/clicks"'))
    assert "ALERTS_URI" in left
    assert MARK not in left


@pytest.mark.parametrize("there", [True, False])
def test_a_link_out_of_the_place_says_the_same_of_a_file_and_of_none(fails: Callable[..., str], outside: Path, there: bool) -> None:
    if not there:
        outside.unlink()
    left = fails(registration(artifact_uri="${SHOP_URI}/link"))
    assert "[source.outside]" in left
    assert "is a link that leaves the source's folder" in left
    assert MARK not in left
    assert str(outside) not in left


def test_a_file_of_another_format_shows_none_of_its_bytes(fails: Callable[..., str], shop: Path) -> None:
    (shop.parent / "m.ubj").write_text(f"{MARK}-first-bytes")
    left = fails(registration())
    assert "[artifact.format]" in left
    assert MARK not in left


SETTINGS = {
    "NIGHTSHIFT_STORE": f"s3://key:{MARK}@bucket",
    "NIGHTSHIFT_HOME": f"{MARK}/relative",
    "NIGHTSHIFT_DATABASE": f"mysql://ada:{MARK}@db/x",
    "NIGHTSHIFT_PLACES": f"SHOP_URI=s3://{MARK}",
    "NIGHTSHIFT_AIRFLOW_PORT": MARK,
    "MLFLOW_TRACKING_URI": f"https://ada:{MARK}@mlflow.test",
    "NIGHTSHIFT_KUBERNETES": f"{MARK}.yaml",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting_shows_none_of_its_value(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SETTINGS[name])
    left = fails({})
    assert name in left
    assert MARK not in left


class Telling(BaseHTTPRequestHandler):
    """A storage whose refusals quote the key, as those of some do in their debug text."""

    def do_GET(self) -> None:
        key = PLANTED["AWS_SECRET_ACCESS_KEY"]
        body = f"<Error><Code>AccessDenied</Code><Message>{key} is wrong for {self.headers.get('Authorization')}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A storage that refuses: what it says goes into errors, and no function of ours could stand for its client."""
    server = HTTPServer(("127.0.0.1", 0), Telling)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("storage")
def test_a_storage_that_refuses_shows_no_key(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_STORE", "s3://nightshift/store")
    left = fails({})
    assert "[storage.denied]" in left
    assert "AccessDenied" in left
    assert MARK not in left


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("key", ["secret.txt", "folder"])
def test_a_trigger_with_a_bucket_of_its_own_is_not_shown_why_the_file_is_refused(fails: Callable[..., str], key: str) -> None:
    left = fails(registration(artifact_uri=f"s3://other-data/{key}"))
    assert f"[artifact.missing] s3://other-data/{key} is no xgboost_json file that can be read" in left
    assert "AccessDenied" not in left
    assert MARK not in left


def test_a_real_stage_that_fails_shows_none(installation: Path, store: Store) -> None:
    """A process of its own, as its log has what its libraries write, and its environment is the one that stages get."""
    spec = resolve_uris(load_spec(SPEC_PATH), {"SHOP_URI": "/nowhere/shop"}, os.environ)
    settings, lines = Settings.from_environment(), list[str]()
    part: Any = {"uri": "file:///nowhere/shop/clicks/dt=2026-01-31/x.parquet", "size_bytes": 1, "version": "1", "partition": "2026-01-31"}
    request = StageRequest(
        pipeline=spec.name,
        stage="ingest",
        work_id="f" * 64,
        attempt_id="a1",
        store_uri=store.root_uri,
        spec_uri=store.put_json(freeze(spec)),
        as_of=datetime(2026, 2, 1, 2, tzinfo=UTC),
        inputs={},
        parameters={"listing": {"clicks": [part]}},
        run=RunIdentity(dag_id=spec.name, run_id="r1", task_id="ingest"),
    )
    uri = store.work_folder(spec.name, "ingest", request.work_id).write_request(request)
    command = child_command(program_of(uri, request, spec), parent_pid=os.getpid())

    ended = LocalLauncher(settings).run(command, stage_environment(settings, "ingest", spec), lines.append)

    assert ended.exit_code == ExitCode.BAD_DATA, lines
    files = [path.read_bytes().decode("latin-1") for path in installation.rglob("*") if path.is_file()]
    assert MARK not in "\n".join([*lines, *files])


@pytest.mark.parametrize("name", [name for name in NAMED if name != "FOLDER_URI"])
def test_a_yaml_that_a_person_checks_in_a_shell_shows_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / "search_ranking.yaml"
    path.write_text(SPEC_PATH.read_text().replace(URI, f'"${{{name}}}/clicks"'))
    with pytest.raises(NightshiftError) as caught:
        resolve_uris(load_spec(path), os.environ)
    assert MARK not in str(caught.value)
