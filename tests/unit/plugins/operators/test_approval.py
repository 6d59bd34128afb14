"""A person's answer: who is asked what, what each answer leaves in the ledger, and what goes around the question."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from nightshift.execution.retries import BudgetRetryPolicy
from nightshift.operators import approval
from nightshift.operators.approval import AnswerOperator, AskOperator, RefusedAnswerError, WatchRequest
from nightshift.settings import Settings
from nightshift.wiring.approval import approval_dag
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Entry, Ledger
from training.registry.ledger.reasons import Reason
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, parse_spec
from training.spec.pipeline_spec import Alerts

PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
MODEL = "search_ranking"
ANN = {"id": "ann", "name": "ann"}
TI_ID = "01a1fd3b-67d9-7d12-8a78-f8e0c2a0b001"


def spec_with(promote: str = "approve_own: true") -> PipelineSpec:
    text = PATH.read_text(encoding="utf-8")
    old = "promote: {model: search_ranking, approval: automatic}"
    assert old in text
    return parse_spec(text.replace(old, f"promote: {{model: search_ranking, approval: required, {promote}}}").encode())


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(settings.database_url)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Airflow was told to ask."""
    questions: list[dict[str, Any]] = []
    monkeypatch.setattr(approval, "upsert_hitl_detail", lambda **values: questions.append(values))
    return questions


def request_for(
    ledger: Ledger, number: int, *, outcome: str = "needs_approval", started_by: str | None = "bob", pipeline: str = MODEL
) -> Entry:
    holder = AliasHolder(
        version=str(number),
        semantic_version=f"1.0.{number}",
        weights_digest=f"w{number}",
        model_uri="u",
        as_of=datetime(2026, 2, 1, tzinfo=UTC),
        bounds={},
    )
    evidence = {
        "weights_digest": f"w{number}",
        "evaluation_digest": f"e{number}",
        "revision": ledger.standing(MODEL).revision,
        "triggered_by": started_by,
        "pipeline": pipeline,
        "report_uri": "file:///store/objects/sha256/ab/abc",
        "metrics": {"ndcg@10": 0.61},
        "champion_metrics": {"ndcg@10": 0.6},
        "as_of": "2026-02-01T00:00:00+00:00",
    }
    reasons = [Reason(gate="minimum", passed=True, words="ndcg@10 0.61, required >= 0.3 | fine")]
    return record_candidate(ledger, holder, model=MODEL, outcome=outcome, reasons=reasons, evidence=evidence, decided_by="night")


def context(*, key: str | None = None, state: str = "success", after: datetime | None = None) -> Any:
    states = {"r1": {"ask": state}}
    ti = SimpleNamespace(id="ti", dag_id=f"{MODEL}.approval", run_id="r1", task_id="ask", try_number=1, get_task_states=lambda **_: states)
    run = SimpleNamespace(
        dag_id=f"{MODEL}.approval", run_id="r1", conf={"request": key} if key else {}, run_after=after or datetime.now(UTC)
    )
    return {"ti": ti, "dag_run": run, "triggering_asset_events": {}}


def ask(spec: PipelineSpec) -> AskOperator:
    return AskOperator(task_id="ask", spec=spec)


def answer(spec: PipelineSpec, option: str, *, person: dict[str, str] = ANN, note: str = "") -> Any:
    event = {"chosen_options": [option], "params_input": {"note": note}, "responded_by_user": person, "responded_at": datetime.now(UTC)}
    return ask(spec).execute_complete(context(), event)


def test_the_question_shows_the_decision_and_links_the_report(ledger: Ledger, asked: list[dict[str, Any]]) -> None:
    request = request_for(ledger, 1)
    with pytest.raises(TaskDeferred) as deferred:
        ask(spec_with("approvers: [ann, eve]"))._ask(context())
    (question,) = asked
    assert question["subject"] == "May search_ranking 1.0.1 be promoted?"
    assert "| minimum | pass | ndcg@10 0.61, required >= 0.3 \\| fine |" in question["body"]
    assert "| ndcg@10 | 0.61000 | 0.60000 |" in question["body"]
    assert "/nightshift/reports/search_ranking/abc" in question["body"]
    assert [user["id"] for user in question["assigned_users"]] == ["ann", "eve"]
    trigger = deferred.value.trigger
    assert isinstance(trigger, WatchRequest)
    assert trigger.key == request.key


