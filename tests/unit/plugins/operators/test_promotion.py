"""What a decision says to the world: which asset has an event, who is told, and that nobody is told twice of what was found decided."""

import os
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from nightshift.airflow_ext import alerts
from nightshift.airflow_ext.assets import DECISIONS, model_asset
from nightshift.operators import promotion, rollback
from nightshift.operators.approval_expiry import ExpireOperator
from nightshift.operators.promotion import PromoteOperator
from nightshift.operators.registry_alerts import alerts_of
from nightshift.operators.resolve_canary import ResolveCanary
from nightshift.operators.rollback import RollbackOperator
from nightshift.operators.stage import StageOperator
from nightshift.resolved_run import ResolvedRun, check_settled, settle
from nightshift.settings import Settings
from training.contracts import ContractError, RunIdentity, StageResult
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Entry, Ledger
from training.registry.ledger.rollback_orders import RollbackOrder, place
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, load_spec, resolve_uris
from training.spec.pipeline_spec import Alerts
from training.store import Store

MODEL = "search_ranking"
RUN = RunIdentity(dag_id=MODEL, run_id="r1", task_id="promote")


class Outlets(defaultdict[Any, Any]):
    """What Airflow keeps of a task's asset events."""

    def __init__(self) -> None:
        super().__init__(lambda: SimpleNamespace(add=lambda asset, extra: self.added.append((asset, extra))))
        self.added: list[tuple[Asset, dict[str, Any]]] = []


@pytest.fixture
def announced(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(promotion, "announce", lambda event, alerts, unlogged: events.append(dict(event)))
    return events


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(settings.database_url)


def result(decision: str, action: str, run: RunIdentity = RUN) -> StageResult:
    scalars = {
        "model": MODEL,
        "version": "7",
        "semantic_version": "1.2.0",
        "weights_digest": "w",
        "decision": decision,
        "action": action,
        "reasons": "words",
        "decided_by": "ann",
        "key": "k",
    }
    return StageResult(
        pipeline=MODEL,
        stage="promote",
        work_id="f" * 64,
        artifact_uri="u",
        digest="d",
        run=run,
        attempt_id="a",
        attempts=1,
        committed_at="2026-02-01T02:00:00+00:00",
        scalars=scalars,
    )


def test_run_that_may_not_promote_skips_the_decision_and_its_note_says_why(settings: Settings) -> None:
    spec_uri = Store(settings.store_uri).put_json(freeze(load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml")))
    values = {"spec_uri": spec_uri, "as_of": "2026-02-01T02:00:00+00:00", "force": "", "overrides": {"promote": False}}
    pushed: dict[str, str] = {}
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}), xcom_pull=pytest.fail)}
    with pytest.raises(AirflowSkipException, match="the trigger says promote: false"):
        PromoteOperator(task_id="promote", model=MODEL, alerts=Alerts()).work(context, ResolvedRun(values), settings)
    assert pushed == {"failure": "the trigger says promote: false"}


def decided(found: StageResult) -> Outlets:
    outlets = Outlets()
    PromoteOperator(task_id="promote", model=MODEL, alerts=Alerts()).finish({"outlet_events": outlets}, found, RUN)
    assert set(outlets) <= {DECISIONS}
    return outlets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decision", "action", "alias", "event"),
    [
        ("accepted", "promoted", "champion", "promoted"),
        ("approved", "promoted", "champion", "promoted"),
        ("rolled_back", "rolled_back", "champion", "rolled_back"),
        ("accepted", "canary", "canary", "canary"),
        ("needs_approval", "recorded", "requested", "needs_approval"),
        ("rejected", "recorded", None, "rejected"),
        ("declined", "recorded", None, "rejected"),
        ("expired", "recorded", None, "rejected"),
        ("bypassed", "recorded", None, "rejected"),
        ("rolled_back", "canary_ended", None, "rolled_back"),
    ],
)
def test_each_decision_has_its_event(announced: list[dict[str, Any]], decision: str, action: str, alias: str | None, event: str) -> None:
    added = decided(result(decision, action)).added
    assert [asset for asset, _ in added] == ([] if alias is None else [model_asset(MODEL, alias)])
    for _, extra in added:
        assert (extra["version"], extra["semantic_version"], extra["key"], extra["decided_by"]) == ("7", "1.2.0", "k", "ann")
    assert [(entry["event"], entry["version"], entry["reason"]) for entry in announced] == [(event, "1.2.0", "words")]


