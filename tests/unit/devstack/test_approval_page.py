"""The page on which a request waits for a person, as the summary of a run names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devstack import run_summary
from devstack.environment import credentials
from devstack.run_summary import approval_lines
from nightshift.settings import Settings
from tests.unit.devstack.test_run_summary import result
from tests.unit.training.registry.scenes import decide_on
from training.contracts import StageResult
from training.registry.ledger.decisions import answer_request
from training.registry.ledger.ledger import Entry, Ledger

RUN = "asset_triggered__2026-02-02T02:00:00+00:00_x"


class Asking:
    """What Airflow's REST API answers about the DAG that asks."""

    def __init__(self, key: str, assigned: list[str]) -> None:
        self._answers: dict[str, Any] = {
            "dagRuns": {
                "dag_runs": [
                    {"dag_run_id": "queued", "conf": {}, "start_date": None},
                    {"dag_run_id": "another", "conf": {}, "start_date": "2026-02-02T02:00:01Z"},
                    {"dag_run_id": RUN, "conf": {}, "start_date": "2026-02-02T02:00:00Z"},
                ]
            },
            "another/upstreamAssetEvents": {"asset_events": [{"extra": {"key": "other"}}]},
            "x/upstreamAssetEvents": {"asset_events": [{"extra": {"key": key}}]},
            "x/taskInstances/ask/-1/hitlDetails": {"assigned_users": [{"id": name, "name": name} for name in assigned]},
        }

    def find(self, path: str, **_query: object) -> Any:
        # Airflow 3.3 answers the events of such a run with 500, and the client would ask again for minutes.
        assert "/queued/" not in path, path
        return next((answer for end, answer in self._answers.items() if path.endswith(end)), None)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(settings.database_url)


@pytest.fixture
def request_(ledger: Ledger) -> Entry:
    return decide_on(ledger, 1, "needs_approval")


def promoted(decided: Entry) -> StageResult:
    return result("promote", scalars={"decision": decided.outcome, "model": decided.model, "key": decided.key})


def lines(settings: Settings, decided: Entry, assigned: list[str]) -> list[str]:
    client: Any = Asking(decided.key, assigned)
    return approval_lines(settings, client, "search_ranking", promoted(decided))


def test_a_request_that_waits_names_the_page_and_the_login_of_who_may_answer(settings: Settings, request_: Entry) -> None:
    quoted = "asset_triggered__2026-02-02T02%3A00%3A00%2B00%3A00_x"
    assert lines(settings, request_, ["approver"]) == [
        f"approve   http://127.0.0.1:8080/dags/search_ranking.approval/runs/{quoted}/tasks/ask/required_actions",
        f"          login approver / {credentials(settings)['approver_password']}",
    ]


def test_people_without_a_login_here_are_named(settings: Settings, request_: Entry) -> None:
    assert lines(settings, request_, ["ann", "eve"])[1] == "          may answer: ann, eve"


def test_a_request_that_was_answered_says_how(settings: Settings, ledger: Ledger, request_: Entry) -> None:
    answer_request(ledger, request_, "approved", by="approver", words="approved by approver: fine")
    assert lines(settings, request_, []) == ["approval  approved: approved by approver: fine"]


def test_a_run_that_requests_no_approval_has_no_such_line(settings: Settings, ledger: Ledger) -> None:
    assert lines(settings, decide_on(ledger, 1), []) == []


def test_a_dag_that_does_not_ask_is_named(settings: Settings, request_: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_summary, "OPEN_SECONDS", -1.0)
    nobody: Any = Asking("another request", [])
    (line,) = approval_lines(settings, nobody, "search_ranking", promoted(request_))
    assert line.startswith("approve   http://127.0.0.1:8080/dags/search_ranking.approval   no question yet")
