"""The client and `nightshift runs` against a server that really listens."""

from __future__ import annotations

import json
import math
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from nightshift.api.application import app
from nightshift.client import Client, client_of
from nightshift.client.runs_command import overrides_of
from nightshift.queries import runs
from nightshift.settings import Settings
from tests.commands import command
from tests.unit.plugins.seeded_installation import DONE, NEW, OLD
from training.errors import DeniedError, SpecError, UnavailableError
from training.store import Bucket
from training.store.metric_journal import JournalWriter, MetricJournal

main = command("runs")


class Server:
    """The application behind a port, as the api-server mounts it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.failures: list[int] = []
        """Statuses that the next requests get."""
        mounted = self.mounted = FastAPI()
        mounted.mount("/nightshift", app)

        @mounted.middleware("http")
        async def failing(request: Request, call_next: Any) -> Any:
            return JSONResponse({}, status_code=self.failures.pop(0)) if self.failures else await call_next(request)

        self._server = uvicorn.Server(uvicorn.Config(mounted, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.socket]})

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def token(user: str, role: str) -> str:
    return get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))


def test_every_record_is_read_and_written_by_a_typed_client(server: Server) -> None:
    with client_of() as client:
        assert [each.name for each in client.pipelines()] == ["flight_delay", "search_ranking"]
        assert client.pipeline("search_ranking").is_paused
        assert len(list(client.runs())) == 6
        assert client.run(f"search_ranking:{DONE}").stages[5].scalars["rows"] == 1000
        assert [each.name for each in client.models()] == ["flight_delay", "search_ranking"]
        model = client.model("search_ranking")
        assert model.champion is not None
        assert client.version("search_ranking", model.champion.version).alias == "champion"
        decision = next(client.decisions("search_ranking"))
        assert client.decision("search_ranking", decision.key).evidence["pipeline"] == "search_ranking"
        assert [each.version for each in client.datasets("search_ranking")] == [NEW, OLD]
        assert {each.version for each in client.datasets()} == {NEW}
        assert (
            client.deprecate("search_ranking", OLD, reason="wrong").health == client.dataset("search_ranking", OLD).health == "deprecated"
        )


def test_a_list_of_several_pages_has_each_item_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.client.client.PAGE_ITEMS", 2)
    with client_of() as client:
        found = [run.id for run in client.runs()]
    assert len(found) == len(set(found)) == 6


def test_a_server_that_is_busy_is_asked_again_and_starts_one_run(server: Server) -> None:
    with client_of() as client:
        before = len(list(client.runs("search_ranking")))
        server.failures = [503, 502]
        started = client.start_run("search_ranking", as_of="2026-02-01", overrides={"train": {"learning_rate": 0.02}}, key="k")
        assert client.start_run("search_ranking", as_of="2026-02-01", overrides={"train": {"learning_rate": 0.02}}, key="k") == started
        assert len(list(client.runs("search_ranking"))) == before + 1
    assert started.parameters == {"as_of": "2026-02-01", "train": {"learning_rate": 0.02}}


def test_an_answer_that_was_lost_after_the_run_began_is_one_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    start, lost = runs.start_run, []

    def loses(*arguments: Any, **options: Any) -> Any:
        found = start(*arguments, **options)
        if not lost:
            lost.append(True)
            raise UnavailableError("airflow.database", "gone for a moment")
        return found

    monkeypatch.setattr(runs, "start_run", loses)
    with client_of() as client:
        before = len(list(client.runs("search_ranking")))
        client.start_run("search_ranking")
        assert lost
        assert len(list(client.runs("search_ranking"))) == before + 1


def test_errors_of_the_server_are_ours_with_code_and_hint(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of() as client:
        with pytest.raises(DeniedError, match=r"\[model\.unknown\]"):
            client.model("nothing")
        with pytest.raises(SpecError, match=r"\[request\.invalid\] .*cursor|\[request\.invalid\]"):
            client.dataset("search_ranking", "zz")
    with Client(server.url, lambda: "forged") as client, pytest.raises(DeniedError, match=r"\[access\.unauthenticated\]"):
        client.model("search_ranking")
    with Client(server.url, lambda: token("ada", "viewer")) as client, pytest.raises(DeniedError, match=r"\[access\.denied\] ada may not"):
        client.start_run("search_ranking")
    monkeypatch.setattr("nightshift.client.client.MAX_PAUSE_SECONDS", 0.0)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    with Client(f"http://127.0.0.1:{port}", lambda: "t") as client, pytest.raises(UnavailableError, match=r"\[server\.unreachable\]"):
        client.model("search_ranking")


def test_a_server_without_a_token_and_a_machine_without_an_installation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeniedError, match="there is no token for https://airflow"):
        client_of("https://airflow.example.com", {})
    with (
        client_of(None, {"NIGHTSHIFT_HOME": str(tmp_path)}) as client,
        pytest.raises(DeniedError, match=r"has no login of an installation"),
    ):
        client.model("m")


def test_runs_are_listed_and_shown_for_people_and_programs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "search_ranking", "--limit", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["show", f"search_ranking:{DONE}"]) == 0
    shown = capsys.readouterr().out
    assert "train     success" in shown
    assert "validation loss" not in shown
    assert 'given:   {"train": {"learning_rate": 0.01}}' in shown
    assert main(["list", "--state", "success", "--json"]) == 0
    assert [run["state"] for run in json.loads(capsys.readouterr().out)] == ["success", "success"]


def test_a_run_is_started_once_by_its_key_from_the_command_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["start", "search_ranking", "--set", "train.learning_rate=0.02", "--key", "k", "--json"]
    assert main(command) == main(command) == 0
    output = capsys.readouterr()
    # The server of this test logs to the same output.
    printed = output.out.splitlines()
    starts = [number for number, line in enumerate(printed) if line == "{"]
    ends = [number for number, line in enumerate(printed) if line == "}"]
    first, again = (json.loads("\n".join(printed[start : end + 1])) for start, end in zip(starts, ends, strict=True))
    assert first == again
    assert first["parameters"] == {"train": {"learning_rate": 0.02}}
    assert (
        f"warning: search_ranking is paused in Airflow: {first['id']} waits until `nightshift schedule on search_ranking`\n" in output.err
    )


@pytest.mark.parametrize(
    "settings",
    [
        ["train.learning_rate=NaN"],
        ["train.learning_rate=1e999"],
        ['train.optimizer="\\ud800"'],
        ["train.placement=5", "train.placement.cpus=2"],
        ["train.learning_rate"],
    ],
)
def test_a_setting_that_no_request_can_hold_is_refused_by_its_text(settings: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        overrides_of(settings)
    (problem,) = refused.value.problems
    assert problem.code == "command.set"
    assert settings[-1].split("=")[0] in problem.message
    assert problem.hint


def test_a_setting_that_is_nested_too_deep_for_json_is_a_word() -> None:
    assert overrides_of([f"train.optimizer={'[' * 100_000}"]) == {"train": {"optimizer": "[" * 100_000}}


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("arguments", "code"), [(["show", "nothing:r1"], 77), (["start", "search_ranking", "--set", "train.epochs=x"], 64)]
)
def test_a_refusal_is_an_exit_code_and_an_error(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> None:
    assert main(arguments) == code
    assert capsys.readouterr().err.startswith("error: ")


def test_settings_of_a_line_are_json_or_words() -> None:
    given = [
        "data.source.window=14d",
        "train.learning_rate=0.02",
        "train.placement.gpus=1",
        "train.optimizer=adamw",
        'evaluate.minimum={"auc": 0.7}',
    ]
    train = {"learning_rate": 0.02, "placement": {"gpus": 1}, "optimizer": "adamw"}
    assert overrides_of(given) == {"data": {"source": {"window": "14d"}}, "train": train, "evaluate": {"minimum": {"auc": 0.7}}}
    for wrong in ("train", "learning_rate=1", "prepare.derive=3", "train.=1", "=1"):
        with pytest.raises(SpecError, match=r"\[command\.set\]"):
            overrides_of([wrong])


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_metrics_are_printed_a_point_a_line(server: Server, capsys: pytest.CaptureFixture[str], follow: list[str]) -> None:
    journal = MetricJournal(Bucket(Settings.from_environment().store_uri), "search_ranking", DONE)
    JournalWriter(journal, "a1").append([("train_loss", 0.25, 100, 1_770_000_000_000), ("train_loss", math.nan, 200, 1_770_000_001_000)])
    assert main(["metrics", f"search_ranking:{DONE}", *follow]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "02:40:00  attempt 1  step      100  train_loss 0.25",
        "02:40:01  attempt 1  step      200  train_loss nan",
    ]
    assert main(["metrics", f"search_ranking:{DONE}", "--json", "--after", "1-2", *follow]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["1-3"]
    assert main(["metrics", "search_ranking:nothing", *follow]) == 77