def test_the_champion_measured_again_is_no_event(announced: list[dict[str, Any]]) -> None:
    assert decided(result("accepted", "recorded")).added == []
    assert announced == []


def test_a_canary_that_waits_on_and_a_decision_that_was_found_send_no_alert(announced: list[dict[str, Any]]) -> None:
    assert decided(result("waiting", "recorded")).added == []
    earlier = RunIdentity(dag_id=MODEL, run_id="yesterday", task_id="promote")
    assert decided(result("accepted", "promoted", earlier)).added == []
    assert announced == []


def test_a_second_try_that_finds_its_own_decision_tells_of_it(announced: list[dict[str, Any]]) -> None:
    first_try = RunIdentity(dag_id=MODEL, run_id="r1", task_id="promote", try_number=0)
    assert len(decided(result("accepted", "promoted", first_try)).added) == 1
    assert len(announced) == 1


def test_a_decision_that_was_followed_by_another_is_not_told_again_when_its_task_is_cleared(
    ledger: Ledger, announced: list[dict[str, Any]]
) -> None:
    first = candidate(ledger, 1)
    found = result("accepted", "promoted")
    found = replace(found, scalars={**found.scalars, "key": first.key})
    assert len(decided(found).added) == 1
    candidate(ledger, 2, "rejected")
    assert len(decided(found).added) == 1
    candidate(ledger, 3)
    assert decided(found).added == []
    assert len(announced) == 2


def test_a_forged_spec_decides_nothing(settings: Settings) -> None:
    settled = {"spec_uri": "file:///store/objects/sha256/aa/1", "as_of": "2026-02-01T02:00:00+00:00", "force": False}
    found = dict(settled)
    ti = SimpleNamespace(dag_id=MODEL, run_id="r1", xcom_pull=lambda task_ids: found)
    with pytest.raises(ContractError, match="the XCom of task 'resolve' is not what it settled"):
        check_settled({"ti": ti}, settings)
    settle({"ti": ti}, settings, settled)
    check_settled({"ti": ti}, settings)
    found["spec_uri"] = "file:///store/objects/sha256/bb/2"
    with pytest.raises(ContractError, match="clear 'resolve'"):
        PromoteOperator(task_id="promote", model=MODEL, alerts=Alerts()).resolved({"ti": ti})
    # A cleared `resolve` settles anew.
    settle({"ti": ti}, settings, found)
    check_settled({"ti": ti}, settings)


def candidate(ledger: Ledger, number: int, outcome: str = "accepted", **more: Any) -> Entry:
    holder = AliasHolder(version=str(number), weights_digest=f"w{number}", model_uri="u", as_of=datetime(2026, 2, 1, tzinfo=UTC), bounds={})
    evidence = {
        "weights_digest": f"w{number}",
        "evaluation_digest": f"e{number}",
        "revision": ledger.standing(MODEL).revision,
        "as_of": "2026-02-01T02:00:00+00:00",
        **more,
    }
    return record_candidate(ledger, holder, model=MODEL, outcome=outcome, reasons=[], evidence=evidence, decided_by="night")


def ordered(ledger: Ledger, number: int, reason: str = "complaints") -> Any:
    """Return the context of a run that carries out an order about version `number`, given now."""
    revision = ledger.standing(MODEL).revision
    order = RollbackOrder(model=MODEL, weights_digest=f"w{number}", revision=revision, reason=reason, ordered_by="ann")
    return {"dag_run": SimpleNamespace(dag_id="rollback", run_id="r1"), "params": {"order": place(order, ledger.database_url)}}


