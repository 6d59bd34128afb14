"""A simulated night has the canary of an earlier one looked at as of itself; no other run does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from devstack import canary_look
from devstack.airflow_api import AirflowApi
from devstack.canary_look import look_at_canary, note_night
from devstack.next_night import Night
from nightshift.open_canary import open_canary
from nightshift.settings import Settings
from tests.unit.training.registry.scenes import decide_on
from training.contracts import RunIdentity, StageResult
from training.registry.ledger.ledger import Ledger
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec

MODEL = "search_ranking"
MADE_BY = "night-2026-02-02"
CANARY_DAG = f"{MODEL}.canary"


class Airflow:
    """Takes the look's run; each of its tasks is done at once."""

    def __init__(self) -> None:
        self.is_paused = False
        self.state = "success"
        self.made: list[tuple[str, Any]] = []

    def keep_up(self) -> None:
        pass

    def get(self, path: str, **_query: Any) -> Any:
        if path.endswith("/taskInstances"):
            task = {"task_id": "promote", "state": self.state, "try_number": 1, "start_date": None, "duration": 1.0, "pool": "cpu"}
            return {"task_instances": [task]}
        return {"is_paused": self.is_paused, "state": self.state}

    def create(self, path: str, body: Any) -> bool:
        self.made.append((path, body))
        return True


@pytest.fixture
def spec() -> PipelineSpec:
    shipped = load_spec(CHECKOUT / "dags" / "pipelines" / f"{MODEL}.yaml")
    rules = {"canary": {"for": "1d", "support": 100}}
    return shipped.model_copy(update={"promote": type(shipped.promote).model_validate({**shipped.promote.model_dump(), **rules})})


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    settings.home.mkdir(mode=0o700)
    return Ledger(settings.database_url)


def night(day: int) -> Night:
    return Night(f"night-2026-02-{day:02}", datetime(2026, 2, day, 2, tzinfo=UTC))


def make_canary(ledger: Ledger, *, run_id: str = MADE_BY, pipeline: str = MODEL) -> None:
    for number, day in ((1, 1), (2, 2)):
        evidence = {"pipeline": pipeline, "run_id": run_id}
        decide_on(ledger, number, model=MODEL, canary=True, as_of=datetime(2026, 2, day, 2, tzinfo=UTC), evidence=evidence)


def look(settings: Settings, spec: PipelineSpec, airflow: Airflow, of: Night, monkeypatch: pytest.MonkeyPatch, **scalars: str) -> list[str]:
    """Have a night look; return what it says."""
    result = StageResult(
        pipeline=MODEL,
        stage="promote",
        work_id="f" * 64,
        artifact_uri="file:///store/decision",
        digest="d" * 64,
        run=RunIdentity(dag_id=CANARY_DAG, run_id="look", task_id="promote"),
        attempt_id="a",
        attempts=1,
        committed_at="2026-02-03T02:00:00+00:00",
        scalars=dict(scalars),
        timings={"total": 1.0},
    )
    monkeypatch.setattr(canary_look, "stage_result", lambda _client, _dag, _run, stage: result if scalars and stage == "promote" else None)
    said: list[str] = []
    look_at_canary(settings, cast("AirflowApi", airflow), spec, of, say=said.append)
    return said


def test_a_later_night_looks_and_shows_what_came_of_it(
    settings: Settings, spec: PipelineSpec, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow()
    make_canary(ledger)
    for day in (2, 3):
        note_night(settings, spec, night(day))
    said = look(settings, spec, airflow, night(3), monkeypatch, headline="waiting: simulated time: …")
    # Without `as_of`: the look's instant is that of the note, which no trigger writes.
    assert airflow.made == [(f"/dags/{CANARY_DAG}/dagRuns", {"dag_run_id": "look-night-2026-02-03", "logical_date": None, "conf": {}})]
    assert said[0] == (
        f"a look at the canary, version 1.2.0: {CANARY_DAG}, run look-night-2026-02-03, simulated as of 2026-02-03T02:00:00+00:00"
    )
    assert said[-1] == "canary    waiting: simulated time: …"


def test_a_look_that_fails_says_why_and_leaves_the_night_as_it_is(
    settings: Settings, spec: PipelineSpec, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow()
    airflow.state = "failed"
    make_canary(ledger)
    for day in (2, 3):
        note_night(settings, spec, night(day))
    assert look(settings, spec, airflow, night(3), monkeypatch)[-1].startswith("the look failed in promote: it ended before its first line")


def test_a_paused_look_is_named_and_not_awaited(
    settings: Settings, spec: PipelineSpec, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow()
    airflow.is_paused = True
    make_canary(ledger)
    for day in (2, 3):
        note_night(settings, spec, night(day))
    said = look(settings, spec, airflow, night(3), monkeypatch)
    assert said == [f"the canary, version 1.2.0, is not looked at: {CANARY_DAG} is paused in Airflow"]
    assert airflow.made == []


@pytest.mark.parametrize(
    ("run_id", "pipeline", "noted", "of"),
    [
        ("scheduled__2026-02-02", MODEL, (2, 3), 3),
        (MADE_BY, "another", (2, 3), 3),
        (MADE_BY, MODEL, (2,), 2),
        (MADE_BY, MODEL, (2, 3, 4), 3),
    ],
    ids=["by the schedule", "another pipeline's", "the night that made it", "an older night by name"],
)
def test_other_canaries_and_other_nights_bring_no_look(
    settings: Settings,
    spec: PipelineSpec,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    run_id: str,
    pipeline: str,
    noted: tuple[int, ...],
    of: int,
) -> None:
    airflow = Airflow()
    make_canary(ledger, run_id=run_id, pipeline=pipeline)
    for day in noted:
        note_night(settings, spec, night(day))
    assert look(settings, spec, airflow, night(of), monkeypatch) == []
    assert airflow.made == []


def test_time_is_simulated_only_where_a_noted_night_made_the_canary(settings: Settings, spec: PipelineSpec, ledger: Ledger) -> None:
    make_canary(ledger)
    found = open_canary(ledger, MODEL)
    assert found is not None
    note_night(settings, spec, Night(MADE_BY, None))
    assert found.simulated_at(settings.home) is None
    for day in (2, 5, 3):
        note_night(settings, spec, night(day))
    assert found.simulated_at(settings.home) == night(5).as_of
    assert found._replace(run_id="scheduled__2026-02-02").simulated_at(settings.home) is None


@pytest.mark.parametrize(("schedule", "age"), [("0 2 * * *", 20), (None, 20), ("0 2 1 1 *", 24 * 30)])
def test_time_is_the_clocks_once_the_nights_have_come_to_the_present(
    schedule: str | None, age: int, settings: Settings, spec: PipelineSpec, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 1, 31, 2, tzinfo=tz)

    make_canary(ledger)
    found = open_canary(ledger, MODEL)
    assert found is not None
    note_night(settings, spec, night(2))
    assert found.simulated_at(settings.home) == night(2).as_of
    monkeypatch.setattr(canary_look, "datetime", Clock)
    newest = Night("night-newest", Clock.now(UTC) - timedelta(hours=age))
    note_night(settings, spec.model_copy(update={"schedule": schedule}), newest)
    assert found.simulated_at(settings.home) is None, "no simulated night comes, so the schedule's next slot looks"
