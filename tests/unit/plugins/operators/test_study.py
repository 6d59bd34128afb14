"""A study as Airflow runs it: how many workers, who does which trial, what of a death in the middle is done again."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.execution import local, relaunch_budget
from nightshift.execution.attempt_end import Ended
from nightshift.operators import study
from nightshift.operators.stage_work import needs_of, work_of
from nightshift.operators.study import PlanOperator, TrialsOperator, TuneOperator
from nightshift.operators.study_work import StudyWork
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from training.contracts import RunIdentity, StageRequest, StageResult
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.store import Store
from training.store.leases import COMMIT, Lease
from training.tuning.records import StudyStore, TrialRecord, trial_work_id

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
TUNE = """
tune:
  trials: 5
  parallel: 2
  space:
    learning_rate: {float: [1e-5, 1e-2], log: true}
"""
CHAMPION = {"model_uri": "file:///champion", "weights_digest": "w", "version": "1"}

Context = Callable[..., Any]
Execute = Callable[[BaseOperator, Any], Any]


class Trials:
    """A launcher whose trials end at once, or as a script of exit codes by slot says first."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.requests: list[StageRequest] = []
        self.deaths: dict[int, list[int]] = {}

    @property
    def slots(self) -> list[int]:
        return [int(request.parameters["slot"]) for request in self.requests]

    def launch(
        self, request_uri: str, request: StageRequest, spec: PipelineSpec, say: Callable[[str], None], *, may_fork: bool = True
    ) -> Ended:
        self.requests.append(request)
        slot = int(request.parameters["slot"])
        if self.deaths.get(slot):
            return Ended(exit_code=self.deaths[slot].pop(0), seconds=1.0)
        work_folder = self.store.work_folder(request.pipeline, request.stage, request.work_id)
        lease = Lease.acquire(work_folder, owner=request.run.owner, attempt_id=request.attempt_id)
        record = TrialRecord(slot=slot, state="complete", value=1.0, settings={"learning_rate": 1e-3}, epochs=1, steps=1)
        StudyStore(self.store, request.pipeline, request.parameters["study"]).add(record)
        work_folder.create_result(result("trial", work_id=request.work_id, run=request.run, attempt_id=request.attempt_id))
        lease.commit(COMMIT, {})
        return Ended(exit_code=0, seconds=1.0)

    def stop(self) -> None:
        raise AssertionError("nobody asked for a stop")


def result(stage: str, **more: Any) -> StageResult:
    values: dict[str, Any] = {
        "pipeline": "search_ranking",
        "stage": stage,
        "work_id": "f" * 64,
        "artifact_uri": f"file:///store/{stage}/1",
        "digest": "1",
        "run": RunIdentity(dag_id="search_ranking", run_id="r1", task_id=stage),
        "attempt_id": "a1",
        "attempts": 1,
        "committed_at": "2026-02-01T02:00:05+00:00",
        **more,
    }
    return StageResult(**values)


@pytest.fixture
def launcher(store: Store, monkeypatch: pytest.MonkeyPatch) -> Trials:
    made = Trials(store)
    monkeypatch.setattr(local, "LocalLauncher", lambda settings: made)
    monkeypatch.setattr(relaunch_budget, "PAUSE_STEP_SECONDS", 0.0)
    monkeypatch.setattr(study, "rivals_of", lambda spec, settings: {"champion": CHAMPION, "canary": None})
    return made


@pytest.fixture
def night(shop: Path, store: Store, context_of: Context) -> Callable[..., Any]:
    """Return `night(task_id, change=(old, new), run_id=…)`: the context of a task of a run whose spec has a study."""

    def make(task_id: str, *, change: tuple[str, str] = ("", ""), force: str = "", **more: Any) -> Any:
        text = SPEC_PATH.read_text(encoding="utf-8") + TUNE
        assert change[0] in text
        spec = resolve_uris(parse_spec(text.replace(*change, 1).encode()), os.environ)
        resolved = {"spec_uri": store.put_json(freeze(spec)), "as_of": "2026-02-01T02:00:00+00:00", "force": force}
        return context_of(task_id, results={"resolve": resolved, "prepare": result("prepare").to_xcom()}, **more)

    return make


def study_of(context: Any) -> StudyWork:
    return StudyWork.of(ResolvedRun.of(context), result("prepare"), Settings.from_environment())


def worker(number: int) -> TrialsOperator:
    return TrialsOperator(task_id="trials", worker=number)


