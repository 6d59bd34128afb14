"""Metrics reach the table by the tasks of Airflow: after a training, and by housekeeping."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nightshift.execution.kubernetes import trigger
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.metric_copies import copied_live, copy_metrics
from nightshift.operators.metrics import CopyMetricsOperator
from nightshift.operators.resolve import ResolveOperator
from nightshift.settings import Settings
from nightshift.wiring.pipeline import pipeline_dag
from tests.unit.plugins.conftest import SPEC_PATH
from training.database import connect
from training.database.pipeline_runs import CLEARED_WITHIN, record_queued, unsettled_runs
from training.errors import UnavailableError
from training.runtime.provenance import CHECKOUT
from training.store import Store
from training.store.metric_journal import JournalWriter, MetricJournal


def write(store: Store, run_id: str) -> None:
    JournalWriter(MetricJournal(store.bucket, "p", run_id), "a1").append([("loss", 0.5, 1, 1_770_000_000_000)])


def run_ids(settings: Settings) -> list[str]:
    with connect(settings.database_url).connect() as connection:
        return [str(row[0]) for row in connection.execute(text("SELECT run_id FROM run_metric ORDER BY run_id"))]


def test_a_training_is_copied_when_it_ends_and_others_by_housekeeping(
    settings: Settings, store: Store, execute: Any, context_of: Any
) -> None:
    write(store, "r1")
    write(store, "r2")
    copy_metrics("p", "r1")
    assert run_ids(settings) == ["p:r1"]
    assert execute(CopyMetricsOperator(task_id="metrics"), context_of("metrics")) == 1
    assert run_ids(settings) == ["p:r1", "p:r2"]


def test_a_training_is_copied_while_its_task_waits_for_it(settings: Settings, store: Store) -> None:
    with copied_live("p", "r1", every_seconds=0.01):
        write(store, "r1")
        deadline = time.monotonic() + 60
        while run_ids(settings) != ["p:r1"]:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
    for thread in [thread for thread in threading.enumerate() if thread.name == "metrics"]:
        thread.join(60)
        assert not thread.is_alive()


def test_live_copy_goes_on_after_a_store_that_was_away_and_fails_nothing(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)

    def away(_journal: MetricJournal) -> None:
        asked.release()
        raise UnavailableError("storage.unavailable", "no answer")

    write(store, "r1")
    with monkeypatch.context() as patched:
        patched.setattr(MetricJournal, "places", away)
        with copied_live("p", "r1", every_seconds=0.01):
            # Asked again after it failed.
            assert all(asked.acquire(timeout=60) for _ in range(3))
    assert run_ids(settings) == []
    copy_metrics("p", "r1")
    assert run_ids(settings) == ["p:r1"]


def test_runs_are_recorded_by_their_first_task_and_ended_by_housekeeping(
    settings: Settings, shop: Path, execute: Any, context_of: Any
) -> None:
    conf = {"train": {"learning_rate": 0.01}}
    for run_id in ("done", "broken", "gone", "works"):
        execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve", run_id=run_id, conf=conf))
    states = {"done": "success", "broken": "failed", "works": "running"}
    context = context_of("metrics")
    context["ti"].get_dr_count = lambda dag_id, run_ids: sum(run_id in states for run_id in run_ids)
    context["ti"].get_dagrun_state = lambda dag_id, run_id: states[run_id]
    execute(CopyMetricsOperator(task_id="metrics"), context)
    query = "SELECT run_uuid, experiment, status, ended_at IS NULL FROM bi_experiment_run"
    with connect(settings.database_url).connect() as connection:
        found = {row[0].partition(":")[2]: tuple(row[1:]) for row in connection.execute(text(query))}
        (owner, config) = connection.execute(text("SELECT owner, dag_config FROM bi_pipelines")).one()
        (parameters,) = connection.execute(text("SELECT parameters FROM bi_runs WHERE run_id = 'search_ranking:done'")).one()
    ranking = "search_ranking"
    assert found == {
        "done": (ranking, "completed", 0),
        "broken": (ranking, "failed", 0),
        "gone": (ranking, "killed", 0),
        "works": (ranking, "running", 1),
    }
    assert owner
    assert "SHOP_URI" in config
    assert str(settings.home) not in config
    assert json.loads(parameters) == {"train.learning_rate": 0.01}


def test_a_run_of_a_helper_is_no_run_of_the_pipeline_and_leaves_the_one_of_its_id_alone(
    settings: Settings, shop: Path, execute: Any, context_of: Any
) -> None:
    resolve = ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH))
    execute(resolve, context_of("resolve", run_id="same-id"))
    for run_id in ("same-id", "a-study"):
        context = context_of("resolve", run_id=run_id, conf={"train": {"epochs": 9}})
        context["ti"].dag_id = context["dag_run"].dag_id = "search_ranking.tune"
        execute(resolve, context)
    with connect(settings.database_url).connect() as connection:
        found = [tuple(row) for row in connection.execute(text("SELECT run_id, parameters FROM bi_runs"))]
    assert found == [("search_ranking:same-id", "{}")]


def test_a_failed_run_that_goes_on_after_its_tasks_were_cleared_has_its_new_state(
    settings: Settings, shop: Path, execute: Any, context_of: Any
) -> None:
    states = dict.fromkeys(("cleared", "repaired", "given-up", "deleted"), "failed")
    for run_id in states:
        execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve", run_id=run_id))
    context = context_of("metrics")
    context["ti"].get_dr_count = lambda dag_id, run_ids: sum(run_id in states for run_id in run_ids)
    context["ti"].get_dagrun_state = lambda dag_id, run_id: states[run_id]
    execute(CopyMetricsOperator(task_id="metrics"), context)
    states |= {"cleared": "queued", "repaired": "success"}
    del states["deleted"]
    execute(CopyMetricsOperator(task_id="metrics"), context)
    with connect(settings.database_url).connect() as connection:
        rows = connection.execute(text("SELECT run_id, state, ended_at IS NULL FROM bi_runs"))
        found = {row[0].partition(":")[2]: tuple(row[1:]) for row in rows}
    assert found == {"cleared": ("running", 1), "repaired": ("success", 0), "given-up": ("failed", 0), "deleted": ("failed", 0)}
    old = unsettled_runs(connect(settings.database_url), now=datetime.now(UTC) + CLEARED_WITHIN)
    assert old == [("search_ranking", "cleared", "running")]


def test_a_run_that_a_request_queued_is_queued_until_its_first_task_or_its_end(
    settings: Settings, shop: Path, execute: Any, context_of: Any
) -> None:
    engine, ranking = connect(settings.database_url), "search_ranking"
    states = {"waits": "queued", "begun": "running", "failed early": "failed"}
    for run_id in (*states, "deleted"):
        record_queued(engine, ranking, run_id, {"force": True})
    execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve", run_id="begun"))
    # The answer of the api-server may be slower than the first task.
    record_queued(engine, ranking, "begun", {"force": True})
    context = context_of("metrics")
    context["ti"].get_dr_count = lambda dag_id, run_ids: sum(run_id in states for run_id in run_ids)
    context["ti"].get_dagrun_state = lambda dag_id, run_id: states[run_id]
    execute(CopyMetricsOperator(task_id="metrics"), context)
    query = "SELECT run_uuid, status, started_at IS NULL, ended_at IS NULL FROM bi_experiment_run"
    with engine.connect() as connection:
        found = {row[0].partition(":")[2]: tuple(row[1:]) for row in connection.execute(text(query))}
    assert found == {
        "waits": ("queued", 1, 1),
        "begun": ("running", 0, 1),
        "failed early": ("failed", 1, 0),
        "deleted": ("killed", 1, 0),
    }


def test_the_end_of_a_run_is_noted_as_airflow_ends_it(settings: Settings, shop: Path, execute: Any, context_of: Any) -> None:
    engine, dag = connect(settings.database_url), pipeline_dag(str(CHECKOUT / "dags" / "search_ranking.py"))
    record_queued(engine, dag.dag_id, "early", {})
    for run_id in ("done", "broken"):
        execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve", run_id=run_id))
    for run_id, callbacks in (("done", dag.on_success_callback), ("broken", dag.on_failure_callback), ("early", dag.on_failure_callback)):
        # As the dag-processor calls them.
        for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
            callback({"dag": dag, "run_id": run_id, "reason": "all done"})
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT run_id, state, ended_at IS NULL FROM bi_runs"))
        found = {row[0].partition(":")[2]: tuple(row[1:]) for row in rows}
    assert found == {"done": ("success", 0), "broken": ("failed", 0), "early": ("failed", 0)}


def test_a_run_whose_id_an_earlier_one_had_is_queued_with_its_own_parameters(
    settings: Settings, shop: Path, execute: Any, context_of: Any
) -> None:
    engine = connect(settings.database_url)
    execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve", run_id="again"))
    context = context_of("metrics")
    context["ti"].get_dr_count = lambda dag_id, run_ids: 1
    context["ti"].get_dagrun_state = lambda dag_id, run_id: "success"
    execute(CopyMetricsOperator(task_id="metrics"), context)
    record_queued(engine, "search_ranking", "again", {"force": True})
    query = "SELECT state, parameters, as_of, started_at, ended_at, git_commit FROM bi_runs"
    with engine.connect() as connection:
        assert [tuple(row) for row in connection.execute(text(query))] == [("queued", '{"force": true}', None, None, None, "")]
    assert unsettled_runs(engine) == [("search_ranking", "again", "queued")]


def test_a_store_that_is_away_fails_no_training(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_journal: MetricJournal) -> None:
        raise UnavailableError("storage.unavailable", "no answer")

    monkeypatch.setattr(MetricJournal, "places", away)
    copy_metrics("p", "r1")
    assert "metrics are copied later: [storage.unavailable] no answer" in caplog.text


def test_a_training_in_the_cluster_is_copied_while_the_triggerer_waits_for_it(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "DEFERRED_SECONDS", 0.01)

    async def until_over(_watch: trigger.WatchLaunch) -> LaunchStatus:
        await asyncio.to_thread(write, store, "r1")
        async with asyncio.timeout(60):
            while await asyncio.to_thread(run_ids, settings) != ["p:r1"]:
                await asyncio.sleep(0.01)
        return LaunchStatus(phase="ended")

    monkeypatch.setattr(trigger.WatchLaunch, "_until_over", until_over)
    launch: dict[str, Any] = {"number": 1, "name": "x", "kind": "Job", "namespace": "n", "limits": {}, "connection": None}
    watch = trigger.WatchLaunch(**launch, in_cluster=None, metrics="p/r1")
    asyncio.run(anext(aiter(watch.run())))
    assert run_ids(settings) == ["p:r1"]