def test_a_rollback_is_that_of_its_order_and_happens_once(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        candidate(ledger, number)
    context = ordered(ledger, 2)
    first, again = (RollbackOperator(task_id="rollback").decision(context) for _ in range(2))
    assert first.key == again.key
    assert (first.decided_by, first.version, first.reasons[0].words) == ("ann", "2", "from version 3: complaints")
    champion = ledger.standing(MODEL).champion
    assert champion is not None
    assert champion.version == "2"
    # The same words once the model has moved are another order, also where Airflow gives its run an earlier one's id.
    assert RollbackOperator(task_id="rollback").decision(ordered(ledger, 1)).version == "1"


def test_the_reason_of_a_rollback_is_in_its_alert_also_after_a_deferral_and_in_no_log(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    candidate(ledger, 1)
    candidate(ledger, 2)
    context = {**ordered(ledger, 1), "outlet_events": Outlets()}
    sent: list[str] = []
    found = result("rolled_back", "rolled_back")
    monkeypatch.setattr(rollback, "alerts_of", lambda *_: (MODEL, Alerts(on=("rolled_back",))))
    monkeypatch.setattr(alerts, "_to_slack", lambda event, _alerts: bool(sent.append(event["reason"])))
    monkeypatch.setattr(StageOperator, "trigger_reentry", lambda task, context, event, work_id: task.finish(context, found, RUN))
    RollbackOperator(task_id="rollback").decision(context)
    # The triggerer starts another process.
    RollbackOperator(task_id="rollback").trigger_reentry(context, {}, "f" * 64)
    assert sent == ["from version 2: complaints"]
    assert "alert: " in caplog.text
    assert "complaints" not in caplog.text


def test_an_order_about_a_standing_that_has_moved_since_is_not_carried_out(ledger: Ledger) -> None:
    candidate(ledger, 1)
    candidate(ledger, 2)
    context = ordered(ledger, 1)
    candidate(ledger, 3)
    with pytest.raises(AirflowFailException, match=r"promotion\.conflict"):
        RollbackOperator(task_id="rollback").decision(context)


@pytest.mark.parametrize(("number", "words"), [(9, "has no version 'w9'.*known: 1"), (1, "is the champion of search_ranking already")])
def test_a_rollback_to_nowhere_is_an_error_that_is_not_tried_again(ledger: Ledger, number: int, words: str) -> None:
    candidate(ledger, 1)
    with pytest.raises(AirflowFailException, match=words):
        RollbackOperator(task_id="rollback").decision(ordered(ledger, number))


def test_a_run_without_an_order_rolls_nothing_back(ledger: Ledger) -> None:
    candidate(ledger, 1)
    context: Any = {"params": {"order": "0" * 32}}
    with pytest.raises(AirflowFailException, match=r"\[rollback\.order\] there is no order '0+': `nightshift rollback"):
        RollbackOperator(task_id="rollback").decision(context)


def test_a_rollback_tells_those_whom_the_pipeline_tells(ledger: Ledger) -> None:
    candidate(ledger, 1, pipeline=MODEL)
    settings = Settings.from_environment()
    expected = load_spec(CHECKOUT / "dags" / "pipelines" / f"{MODEL}.yaml").alerts
    assert alerts_of(ledger.newest_first(MODEL), settings) == (MODEL, expected)
    candidate(ledger, 2, pipeline="gone")
    assert alerts_of(ledger.newest_first(MODEL), settings) == ("gone", Alerts())


def test_a_canary_run_without_a_canary_is_skipped(ledger: Ledger, execute: Any) -> None:
    candidate(ledger, 1)
    resolve = ResolveCanary(task_id="resolve", spec_path="…", model=MODEL)
    with pytest.raises(AirflowSkipException, match="search_ranking has no canary"):
        execute(resolve, {"dag_run": SimpleNamespace(dag_id=f"{MODEL}.canary")})


def test_a_canary_is_judged_as_of_now_regardless_of_the_pipelines_schedule() -> None:
    spec = load_spec(CHECKOUT / "dags" / "pipelines" / f"{MODEL}.yaml")
    now = datetime(2026, 2, 1, 15, 30, tzinfo=UTC)
    run = SimpleNamespace(logical_date=None, run_after=now, start_date=None)
    resolve = ResolveCanary(task_id="resolve", spec_path="…", model=MODEL)
    assert resolve.as_of({"dag_run": run}, spec, None) == now
    assert resolve.as_of({"dag_run": run}, spec, "2026-01-05T02:00:00+00:00") == datetime(2026, 1, 5, 2, tzinfo=UTC)


def test_housekeeping_ends_requests_whose_time_is_over_and_leaves_the_others(
    ledger: Ledger, store: Store, shop: Any, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec_uri = store.put_json(freeze(resolve_uris(load_spec(CHECKOUT / "dags" / "pipelines" / f"{MODEL}.yaml"), os.environ)))
    request = candidate(ledger, 1, "needs_approval", spec_uri=spec_uri)
    assert execute(ExpireOperator(task_id="expire"), {}) == [MODEL]
    assert ledger.open_requests(MODEL) == [request]

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=8)

    monkeypatch.setattr("nightshift.operators.approval_expiry.datetime", Later)
    assert execute(ExpireOperator(task_id="expire"), {}) == [MODEL]
    assert ledger.open_requests(MODEL) == []
    assert ledger.history(MODEL)[-1].outcome == "expired"
