"""A canary is looked at until it is settled: each look makes the next, and housekeeping makes the one that was lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, TriggerDagRun

from nightshift.open_canary import night_path
from nightshift.operators import canary_runs
from nightshift.operators.canary_runs import MissedCanaryRunsOperator, NextCanaryRunOperator
from nightshift.operators.resolve_canary import ResolveCanary
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Ledger
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, parse_spec
from training.spec.schedule.instants import next_slot

MODEL = "search_ranking"
DAG_ID = f"{MODEL}.canary"
PROMOTE = "promote: {model: search_ranking, approval: automatic}"


class Supervisor:
    """Keeps what a task asks Airflow for."""

    def __init__(self) -> None:
        self.asked: list[TriggerDagRun] = []
        self.refusal: ErrorResponse | None = None

    def send(self, message: TriggerDagRun) -> Any:
        self.asked.append(message)
        return self.refusal or OKResponse(ok=True)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    made = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(settings.database_url)


def canary(ledger: Ledger, number: int = 2, *, pipeline: str = MODEL, run_id: str = "scheduled__2026-02-01") -> None:
    """Make version `number` the canary beside a champion."""
    for version in (number - 1, number):
        holder = AliasHolder(
            version=str(version), weights_digest=f"w{version}", model_uri="u", as_of=datetime(2026, 2, 1, tzinfo=UTC), bounds={}
        )
        evidence = {
            "weights_digest": f"w{version}",
            "evaluation_digest": f"e{version}",
            "revision": ledger.standing(MODEL).revision,
            "as_of": "2026-02-01T02:00:00+00:00",
            "has_canary": True,
            "pipeline": pipeline,
            "run_id": run_id,
        }
        record_candidate(ledger, holder, model=MODEL, outcome="accepted", reasons=[], evidence=evidence, decided_by="night")
    assert ledger.standing(MODEL).canary is not None


def next_look(schedule: str = "30 2 * * *", timezone: str = "America/New_York") -> NextCanaryRunOperator:
    return NextCanaryRunOperator(task_id="next_look", model=MODEL, schedule=schedule, timezone=timezone)


def in_run(unfinished: int = 0) -> Any:
    ti = SimpleNamespace(get_dr_count=lambda dag_id, states: unfinished)
    return {"dag_run": SimpleNamespace(dag_id=DAG_ID), "ti": ti}


def test_a_look_that_leaves_the_canary_open_makes_the_next_at_the_next_slot_of_the_pipelines_clock(
    ledger: Ledger, supervisor: Supervisor, execute: Any
) -> None:
    canary(ledger)
    run_id = execute(next_look(), in_run())
    (asked,) = supervisor.asked
    assert asked.run_after is not None
    local = asked.run_after.astimezone(canary_runs.ZoneInfo("America/New_York"))
    assert (local.hour, local.minute) == (2, 30)
    assert timedelta() < asked.run_after - datetime.now(UTC) <= timedelta(hours=25)
    assert (asked.dag_id, asked.run_id) == (DAG_ID, run_id)
    assert run_id == f"look-{local.isoformat(timespec='minutes')}"
    # What the grid shows of a run that waits.
    assert asked.note == f"waits until {local:%Y-%m-%d %H:%M} (America/New_York) to score the canary"


def test_a_look_that_is_planned_already_is_planned_once(ledger: Ledger, supervisor: Supervisor, execute: Any) -> None:
    canary(ledger)
    supervisor.refusal = ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
    assert execute(next_look(), in_run()).startswith("look-")


def test_a_look_that_airflow_refuses_fails_its_task(ledger: Ledger, supervisor: Supervisor, execute: Any) -> None:
    canary(ledger)
    supervisor.refusal = ErrorResponse(error=ErrorType.API_SERVER_ERROR)
    with pytest.raises(AirflowRuntimeError):
        execute(next_look(), in_run())


@pytest.mark.parametrize("pipeline", ["", "another"], ids=["no canary", "another pipeline's canary"])
def test_after_a_settled_canary_there_is_no_next_look(ledger: Ledger, supervisor: Supervisor, execute: Any, pipeline: str) -> None:
    if pipeline:
        canary(ledger, pipeline=pipeline)
    with pytest.raises(AirflowSkipException, match="there is no next run"):
        execute(next_look(), in_run())
    assert supervisor.asked == []


@pytest.mark.parametrize(
    ("age", "unfinished", "started"),
    [(timedelta(hours=1), 0, [DAG_ID]), (timedelta(hours=1), 1, []), (timedelta(), 0, [])],
    ids=["lost", "a run waits or looks", "just made"],
)
def test_housekeeping_starts_a_look_where_none_is_to_come(
    ledger: Ledger,
    supervisor: Supervisor,
    execute: Any,
    monkeypatch: pytest.MonkeyPatch,
    age: timedelta,
    unfinished: int,
    started: list[str],
) -> None:
    canary(ledger)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + age

    monkeypatch.setattr(canary_runs, "datetime", Later)
    assert execute(MissedCanaryRunsOperator(task_id="canary_looks"), in_run(unfinished)) == started
    assert [asked.dag_id for asked in supervisor.asked] == started


def simulate(settings: Settings, *nights: str) -> None:
    """Note nights as `make run` does."""
    for night in nights:
        path = night_path(settings.home, MODEL, f"night-{night[:10]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(night, encoding="utf-8")


def test_a_canary_of_a_simulated_night_has_no_look_by_the_clock(
    ledger: Ledger, settings: Settings, supervisor: Supervisor, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary(ledger, run_id="night-2026-02-01")
    simulate(settings, "2026-02-01T02:00:00+00:00")
    with pytest.raises(AirflowSkipException, match="the next night of `make run` looks at it"):
        execute(next_look(), in_run())
    monkeypatch.setattr(canary_runs, "START_TIME", timedelta(days=-1))
    assert execute(MissedCanaryRunsOperator(task_id="canary_looks"), in_run()) == []
    assert supervisor.asked == []


@pytest.mark.parametrize(
    ("run_id", "parameter", "as_of"),
    [
        ("night-2026-02-01", None, datetime(2026, 2, 4, 2, tzinfo=UTC)),
        ("night-2026-02-01", "2026-02-02", datetime(2026, 2, 2, tzinfo=UTC)),
        ("scheduled__2026-02-01", None, datetime(2026, 3, 1, 2, 30, tzinfo=UTC)),
    ],
    ids=["simulated", "a trigger's instant", "by the schedule"],
)
def test_a_look_is_as_of_the_latest_simulated_night_only_where_such_a_night_made_the_canary(
    ledger: Ledger, settings: Settings, shop: Any, execute: Any, run_id: str, parameter: str | None, as_of: datetime
) -> None:
    canary(ledger, run_id=run_id)
    simulate(settings, "2026-02-01T02:00:00+00:00", "2026-02-04T02:00:00+00:00", "2026-02-03T02:00:00+00:00")
    resolve = ResolveCanary(task_id="resolve", spec_path=str(settings.home / f"{MODEL}.yaml"), model=MODEL)
    settings.home.joinpath(f"{MODEL}.yaml").write_bytes(yaml_with_canary("30 2 * * *"))
    at = datetime(2026, 3, 1, 2, 31, tzinfo=UTC)
    conf = {} if parameter is None else {"as_of": parameter}
    run = SimpleNamespace(dag_id=DAG_ID, run_id="look-1", conf=conf, logical_date=None, run_after=as_of, start_date=at)
    settled = execute(resolve, {"dag_run": run, "ti": SimpleNamespace(dag_id=DAG_ID, run_id="look-1", xcom_push=lambda **_named: None)})
    assert datetime.fromisoformat(settled["as_of"]) == as_of
    is_simulated = run_id.startswith("night") and parameter is None
    assert ResolvedRun(settled).simulated == ({"simulated": True} if is_simulated else {})


def yaml_with_canary(schedule: str) -> bytes:
    text = (CHECKOUT / "dags" / "pipelines" / f"{MODEL}.yaml").read_text(encoding="utf-8")
    assert PROMOTE in text
    return text.replace(PROMOTE, f'promote: {{model: {MODEL}, canary: {{schedule: "{schedule}"}}}}').encode()


def spec_with_canary(schedule: str) -> PipelineSpec:
    return parse_spec(yaml_with_canary(schedule))


@pytest.mark.parametrize(
    ("started_at", "as_of"),
    [
        (datetime(2026, 2, 1, 2, 31, tzinfo=UTC), datetime(2026, 2, 1, 2, 30, tzinfo=UTC)),
        (datetime(2026, 2, 4, 9, 0, tzinfo=UTC), datetime(2026, 2, 4, 2, 30, tzinfo=UTC)),
    ],
    ids=["in time", "three days late"],
)
def test_a_look_is_as_of_its_slot_and_one_that_waited_as_of_the_newest(started_at: datetime, as_of: datetime) -> None:
    planned = next_slot("30 2 * * *", UTC, datetime(2026, 2, 1, tzinfo=UTC))
    run = SimpleNamespace(logical_date=None, run_after=planned, start_date=started_at)
    resolve = ResolveCanary(task_id="resolve", spec_path="…", model=MODEL)
    assert resolve.as_of({"dag_run": run}, spec_with_canary("30 2 * * *"), None) == as_of