def test_the_form_can_be_answered_without_a_note(ledger: Ledger, asked: list[dict[str, Any]]) -> None:
    request_for(ledger, 1)
    with pytest.raises(TaskDeferred):
        ask(spec_with())._ask(context())
    note = asked[0]["params"]["note"]
    # Airflow's page takes a field for required, and disables its buttons, unless null is among its types.
    assert "null" in note["schema"]["type"]
    event = {"chosen_options": ["Approve"], "params_input": {"note": None}, "responded_by_user": ANN, "responded_at": datetime.now(UTC)}
    assert ask(spec_with()).execute_complete(context(), event) == "approved"
    assert ledger.history(MODEL)[-1].reasons[-1].words == "approved by ann"


def test_who_started_the_run_is_not_asked(ledger: Ledger, asked: list[dict[str, Any]]) -> None:
    request_for(ledger, 1, started_by="ann")
    with pytest.raises(TaskDeferred):
        ask(spec_with("approvers: [ann, eve]"))._ask(context())
    assert [user["id"] for user in asked[0]["assigned_users"]] == ["eve"]


def test_request_without_an_eligible_approver_fails_at_once(ledger: Ledger, asked: list[dict[str, Any]]) -> None:
    request_for(ledger, 1, started_by="ann")
    with pytest.raises(AirflowFailException, match=r"only 'ann' may approve search_ranking.*promote\.approvers"):
        ask(spec_with("approvers: [ann]"))._ask(context())
    assert asked == []


def test_an_approval_moves_the_champion_and_leaves_the_name(ledger: Ledger) -> None:
    request = request_for(ledger, 1)
    assert answer(spec_with(), "Approve", note="looks good") == "approved"
    champion = ledger.standing(MODEL).champion
    assert champion is not None
    assert champion.version == "1"
    ending = ledger.ending_of(MODEL, request.key)
    assert ending is not None
    assert (ending.outcome, ending.action, ending.decided_by) == ("approved", "promoted", "ann")
    assert ending.reasons[-1].words == "approved by ann: looks good"


def test_a_refusal_moves_nothing_and_leaves_the_name(ledger: Ledger) -> None:
    request_for(ledger, 1)
    assert answer(spec_with(), "Decline") == "declined"
    assert ledger.standing(MODEL).champion is None
    assert ledger.history(MODEL)[-1].decided_by == "ann"


