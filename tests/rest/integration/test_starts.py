"""The ways to start a night, and what is done again: nothing that is done, unless forced."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pytest

from devstack.shop import write_day
from tests.integration.installation import Installation
from training.contracts import StageResult
from training.errors import NightshiftError

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PIPELINE = "search_ranking"
AS_OF = "2026-02-01T02:00:00+00:00"
STAGES = ("ingest", "validate", "prepare", "train", "evaluate", "promote")
WORK_STAGES = STAGES[:-1]


def results_of(installation: Installation, dag_id: str, run_id: str) -> dict[str, StageResult]:
    assert installation.wait(dag_id, run_id) == "success", installation.why(dag_id, run_id)
    return {stage: installation.result(dag_id, run_id, stage) for stage in STAGES}


def as_of_of(installation: Installation, dag_id: str, run_id: str) -> datetime:
    return datetime.fromisoformat(installation.xcom(dag_id, run_id, "resolve")["as_of"])


@pytest.fixture(scope="module")
def night(installation: Installation) -> tuple[str, dict[str, StageResult]]:
    run_id = installation.trigger(PIPELINE, {"as_of": AS_OF})
    return run_id, results_of(installation, PIPELINE, run_id)


def test_same_night_twice_at_once_does_the_work_once_and_says_who_did_it(
    installation: Installation, night: tuple[str, dict[str, StageResult]]
) -> None:
    _, done = night
    runs = [installation.trigger(PIPELINE, {"as_of": AS_OF}, run_id=f"twice-{number}") for number in range(2)]
    for run_id in runs:
        results = results_of(installation, PIPELINE, run_id)
        assert {stage: result.reused_from for stage, result in results.items()} == {stage: result.run for stage, result in done.items()}
        link = installation.links(PIPELINE, run_id, "train")["Reused from"]
        assert link is not None
        assert done["train"].run.run_id in unquote(link)
        assert installation.xcom(PIPELINE, run_id, "train")["reused_from"]["run_id"] == done["train"].run.run_id
    attempts = installation.store.bucket.folders(f"stages/{PIPELINE}/train/{done['train'].work_id}/attempts")
    assert len(attempts) == 1


def test_cleared_task_finds_its_work_done(installation: Installation, night: tuple[str, dict[str, StageResult]]) -> None:
    run_id, done = night
    body = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["train"], "include_downstream": True, "only_failed": False}
    installation.api.post(f"/dags/{PIPELINE}/clearTaskInstances", body)
    again = results_of(installation, PIPELINE, run_id)
    assert {stage: result.attempt_id for stage, result in again.items()} == {stage: result.attempt_id for stage, result in done.items()}
    assert installation.tasks(PIPELINE, run_id)["train"]["try_number"] == 2


def test_forced_night_does_everything_again_and_makes_the_same(
    installation: Installation, night: tuple[str, dict[str, StageResult]]
) -> None:
    _, done = night
    forced = results_of(installation, PIPELINE, installation.trigger(PIPELINE, {"as_of": AS_OF, "force": True}))
    for stage in STAGES:
        assert forced[stage].reused_from is None, stage
        assert forced[stage].work_id != done[stage].work_id, stage
    # An evaluation also measures how long a prediction takes, which is never twice the same.
    same = [stage for stage in WORK_STAGES if stage != "evaluate"]
    assert {stage: forced[stage].digest for stage in same} == {stage: done[stage].digest for stage in same}
    metrics = [result["evaluate"].scalars["candidate_ndcg@10"] for result in (forced, done)]
    assert metrics[0] == metrics[1]
    assert forced["promote"].scalars["champion_version"] == done["promote"].scalars["champion_version"]


def test_night_is_triggered_from_the_command_line_in_a_prepared_shell(installation: Installation) -> None:
    installation.unpause(PIPELINE)
    # The instant of the other tests' night in another zone: its work is done already.
    installation.airflow("dags", "trigger", PIPELINE, "--run-id", "by-hand", "--conf", '{"as_of": "2026-02-01T03:00:00+01:00"}')
    assert installation.wait(PIPELINE, "by-hand") == "success"
    assert as_of_of(installation, PIPELINE, "by-hand") == datetime.fromisoformat(AS_OF)


def test_unknown_key_of_a_trigger_fails_before_any_work_with_the_nearest_key_and_no_retry(installation: Installation) -> None:
    # Airflow takes a key that no param has.
    run_id = installation.trigger(PIPELINE, {"as_off": AS_OF})
    assert installation.wait(PIPELINE, run_id) == "failed"
    assert "[conf.unknown_key] unknown key 'as_off' (did you mean as_of?)" in installation.log(PIPELINE, run_id, "resolve")
    tasks = installation.tasks(PIPELINE, run_id)
    assert tasks["resolve"]["try_number"] == 1
    assert tasks["ingest"]["state"] == "upstream_failed"


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"as_of": "yesterday"}, "yesterday"),
        ({"train": {"settings": {"hiden": [8]}}}, "hiden"),
        ({"evaluate": {"confidence": 2}}, "confidence"),
    ],
    ids=["as_of", "setting", "threshold"],
)
def test_airflow_refuses_a_wrong_value_at_the_trigger(installation: Installation, conf: dict[str, Any], named: str) -> None:
    installation.unpause(PIPELINE)
    with pytest.raises(NightshiftError, match=r"airflow\.refused") as caught:
        installation.trigger(PIPELINE, conf, run_id=f"refused-{named}")
    assert caught.value.details["status"] == 400
    assert named in caught.value.details["body"]
    assert installation.api.find(f"/dags/{PIPELINE}/dagRuns/refused-{named}") is None


def test_command_line_refuses_a_wrong_value_at_the_trigger(installation: Installation) -> None:
    conf = json.dumps({"train": {"settings": {"hiden": [8]}}})
    with pytest.raises(AssertionError, match=r"(?s) ended with [1-9].*hiden"):
        installation.airflow("dags", "trigger", PIPELINE, "--run-id", "refused-by-hand", "--conf", conf)
    assert installation.api.find(f"/dags/{PIPELINE}/dagRuns/refused-by-hand") is None


def test_overridden_threshold_is_another_evaluation_and_decision_which_records_it(
    installation: Installation, night: tuple[str, dict[str, StageResult]]
) -> None:
    _, done = night
    run_id = installation.trigger(PIPELINE, {"as_of": AS_OF, "evaluate": {"minimum": {"ndcg@10": 0.99}}})
    results = results_of(installation, PIPELINE, run_id)
    # `validate` compares with the newest validated snapshot, which other runs of this installation have moved.
    assert {stage for stage in STAGES if results[stage].work_id != done[stage].work_id} - {"validate"} == {"evaluate", "promote"}
    assert installation.xcom(PIPELINE, run_id, "resolve")["overrides"] == {"evaluate.minimum.ndcg@10": 0.99}
    shown = json.loads(installation.command(sys.executable, "-m", "nightshift.console", "show", PIPELINE, "--json"))
    decided = [entry for entry in shown[PIPELINE]["decisions"] if entry["evidence"].get("overrides")]
    assert [entry["evidence"]["overrides"] for entry in decided] == [{"evaluate.minimum.ndcg@10": 0.99}]


def test_resources_of_one_run_are_those_of_its_training_and_its_decision_records_them(
    installation: Installation, night: tuple[str, dict[str, StageResult]]
) -> None:
    _, done = night
    installation.unpause(PIPELINE)
    settings = ("--set", "train.placement.processes_per_node=1", "--set", "train.placement.memory=2GiB")
    start = ("-m", "nightshift.console", "runs", "start", PIPELINE, "--as-of", AS_OF, *settings, "--wait", "--json")
    run = json.loads(installation.command(sys.executable, *start))
    results = results_of(installation, PIPELINE, run["run_id"])
    assert [result["train"].scalars["world_size"] for result in (done, results)] == [2, 1]
    overrides = {"train.placement.processes_per_node": 1, "train.placement.memory": "2GiB"}
    assert installation.xcom(PIPELINE, run["run_id"], "resolve")["overrides"] == overrides
    assert installation.ledger.history(PIPELINE)[-1].evidence["overrides"] == overrides


def test_unpausing_makes_no_night_of_its_own(installation: Installation) -> None:
    name = installation.add_pipeline("unpaused")
    run_id = installation.trigger(name, {"as_of": AS_OF}, run_id="the-only-one")
    installation.wait_task(name, run_id, "resolve", "success")
    runs = installation.api.get(f"/dags/{name}/dagRuns")["dag_runs"]
    assert [run["dag_run_id"] for run in runs] == [run_id]
    installation.api.patch(f"/dags/{name}", {"is_paused": True})


def test_scheduler_starts_a_night_by_cron_as_of_its_slot(installation: Installation) -> None:
    today = datetime.now(UTC).date()
    for back in range(1, 6):
        write_day(installation.shop, today - timedelta(days=back), searches=100)
    name = installation.add_pipeline("every_minute", schedule="* * * * *")
    installation.unpause(name)
    run = installation.until(
        lambda: next(iter(installation.api.get(f"/dags/{name}/dagRuns")["dag_runs"]), None), "a scheduled run", timeout_seconds=130
    )
    state = installation.wait(name, run["dag_run_id"])
    installation.api.patch(f"/dags/{name}", {"is_paused": True})
    assert (state, run["run_type"]) == ("success", "scheduled"), installation.tasks(name, run["dag_run_id"])
    slot = datetime.fromisoformat(run["logical_date"])
    assert as_of_of(installation, name, run["dag_run_id"]) == slot
    assert slot.second == 0
