"""The hourly repair: when a process is started for all models, with what, and what its failure says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from nightshift.operators.repair import DONE_REF, RepairOperator
from nightshift.operators.stage import StageFailedError, StageOperator
from nightshift.settings import Settings
from tests.unit.training.registry.scenes import decide_on
from training.contracts import RunIdentity, StageRequest, StageResult
from training.registry.ledger.alias_findings import RecordedFindings
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.version_weights import MLflowRegistration, Noted, forget_note, note
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, load_spec, resolve_uris
from training.store import Store

RUN = RunIdentity(dag_id="housekeeping", run_id="r1", task_id="repair")


class Registry(BaseHTTPRequestHandler):
    """Answers as MLflow's REST API does for registered models; asks for an account."""

    aliases: ClassVar[dict[str, dict[str, str]]] = {}
    sources: ClassVar[dict[str, str]] = {}
    """`<model>/<number>` to the source of the version."""
    deleted: ClassVar[set[str]] = set()
    """Ids of logged models that are deleted."""
    account = "Basic YWRtaW46c2VjcmV0"

    def do_GET(self) -> None:
        asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        name = asked.get("name", "")
        source = self.sources.get(f"{name}/{asked.get('version')}")
        if self.headers["Authorization"] != self.account:
            status, body = 401, {"error_code": "UNAUTHENTICATED"}
        elif "/logged-models/" in self.path and (model := urlsplit(self.path).path.rpartition("/")[2]) not in self.deleted:
            status, body = 200, {"model": {"info": {"model_id": model}}}
        elif name not in self.aliases or ("version" in asked and source is None):
            status, body = 404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}
        elif source is not None:
            status, body = 200, {"model_version": {"name": name, "version": asked["version"], "source": source}}
        else:
            found = [{"alias": alias, "version": version} for alias, version in self.aliases[name].items()]
            status, body = 200, {"registered_model": {"name": name, **({"aliases": found} if found else {})}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def registry(installation: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, str]]]:
    """MLflow's aliases by model, behind HTTP; the installation names the server and its account."""
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(Registry, "aliases", {})
    monkeypatch.setattr(Registry, "sources", {})
    monkeypatch.setattr(Registry, "deleted", set())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    yield Registry.aliases
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def spec_uri(store: Store, shop: Path) -> str:
    return store.put_json(freeze(resolve_uris(load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"), os.environ)))


@pytest.fixture
def quiet(registry: dict[str, dict[str, str]], store: Store, spec_uri: str) -> Ledger:
    """Two models with a champion each, and nothing to do: MLflow agrees, and all was compared a moment ago."""
    ledger = Ledger(Settings.from_environment().database_url)
    for model in ("a", "b"):
        decide_on(ledger, 1, model=model, evidence={"spec_uri": spec_uri, "pipeline": "p"})
        registry[model] = {"champion": "1", "of a user": "7"}
        logged = "m-" + (model * 32)
        note(store, logged, Noted(weights_digest="w1", artifact_digest="f" * 64))
        ledger.note_registration(model, "w1", MLflowRegistration(number="1", logged_model=logged, artifact_digest="f" * 64))
        Registry.sources[f"{model}/1"] = f"models:/{logged}"
        ledger.end_mirror(model, None, revision=1, decisions=1)
    store.ref(DONE_REF).move({"done_at": datetime.now(UTC).isoformat()}, expected=0)
    return ledger


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What starts the process is recorded; the process itself is the stage's tests'."""
    found: list[str] = []

    def execute(task: StageOperator, context: Any) -> dict[str, Any]:
        found.append(task.stage)
        return {}

    monkeypatch.setattr(StageOperator, "execute", execute)
    return found


def context(run_type: str = "scheduled", run_id: str = "r1") -> Any:
    ti = SimpleNamespace(dag_id="housekeeping", task_id="repair", run_id=run_id, try_number=1)
    return {"ti": ti, "run_id": run_id, "dag_run": SimpleNamespace(run_type=run_type, run_id=run_id)}


def test_no_process_is_started_where_nothing_is_to_be_done(quiet: Ledger, started: list[str], execute: Any) -> None:
    with pytest.raises(AirflowSkipException, match="nothing to do"):
        execute(RepairOperator(task_id="repair"), context())
    assert started == []


@pytest.mark.slow
def test_look_for_something_to_do_imports_no_mlflow(quiet: Ledger) -> None:
    code = (
        "import sys; from types import SimpleNamespace;"
        "from nightshift.operators.repair import RepairOperator; from nightshift.settings import Settings;"
        "context = {'dag_run': SimpleNamespace(run_type='scheduled')};"
        "assert RepairOperator(task_id='repair')._reason(context, Settings.from_environment()) == '';"
        "sys.exit(', '.join({'mlflow', 'torch', 'pandas'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def decided(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    decide_on(ledger, 2, "rejected", model="b")


def dead_writer(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    ledger.begin_mirror("b", 1)


def metrics(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    store.bucket.put(f"tracking/stages/p/train/{'f' * 64}/000001-r.json", b"")


def alias(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    registry["b"]["champion"] = "2"


def numbered_again(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    """The registered model was deleted: number 1 is another version now, and the alias on it."""
    patch.setitem(Registry.sources, "b/1", "models:/m-" + "0" * 32)


def other_note(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    logged = "m-" + "b" * 32
    forget_note(store, logged)
    note(store, logged, Noted(weights_digest="w2", artifact_digest="f" * 64))


def lost_model(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    Registry.deleted.add("m-" + "b" * 32)


def alert(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    findings = RecordedFindings(ledger.database_url)
    findings.see("b", "champion", "former_champion", served="w2", words="it serves w2", now=datetime.now(UTC))


def lost_alias(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    del registry["a"]


def account(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MLFLOW_TRACKING_PASSWORD", "other")


def interval(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    store.ref(DONE_REF).move({"done_at": (datetime.now(UTC) - timedelta(days=2)).isoformat()}, expected=1)


def wrong_clock(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    store.ref(DONE_REF).move({"done_at": (datetime.now(UTC) + timedelta(days=400)).isoformat()}, expected=1)


def no_http(ledger: Ledger, store: Store, registry: dict[str, dict[str, str]], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Registry, "send_response", lambda self, *_: self.wfile.write(b"-ERR unknown command\r\n"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (wrong_clock, "retention every"),
        (no_http, "cannot be read here"),
        (decided, "MLflow does not show the newest decisions, or a process died that wrote them: b"),
        (dead_writer, "MLflow does not show the newest decisions, or a process died that wrote them: b"),
        (metrics, "metrics wait"),
        (alias, "the alias champion of b names version 2, the ledger says weights w1"),
        (lost_alias, "the alias champion of a names version None, the ledger says weights w1"),
        (numbered_again, "the alias champion of b names version 1, the ledger says weights w1"),
        (other_note, "the alias champion of b names version 1, the ledger says weights w1"),
        (lost_model, "MLflow has lost the logged model of version 1 of b, the champion"),
        (alert, "an alert is due: it serves w2"),
        (account, "cannot be read here"),
        (interval, "retention every"),
    ],
)
def test_one_process_is_started_for_all_models_where_anything_is_open(
    quiet: Ledger,
    store: Store,
    registry: dict[str, dict[str, str]],
    started: list[str],
    execute: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[..., None],
    reason: str,
) -> None:
    change(quiet, store, registry, monkeypatch)
    task = RepairOperator(task_id="repair")
    assert reason in task._reason(context(), Settings.from_environment())
    # What no channel takes fails the task.
    with nullcontext() if change is not alert else pytest.raises(AirflowFailException, match="it serves w2"):
        execute(task, context())
    assert started == ["repair"]


def test_run_that_was_triggered_by_hand_compares_everything(quiet: Ledger, started: list[str], execute: Any) -> None:
    execute(RepairOperator(task_id="repair"), context("manual"))
    assert started == ["repair"]


def test_repair_is_new_work_in_each_run_and_its_end_is_noted(quiet: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    task, settings = RepairOperator(task_id="repair"), Settings.from_environment()
    works = [task.work(context(run_id=run_id), task.resolved(context(run_id=run_id)), settings) for run_id in ("r1", "r2")]
    before = (datetime.now(UTC) - timedelta(days=30)).date().isoformat()
    assert works[0].parameters == works[1].parameters == {"forget_before": before}
    assert works[0].id != works[1].id
    task.finish(context(), result(), RUN)
    assert store.ref(DONE_REF).head_number() == 2
    monkeypatch.setenv("NIGHTSHIFT_RETENTION", "/nosuch/retention.yaml")
    without_retention = task.work(context(run_id="r3"), task.resolved(context(run_id="r3")), settings)
    assert without_retention.parameters == {}, "MLflow is followed all the same, and nothing is deleted"
    task.finish(context(), result(), RUN)
    assert store.ref(DONE_REF).head_number() == 2


def result() -> StageResult:
    return StageResult(
        pipeline="search_ranking",
        stage="repair",
        work_id="f" * 64,
        artifact_uri="u",
        digest="d",
        run=RUN,
        attempt_id="a",
        attempts=1,
        committed_at="2026-02-01T02:00:00+00:00",
        scalars={"models": 2},
    )


def test_spec_of_a_repair_stays_the_same_when_a_decision_is_made_in_the_meantime(quiet: Ledger, store: Store, spec_uri: str) -> None:
    task = RepairOperator(task_id="repair")
    assert task.resolved(context()).spec_uri == spec_uri
    decide_on(quiet, 2, model="a", evidence={"spec_uri": "file:///elsewhere/objects/x"})
    assert task.resolved(context()).spec_uri == spec_uri


def test_spec_that_cannot_be_read_is_replaced_by_that_of_another_model(quiet: Ledger, store: Store, spec_uri: str) -> None:
    lost = store.put_json({"spec": "of another version"})
    decide_on(quiet, 2, model="a", evidence={"spec_uri": lost})
    assert RepairOperator(task_id="repair").resolved(context()).spec_uri == spec_uri


def test_waiting_metrics_without_any_decision_are_delivered_with_the_spec_of_their_training(
    registry: dict[str, dict[str, str]], store: Store, spec_uri: str, started: list[str], execute: Any
) -> None:
    task = RepairOperator(task_id="repair")
    with pytest.raises(AirflowSkipException):
        execute(task, context())
    metrics(Ledger(Settings.from_environment().database_url), store, registry, pytest.MonkeyPatch())
    with pytest.raises(AirflowFailException, match="no decision and no waiting training"):
        task.resolved(context())
    request = StageRequest(
        pipeline="p",
        stage="train",
        work_id="f" * 64,
        attempt_id="a",
        store_uri=store.root_uri,
        spec_uri=spec_uri,
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        inputs={},
        run=RunIdentity(dag_id="p", run_id="r", task_id="train"),
    )
    store.work_folder("p", "train", "f" * 64).write_request(request)
    execute(task, context())
    assert task.resolved(context()).spec_uri == spec_uri
    assert started == ["repair"]


def test_task_that_failed_for_one_model_says_which_and_why(
    quiet: Ledger, registry: dict[str, dict[str, str]], context_of: Callable[..., Any], execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole task, with the process that it starts: MLflow's stand-in answers nothing but aliases, so no model can be compared."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    quiet.begin_mirror("a", 1)
    with pytest.raises(
        StageFailedError, match=r"registry\.repair.*1 of 2 models failed: a: \[mlflow\.unavailable\].*1 more.*not checked: b"
    ):
        execute(RepairOperator(task_id="repair"), context())


def test_what_was_found_about_an_alias_is_sent_by_the_settings_of_the_pipeline_whatever_it_subscribes_to(
    quiet: Ledger, started: list[str], execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr("nightshift.airflow_ext.alerts.send", lambda event, webhook, **_: sent.append({**event, "to": webhook}) or True)
    assert "registry" not in load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").alerts.on
    decide_on(quiet, 2, "rejected", model="b", evidence={"pipeline": "search_ranking"})
    findings = RecordedFindings(quiet.database_url)
    findings.see("b", "champion", "former_champion", served="w2", words="it serves w2", now=datetime.now(UTC))
    for _ in range(2):
        # Once an hour while it lasts.
        execute(RepairOperator(task_id="repair"), context())
    named = [(event["event"], event["pipeline"], event["model"], event["reason"], event["to"]) for event in sent]
    assert named == [("registry", "search_ranking", "b", "it serves w2", "${ALERTS_URI}")] * 2
    assert findings.to_announce()[0].announced_at is not None


def test_an_alert_goes_out_also_where_the_comparison_fails_for_another_model(
    quiet: Ledger, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []
    monkeypatch.setattr("nightshift.operators.repair.announce_findings", lambda settings, run, **_options: announced.append(run) or [])

    def failing(task: StageOperator, context: Any) -> dict[str, Any]:
        raise StageFailedError("a failed")

    monkeypatch.setattr(StageOperator, "execute", failing)
    quiet.begin_mirror("a", 1)
    with pytest.raises(StageFailedError, match="a failed"):
        execute(RepairOperator(task_id="repair"), context())
    assert announced == ["r1"]


def test_what_was_set_right_fails_one_task_where_no_channel_takes_it_and_says_that_it_is_over(
    quiet: Ledger, started: list[str], execute: Any
) -> None:
    findings, now = RecordedFindings(quiet.database_url), datetime.now(UTC)
    findings.see("b", "champion", "not_decided", served="w2", words="it served w2", now=now)
    findings.end("b", now=now)
    with pytest.raises(AirflowFailException, match=rf"this was set right at {now:%Y-%m-%d %H:%M} UTC: it served w2"):
        execute(RepairOperator(task_id="repair"), context())
    with pytest.raises(AirflowSkipException):
        execute(RepairOperator(task_id="repair"), context())