class StateStore(dict[str, Any]):
    """Airflow's state store of a task, which its tries share: it keeps JSON."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


def test_an_answer_of_who_started_the_run_fails_the_try_and_the_next_one_asks_again(ledger: Ledger, asked: list[dict[str, Any]]) -> None:
    request_for(ledger, 1, started_by="ann")
    spec, shared = spec_with("approve_own: false"), StateStore()
    event = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": ANN, "responded_at": datetime.now(UTC)}
    why = r"\[approval\.refused\] ann started the run and may not approve its model .*nothing was decided"
    with pytest.raises(RefusedAnswerError, match=why):
        ask(spec).execute_complete({**context(), "task_state_store": shared}, event)
    assert ledger.standing(MODEL).champion is None
    assert [entry.outcome for entry in ledger.history(MODEL)] == ["needs_approval"]

    with pytest.raises(TaskDeferred):
        ask(spec)._ask({**context(), "task_state_store": shared})
    assert len(asked) == 1
    assert asked[0]["subject"] == "REFUSED, asked again: May search_ranking 1.0.1 be promoted?"
    assert asked[0]["body"].startswith("**The last answer was REFUSED**: ann started the run and may not approve its model")
    assert answer(spec, "Approve", person={"id": "eve", "name": "eve"}) == "approved"


def test_a_note_with_control_characters_is_refused_and_the_question_asked_again(ledger: Ledger) -> None:
    request_for(ledger, 1)
    with pytest.raises(RefusedAnswerError, match=r"the note has the character U\+001B at position 1"):
        answer(spec_with("approve_own: true"), "Approve", note="\x1b[31mred")
    assert [entry.outcome for entry in ledger.history(MODEL)] == ["needs_approval"]


def test_names_in_a_question_are_text_and_no_markdown(ledger: Ledger, asked: list[dict[str, Any]]) -> None:
    request_for(ledger, 1, started_by="[ann](http://e)<img>")
    with pytest.raises(TaskDeferred):
        ask(spec_with("approve_own: false"))._ask(context())
    assert "not [ann]\\(http://e)&lt;img>, who started the run" in asked[0]["body"]


def test_answer_counts_when_its_try_is_killed_before_it_is_recorded(
    ledger: Ledger, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    request_for(ledger, 1)
    spec, shared = spec_with(), StateStore()
    event = {"chosen_options": ["Approve"], "params_input": {"note": "fine"}, "responded_by_user": ANN, "responded_at": datetime.now(UTC)}

    def killed(*_arguments: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(AskOperator, "_record", killed)
        with pytest.raises(KeyboardInterrupt):
            ask(spec).execute_complete({**context(), "task_state_store": shared}, event)
    assert ledger.standing(MODEL).champion is None

    assert ask(spec)._ask({**context(), "task_state_store": shared}) == "approved"

    assert asked == []
    assert ledger.history(MODEL)[-1].reasons[-1].words == "approved by ann: fine"


def test_answer_is_recorded_when_the_state_store_does_not_answer(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StateStore):
        def set(self, key: str, value: Any) -> None:
            raise RuntimeError("API_SERVER_ERROR")

    request_for(ledger, 1)
    event = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": ANN, "responded_at": datetime.now(UTC)}
    assert ask(spec_with()).execute_complete({**context(), "task_state_store": Broken()}, event) == "approved"
    assert "could not be kept for a further try: RuntimeError: API_SERVER_ERROR" in caplog.text


def test_refused_answers_take_nothing_of_the_budget_of_failures(ledger: Ledger) -> None:
    task = approval_dag(spec_with(), {"retries": 5, "retry_policy": BudgetRetryPolicy(failures=0, backoff=timedelta(minutes=1))}).get_task(
        "ask"
    )
    refused = task.retry_policy.evaluate(RefusedAnswerError("no"), 1, task.retries)
    assert (refused.action, refused.retry_delay) == (RetryAction.RETRY, timedelta(seconds=1))
    assert task.retry_policy.evaluate(ValueError("broken"), 1, task.retries).action == RetryAction.FAIL
    assert task.retries == 55


@pytest.mark.parametrize(
    ("promote", "started_by", "users", "assigned", "told"),
    [
        ("approvers: [ann, eve]", "ann", "", ["eve"], "**May answer:** eve; not ann, who started the run."),
        ("approvers: [ann, eve]", None, "", ["ann", "eve"], "**May answer:** ann, eve."),
        ("approvers: [ann, eve], approve_own: true", "ann", "", ["ann", "eve"], "**May answer:** ann, eve."),
        # Airflow's own users, where a task can know them: it refuses anybody else's answer itself.
        ("approve_own: false", "ann", "ann:admin,bob:user,look:viewer", ["bob"], "**May answer:** bob; not ann, who started the run."),
        ("approve_own: false", None, "ann:admin,bob:user", [], "**May answer:** any user who may edit this task."),
        ("approve_own: true", "ann", "ann:admin,bob:user", [], "**May answer:** any user who may edit this task."),
    ],
)
def test_the_form_says_beforehand_who_may_answer(
    ledger: Ledger,
    asked: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    promote: str,
    started_by: str | None,
    users: str,
    assigned: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", users)
    request_for(ledger, 1, started_by=started_by)
    with pytest.raises(TaskDeferred):
        ask(spec_with(promote))._ask(context())
    assert [user["id"] for user in asked[0]["assigned_users"]] == assigned
    assert told in asked[0]["body"]


def test_users_of_another_auth_manager_are_not_guessed(
    ledger: Ledger, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager")
    request_for(ledger, 1, started_by="ann")
    with pytest.raises(TaskDeferred):
        ask(spec_with("approve_own: false"))._ask(context())
    assert asked[0]["assigned_users"] == []
    assert "**May answer:** any user who may edit this task; not ann, who started the run." in asked[0]["body"]


def test_an_airflow_whose_only_user_started_the_run_says_so_at_once(
    ledger: Ledger, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ann:admin,look:viewer")
    request_for(ledger, 1, started_by="ann")
    with pytest.raises(AirflowFailException, match=r"only 'ann' may approve search_ranking.*\(add a user to Airflow\)"):
        ask(spec_with("approve_own: false"))._ask(context())
    assert asked == []


class NextWeek(datetime):
    """The clock after the time of `approve_within`."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(days=7, seconds=1)


