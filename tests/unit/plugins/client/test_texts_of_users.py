"""Free texts of users: refused at the door where they control an output, and escaped at every output that shows them to others."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.slack.notifications.slack import SlackNotifier
from airflow.providers.smtp.notifications.smtp import SmtpNotifier

from nightshift.airflow_ext.alerts import announce
from nightshift.api.application import openapi
from nightshift.client.show_command import history_lines
from nightshift.console import run
from nightshift.queries.models import summary_of
from tests.unit.plugins.api.test_rest_approvals import ask
from tests.unit.plugins.client.test_client import Server
from tests.unit.plugins.seeded_installation import DONE, NEW, Seeded
from tests.unit.training.registry.scenes import decide_on
from training.database import connect
from training.database.datasets import deprecate
from training.errors import DeniedError
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.reasons import Reason, headline
from training.registry.mlflow.mirror import description_of
from training.registry.mlflow.schema import ModelSchema, schema_text
from training.spec.pipeline_spec import Alerts, Email, Slack

CONTROLS = ["\x1b[31m", "\x9b2J", "\u202egnp", "a\x00", "a\x07"]
TEXT = "<!channel> [x](http://e) | <img src=x>"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
OUTSIDE = {"pipeline": "search_ranking", "artifact_uri": "s3://models/m.ubj", "format": "xgboost_json"}
DOORS: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {
    ("Deprecation", "reason"): ("POST", f"/datasets/search_ranking/versions/{NEW}/deprecate", {}),
    ("StageChange", "reason"): ("PUT", "/models/search_ranking/versions/1/stage", {"stage": "champion"}),
    ("AnswerBody", "note"): ("PUT", "/models/search_ranking/versions/3/approval", {"answer": "approve"}),
    ("RegisterModel", "notes"): ("POST", "/models/register", OUTSIDE),
    ("RegisterModel", "version"): ("POST", "/models/register", OUTSIDE),
    ("StartStudy", "objective"): ("POST", "/hpo/studies", {"pipeline": "search_ranking"}),
}
PLACES = {("RegisterModel", "artifact_uri"), ("RegisterModel", "transforms_uri"), ("RegisterModel", "sha256"), ("RegisterModel", "stage")}
"""Texts that have a form of their own."""


def test_the_doors_are_all_free_texts_of_the_api() -> None:
    schemas = openapi()["components"]["schemas"]
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"].get("$ref", "Restore").rpartition("/")[2]
        for operations in openapi()["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
    }
    found = {
        (name, field)
        for name in bodies
        for field, facts in schemas[name]["properties"].items()
        for kind in facts.get("anyOf", [facts])
        # A reason's pattern refuses what is blank.
        if kind.get("type") == "string" and not {"enum", "const"} & {*kind, *facts} and kind.get("pattern", r"\S") == r"\S"
    }
    assert found == {*DOORS, *PLACES}


def test_control_characters_are_refused_in_every_free_text(seeded: Seeded) -> None:
    ask()
    for (_, field), (method, path, body) in DOORS.items():
        for control in CONTROLS:
            answer = seeded.client.request(method, f"/api/v1{path}", json={**body, field: control}, headers=seeded.headers("bob", "user"))
            assert answer.status_code == 422, (path, field, control)
            assert answer.json()["code"] == ("request.invalid" if "\0" in control else "field.characters")
            assert CONTROL.search(answer.text) is None
    claims = {**OUTSIDE, "metrics": {"auc\x1b[31m": 0.5}}
    assert seeded.post("/models/register", claims).json()["code"] == "field.characters"


@pytest.mark.parametrize("control", CONTROLS)
def test_a_reason_that_comes_by_the_command_line_passes_the_same_door(seeded: Seeded, control: str) -> None:
    with pytest.raises(DeniedError, match=r"the reason has the character U\+[0-9A-F]{4}") as refused:
        deprecate(connect(), "search_ranking", NEW, by="ann", reason=control)
    assert refused.value.code == "snapshot.reason"


def test_slack_and_mail_show_the_text_and_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(SlackNotifier, "notify", lambda self, context: said.append(self.text))
    monkeypatch.setattr(SmtpNotifier, "notify", lambda self, context: said.append(self.html_content))
    alerts = Alerts(slack=Slack(channel="#models"), email=Email(to=("a@b.test",)))
    announce({"event": "rejected", "pipeline": "p", "model": "m", "version": "1", "reason": f"\x1b[31m{TEXT}", "decided_by": TEXT}, alerts)
    slack, mail = said
    for text in (slack, mail):
        assert CONTROL.search(text) is None
        assert "<!channel>" not in text
        assert "<img" not in text
        assert text.count("&lt;!channel&gt;") == 2


def reasons(words: str) -> list[dict[str, Any]]:
    return [Reason(gate=words, passed=False, words=words, severity="fail")]


def test_mlflow_shows_reasons_names_and_columns_as_text(seeded: Seeded) -> None:
    entry = replace(decide_on(Ledger(), 1), reasons=reasons(f"\x1b[31m{TEXT}\n# two"), decided_by=TEXT)  # type: ignore[arg-type]
    schema = schema_text(ModelSchema({TEXT: "double"}, (f"probability of {TEXT}",)))
    description = description_of(entry, schema=schema)
    assert CONTROL.search(description) is None
    assert "](http://e)" not in description
    assert "<" not in description
    rows = [re.split(r"(?<!\\)\|", line) for line in description.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {5}
    assert "\n# two" not in description
    assert headline(entry)


def test_terminals_show_decisions_runs_data_and_comparisons_without_control(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = f"{TEXT}\x1b[31m\u202e\x9b"
    monkeypatch.setattr("training.database.datasets.free_text_fault", lambda text: "")
    deprecate(connect(), "search_ranking", NEW, by=hostile, reason=hostile)
    ledger = Ledger()
    entry = decide_on(ledger, 9, "rejected", model="search_ranking", evidence={"pipeline": "search_ranking"}, reasons=reasons(hostile))
    assert entry.reasons[0].words == hostile
    commands = [
        ["datasets", "list", "search_ranking"],
        ["datasets", "show", "search_ranking", NEW],
        ["datasets", "show", "search_ranking", NEW, "--json"],
        ["show", "search_ranking"],
        ["show", "search_ranking", "--json"],
        ["compare", "search_ranking@1", f"search_ranking:{DONE}"],
        ["runs", "show", f"search_ranking:{DONE}"],
        ["runs", "start", "search_ranking", "--snapshot", NEW],
    ]
    shown = ""
    for arguments in commands:
        run(arguments)
        output = capsys.readouterr()
        assert CONTROL.search(output.out + output.err) is None, arguments
        shown += output.out + output.err
    # As JSON writes it: in lists, in records, and in the error of a deprecated version.
    assert shown.count("\\u001b[31m") >= 4


def test_lines_of_tables_end_where_their_text_does() -> None:
    (_, row, reason) = history_lines([summary_of(replace(entry_of("one\ntwo\x1b[2J"), decided_by="a\nb"))])
    assert row.endswith("a b")
    assert reason == "    FAIL one two\\u001b[2J: one two\\u001b[2J"


def entry_of(words: str) -> Any:
    return decide_on(Ledger("sqlite://"), 1, "rejected", reasons=reasons(words))