def test_the_plan_has_a_worker_for_each_trial_at_a_time_and_settles_the_champion(
    launcher: Trials, night: Context, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert execute(PlanOperator(task_id="tune_plan"), night("tune_plan")) == [0, 1]
    assert execute(PlanOperator(task_id="tune_plan"), night("tune_plan", change=("parallel: 2", "parallel: 9"))) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(study, "rivals_of", lambda spec, settings: {"champion": None, "canary": None})
    execute(PlanOperator(task_id="tune_plan"), night("tune_plan"))
    execute(worker(0), night("trials"))
    assert {request.parameters["champion"] for request in launcher.requests} == {"file:///champion"}, "the first planner's word stands"


def test_the_budget_of_gpus_bounds_the_workers(launcher: Trials, night: Context, execute: Execute) -> None:
    change = ("processes_per_node: 2}", "processes_per_node: 2, gpus: 2}")
    context = night("tune_plan", change=change)
    assert execute(PlanOperator(task_id="tune_plan"), context) == [0, 1]
    text = SPEC_PATH.read_text(encoding="utf-8").replace(*change) + TUNE.replace("parallel: 2", "parallel: 4\n  gpus: 7")
    spec = parse_spec(text.encode())
    assert spec.tune is not None
    assert study.num_workers(spec.tune, spec.train.placement) == 3


def test_a_worker_does_trials_until_the_study_is_full(
    launcher: Trials, night: Context, execute: Execute, capfd: pytest.CaptureFixture[str]
) -> None:
    left = execute(worker(0), night("trials"))
    assert "trial 2: ; 3 of 5 trials are done" in capfd.readouterr().out
    assert left["trials"] == launcher.slots == [0, 1, 2, 3, 4]
    assert execute(worker(1), night("trials"))["trials"] == []
    assert launcher.slots == [0, 1, 2, 3, 4]
    request = launcher.requests[0]
    assert (request.stage, request.inputs) == ("trial", {"dataset": "file:///store/prepare/1"})
    assert request.work_id == trial_work_id(left["study"], 0)
    assert len({request.work_id for request in launcher.requests}) == 5


def test_workers_never_take_one_anothers_leases_for_their_own(launcher: Trials, night: Context, execute: Execute) -> None:
    execute(worker(0), night("trials", change=("trials: 5", "trials: 1")))
    execute(worker(1), night("trials"))
    owners = [request.run.owner for request in launcher.requests]
    assert owners[0] == "search_ranking/r1/trials-0"
    assert set(owners[1:]) == {"search_ranking/r1/trials-1"}


def test_a_killed_trial_is_started_again_and_the_others_are_not(launcher: Trials, night: Context, execute: Execute) -> None:
    launcher.deaths = {2: [137, 137]}
    assert execute(worker(0), night("trials"))["trials"] == [0, 1, 2, 3, 4]
    assert launcher.slots == [0, 1, 2, 2, 2, 3, 4]
    assert len({request.work_id for request in launcher.requests}) == 5, "the same work, so its checkpoints are found"


def test_a_trial_that_is_lost_too_often_fails_its_worker_and_what_was_finished_stays(
    launcher: Trials, night: Context, execute: Execute
) -> None:
    launcher.deaths = {2: [137] * 20}
    context = night("trials", change=("infrastructure: 8", "infrastructure: 1"))
    with pytest.raises(AirflowFailException, match="relaunched 1 times already"):
        execute(worker(0), context)
    assert launcher.slots == [0, 1, 2, 2]
    launcher.deaths = {}
    assert execute(worker(0), night("trials", try_number=2))["trials"] == [2, 3, 4]


def test_run_that_is_cleared_with_fewer_workers_does_the_trials_of_those_that_it_has_no_more(
    launcher: Trials, night: Context, execute: Execute
) -> None:
    launcher.deaths = {0: [137] * 20}
    with pytest.raises(AirflowFailException):
        execute(worker(1), night("trials", change=("infrastructure: 8", "infrastructure: 1")))
    launcher.deaths = {}
    # How many trials run at a time changes nothing about the study: its name is the same.
    assert execute(worker(0), night("trials", change=("parallel: 2", "parallel: 1"), try_number=2))["trials"] == [1, 2, 3, 4, 0]


def test_another_run_continues_with_the_study_that_a_dead_one_left(launcher: Trials, night: Context, execute: Execute) -> None:
    launcher.deaths = {1: [64]}
    with pytest.raises(AirflowFailException):
        execute(worker(0), night("trials"))
    assert execute(worker(0), night("trials", run_id="r2"))["trials"] == [2, 3, 4, 1]


def test_a_forced_run_has_a_study_of_its_own(launcher: Trials, night: Context) -> None:
    assert study_of(night("trials")).name == study_of(night("trials", run_id="r2")).name
    names = {study_of(night("trials", force=nonce)).name for nonce in ("", "a1", "b2")}
    assert len(names) == 3, "also where two forced runs have the same id"


def test_a_longer_study_is_the_same_one_and_its_summary_is_new_work(launcher: Trials, night: Context, execute: Execute) -> None:
    longer = ("trials: 5", "trials: 6")
    assert study_of(night("tune")).name == study_of(night("tune", change=longer)).name
    execute(worker(0), night("trials"))
    assert execute(worker(0), night("trials", run_id="r2", change=longer))["trials"] == [5]

    def summary(context: Any) -> str:
        return TuneOperator(task_id="tune").work(context, ResolvedRun.of(context), Settings.from_environment()).id

    assert summary(night("tune")) != summary(night("tune", change=longer))
    assert summary(night("tune")) == summary(night("tune", change=("parallel: 2", "parallel: 4")))


def test_a_tuned_training_is_the_work_of_its_study(night: Context) -> None:
    resolved = ResolvedRun.of(night("train"))
    settings = Settings.from_environment()
    assert needs_of("train", resolved.spec) == {"dataset": "prepare", "snapshot": "ingest", "tuning": "tune"}
    assert needs_of("evaluate", resolved.spec) == {"model": "train", "dataset": "prepare", "validation": "validate"}
    results = {name: result(maker) for name, maker in needs_of("train", resolved.spec).items()}
    one = work_of("train", resolved, results, settings=settings)
    other = work_of("train", resolved, {**results, "tuning": replace(results["tuning"], digest="2")}, settings=settings)
    assert one.id != other.id
    assert one.inputs["tuning"] == "file:///store/tune/1"