def test_a_clock_of_the_triggerer_that_is_ahead_ends_no_request(ledger: Ledger) -> None:
    request_for(ledger, 1)
    with pytest.raises(TaskDeferred) as deferred:
        ask(spec_with()).execute_complete(context(), {"error": "…", "error_type": "timeout"})
    assert deferred.value.method_name == "execute_complete"
    assert [entry.outcome for entry in ledger.history(MODEL)] == ["needs_approval"]


def test_no_answer_in_time_expires(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    request_for(ledger, 1)
    monkeypatch.setattr(approval, "datetime", NextWeek)
    assert ask(spec_with()).execute_complete(context(), {"error": "…", "error_type": "timeout"}) == "expired"
    assert ledger.history(MODEL)[-1].outcome == "expired"
    assert ledger.standing(MODEL).champion is None


def test_an_answer_after_the_time_is_over_promotes_nothing(ledger: Ledger) -> None:
    request = request_for(ledger, 1)
    late = request.decided_at + timedelta(days=7, seconds=1)
    event = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": ANN, "responded_at": late}
    assert ask(spec_with()).execute_complete(context(), event) == "expired"
    assert ledger.history(MODEL)[-1].reasons[-1].words.startswith("ann answered after 20")
    assert ledger.standing(MODEL).champion is None


def test_of_the_events_of_several_requests_the_ledgers_newest_is_asked(ledger: Ledger) -> None:
    older, newer = request_for(ledger, 1), request_for(ledger, 2)
    run = context()
    events = [SimpleNamespace(extra={"key": entry.key}) for entry in (newer, older)]
    run["triggering_asset_events"] = {"asset": events}
    assert approval.request_of(run, ledger, spec_with()) == newer


def test_an_older_request_is_superseded_and_its_approval_does_nothing(ledger: Ledger) -> None:
    old = request_for(ledger, 1)
    request_for(ledger, 2)
    event = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": ANN, "responded_at": datetime.now(UTC)}
    assert ask(spec_with()).execute_complete(context(key=old.key), event) is None
    assert ledger.standing(MODEL).champion is None
    ending = ledger.ending_of(MODEL, old.key)
    assert ending is not None
    assert ending.outcome == "superseded"


def test_an_approval_against_another_standing_is_stale(ledger: Ledger) -> None:
    first = request_for(ledger, 1)
    request_for(ledger, 2, outcome="accepted")
    # The other champion ended the request; bound to digests, it cannot be answered any more.
    assert answer(spec_with(), "Approve") is None
    champion = ledger.standing(MODEL).champion
    assert champion is not None
    assert champion.version == "2"
    ending = ledger.ending_of(MODEL, first.key)
    assert ending is not None
    assert ending.outcome == "superseded"


def follow(spec: PipelineSpec) -> AnswerOperator:
    return AnswerOperator(task_id="promote", spec=spec, model=MODEL, alerts=Alerts())


@pytest.mark.parametrize("state", ["success", "skipped"])
def test_a_question_that_was_marked_done_is_a_bypass_and_promotes_nothing(ledger: Ledger, state: str) -> None:
    request_for(ledger, 1)
    decision = follow(spec_with()).decision(context(state=state))
    assert decision.outcome == "bypassed"
    assert f"marked as {state} without an answer" in decision.reasons[-1].words
    assert ledger.standing(MODEL).champion is None


def test_a_forged_xcom_is_not_read(ledger: Ledger) -> None:
    request_for(ledger, 1)
    forged = context()
    forged["ti"].xcom_pull = lambda **_: {"chosen_options": ["Approve"]}
    assert follow(spec_with()).decision(forged).outcome == "bypassed"


def test_a_question_that_failed_stays_open(ledger: Ledger) -> None:
    request_for(ledger, 1)
    with pytest.raises(AirflowFailException, match="task ask is failed; clear it to ask again"):
        follow(spec_with()).decision(context(state="failed"))
    assert len(ledger.open_requests(MODEL)) == 1


def test_the_step_behind_follows_what_was_answered(ledger: Ledger) -> None:
    request_for(ledger, 1)
    answer(spec_with(), "Approve")
    assert follow(spec_with()).decision(context()).outcome == "approved"


def test_a_run_without_a_request_says_so(ledger: Ledger) -> None:
    with pytest.raises(AirflowFailException, match="the ledger has no request for an approval of search_ranking"):
        ask(spec_with())._ask(context())
    request_for(ledger, 1)
    with pytest.raises(AirflowFailException, match="no request 'nonsense'"):
        ask(spec_with())._ask(context(key="nonsense"))


def test_the_wait_ends_when_the_request_does(ledger: Ledger) -> None:
    old = request_for(ledger, 1)
    request_for(ledger, 2)
    watch = WatchRequest(model=MODEL, key=old.key, until=(datetime.now(UTC) + timedelta(days=1)).isoformat(), ti_id=TI_ID)
    assert first_event(watch.run) == {"ended": "superseded"}


def test_the_wait_ends_when_its_time_is_over(ledger: Ledger) -> None:
    request = request_for(ledger, 1)
    watch = WatchRequest(model=MODEL, key=request.key, until=datetime.now(UTC).isoformat(), ti_id=TI_ID)
    assert first_event(watch.run) == {"error": "the time is over", "error_type": "timeout"}


def test_an_answer_that_came_before_the_task_was_parked_wakes_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for(ledger, 1)
    person = SimpleNamespace(id="ann", name="ann")
    given = SimpleNamespace(
        response_received=True,
        responded_by_user=person,
        responded_at=datetime.now(UTC),
        chosen_options=["Approve"],
        params_input={"note": "yes"},
    )
    looked: list[str] = []
    monkeypatch.setattr(approval, "get_hitl_detail_content_detail", lambda ti_id: looked.append(str(ti_id)) or given)
    watch = WatchRequest(model=MODEL, key=request.key, until=(datetime.now(UTC) + timedelta(days=1)).isoformat(), ti_id=TI_ID)
    event = first_event(watch.run)
    assert looked == [TI_ID]
    assert ask(spec_with()).execute_complete(context(), event) == "approved"
    assert ledger.history(MODEL)[-1].reasons[-1].words == "approved by ann: yes"


def test_another_pipelines_question_about_the_same_model_is_not_asked_by_this_ones_rules(
    ledger: Ledger, asked: list[dict[str, Any]]
) -> None:
    request_for(ledger, 1, pipeline="search_ranking_b")
    with pytest.raises(AirflowSkipException, match=r"search_ranking_b\.approval asks about this candidate"):
        ask(spec_with())._ask(context())
    with pytest.raises(AirflowSkipException, match="search_ranking_b"):
        follow(spec_with()).decision(context(state="skipped"))
    assert asked == []
    assert len(ledger.open_requests(MODEL)) == 1


def first_event(run: Callable[[], Any]) -> Any:
    async def first() -> Any:
        return (await anext(run())).payload

    return asyncio.run(first())
