"""The summary of a run, over a real store and what Airflow's REST API would answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from devstack.run_progress import Follower, TaskView
from devstack.run_summary import number, stage_result, summary
from nightshift.settings import Settings
from training.contracts import ContractError, RunIdentity, StageResult, canonical_json
from training.store import Store
from training.validation.results import CheckResult, Findings, Status

DAG, RUN = "search_ranking", "night-2026-02-02"
EARLIER = RunIdentity(dag_id=DAG, run_id="night-2026-02-01", task_id="ingest")


def result(stage: str, **more: Any) -> StageResult:
    values: dict[str, Any] = {
        "pipeline": DAG,
        "stage": stage,
        "work_id": "f" * 64,
        "artifact_uri": "file:///none",
        "digest": "d" * 64,
        "run": RunIdentity(dag_id=DAG, run_id=RUN, task_id=stage),
        "attempt_id": "a1",
        "attempts": 1,
        "committed_at": "2026-02-02T02:00:00+00:00",
        "timings": {"total": 2.0},
    }
    return StageResult(**{**values, **more})


class OneRun:
    """XCom of one run."""

    def __init__(self, *results: StageResult) -> None:
        self._values = {one.stage: one.to_xcom() for one in results}

    def find(self, path: str, **_query: object) -> Any:
        stage = path.split("/taskInstances/")[1].split("/")[0]
        # As Airflow's API gives it: text of JSON.
        return {"value": json.dumps(self._values[stage])} if stage in self._values else None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"NIGHTSHIFT_HOME": str(tmp_path)})


def text_of(settings: Settings, views: list[TaskView], *results: StageResult) -> str:
    client: Any = OneRun(*results)
    follower = Follower(settings, client, DAG, RUN, lambda _text: None)
    follower.tasks = lambda: views  # type: ignore[method-assign]
    return summary(settings, client, DAG, RUN, follower)


def test_each_stage_has_its_time_rows_rate_and_attempts(settings: Settings) -> None:
    done = result("ingest", scalars={"rows": 600_000, "files": 30}, attempts=3)

    text = text_of(settings, [TaskView("ingest", "success", 1, 2.5, "cpu")], done)

    line = next(line for line in text.splitlines() if line.startswith("ingest"))
    assert line.split() == ["ingest", "2.5", "s", "600,000", "300,000", "3", "attempts,", "files", "30"]


def test_straggler_of_a_training_is_told_beside_its_loss(settings: Settings) -> None:
    view = [TaskView("train", "success", 1, 3.0, "cpu")]
    told = {"steps": 90, "stragglers": "rank 1 (node b): 2.1 times, step 40"}
    assert text_of(settings, view, result("train", scalars=told)).count("steps 90, stragglers rank 1 (node b): 2.1 times, step 40") == 1
    assert "stragglers" not in text_of(settings, view, result("train", scalars={"steps": 90}))


def test_first_warnings_of_a_validation_are_printed_in_words(settings: Settings) -> None:
    statuses: tuple[Status, ...] = ("passed", "warned", "warned", "failed", "warned", "warned", "warned")
    checks = [
        CheckResult(code="expectation.failed", check=f"expect_{number}", table="t", status=status, observed="3 of 9\n", allowed="0")
        for number, status in enumerate(statuses)
    ]
    results = canonical_json(Findings(checks=checks).to_json())
    uri, _ = Store(settings.store_uri).manifests.put_files("validation", {"results.json": results}, {})
    views = [TaskView("validate", "success", 1, 3.0, "cpu")]

    lines = text_of(settings, views, result("validate", artifact_uri=uri, scalars={"checks": 7, "warnings": 5})).splitlines()

    first = next(place for place, line in enumerate(lines) if line.endswith("checks 7, warnings 5"))
    assert lines[first + 1 : first + 6] == [
        *(f"  warning: [expectation.failed] t: expect_{number}: observed 3 of 9 , allowed 0" for number in (1, 2, 4)),
        "  … and 2 more warnings",
        "",
    ]


def test_reused_stage_names_the_run_that_did_the_work(settings: Settings) -> None:
    reused = result("ingest", scalars={"rows": 600_000}, reused_from=EARLIER)

    text = text_of(settings, [TaskView("ingest", "success", 1, 0.2, "cpu")], reused)

    assert "reused from night-2026-02-01" in text
    assert "300,000" not in text


def test_failed_run_ends_with_task_reason_and_log(settings: Settings) -> None:
    text = text_of(settings, [TaskView("validate", "failed", 2, 3.0, "cpu"), TaskView("train", "upstream_failed", 0, 0.0, "cpu")])

    assert "validate failed: it ended before its first line of log (state failed)" in text
    assert f"its log: {settings.home}/airflow/logs/dag_id={DAG}/run_id={RUN}/task_id=validate/attempt=2.log" in text


def test_reports_are_saved_as_files_with_a_name(settings: Settings) -> None:
    store = Store(settings.store_uri)
    uri = store.reports.put(DAG, b"<html>all is well</html>")

    text = text_of(settings, [TaskView("validate", "success", 1, 3.0, "cpu")], result("validate", reports={"validation": uri}))

    path = settings.home / "reports" / DAG / RUN / "validation.html"
    assert path.read_bytes() == b"<html>all is well</html>"
    assert f"report    {path}" in text


def test_report_of_a_validation_that_failed_is_saved_too(settings: Settings) -> None:
    store = Store(settings.store_uri)
    uri = store.reports.put(DAG, b"<html>3 checks failed</html>")
    store.run_ref(DAG, RUN, "reports/validation").move(uri, expected=0)

    text = text_of(settings, [TaskView("validate", "failed", 1, 3.0, "cpu")])

    path = settings.home / "reports" / DAG / RUN / "validation.html"
    assert path.read_bytes() == b"<html>3 checks failed</html>"
    assert f"report    {path}" in text


def test_report_of_an_earlier_try_gives_way_to_that_of_the_result(settings: Settings) -> None:
    store = Store(settings.store_uri)
    earlier, now = (store.reports.put(DAG, page) for page in (b"failed", b"passed"))
    store.run_ref(DAG, RUN, "reports/validation").move(earlier, expected=0)

    text = text_of(settings, [TaskView("validate", "success", 2, 3.0, "cpu")], result("validate", reports={"validation": now}))

    assert (settings.home / "reports" / DAG / RUN / "validation.html").read_bytes() == b"passed"
    assert text.count("report    ") == 1


@pytest.mark.parametrize(("champion", "words"), [(None, "no champion"), ("1", "champion is version 1")])
def test_decision_says_which_version_is_champion(settings: Settings, champion: str | None, words: str) -> None:
    meta = {"outcome": "needs_approval", "version": "2", "semantic_version": "1.0.1", "reasons": []}
    uri, _ = Store(settings.store_uri).manifests.put_files("decision", {}, meta)
    decided = result("promote", artifact_uri=uri, scalars={"model": DAG, "champion_version": champion})

    text = text_of(settings, [TaskView("promote", "success", 1, 3.0, "cpu")], decided)

    assert f"version   2 (1.0.1) of search_ranking, {words}\n" in text


@pytest.mark.parametrize("naive", [{"name": "seasonal_7d", "metrics": {"mae": 24.2, "rmse": 31.0}}, None])
def test_comparison_has_the_best_naive_baseline_beside_model_and_champion(settings: Settings, naive: dict[str, Any] | None) -> None:
    meta = {"metrics": {"mae": 20.0, "rmse": 40.0}, "champion_metrics": {}, "comparison": None, "baseline": "no champion"}
    store = Store(settings.store_uri)
    uri, _ = store.manifests.put_files("evaluation", {"metrics.json": b"{}"}, meta if naive is None else {**meta, "naive_baseline": naive})
    scalars = {"primary": "mae", "naive_baseline_gain": 4.2}

    text = text_of(settings, [TaskView("evaluate", "success", 1, 3.0, "cpu")], result("evaluate", artifact_uri=uri, scalars=scalars))

    lines = [line.split() for line in text.splitlines()]
    if naive is None:
        # An evaluation of an earlier version.
        assert ["mae", "20", "-"] in lines
        assert "naive" not in text
    else:
        assert ["metric", "new", "model", "champion", "seasonal_7d"] in lines
        assert ["rmse", "40", "-", "31"] in lines
        assert "mae gain over the naive baseline seasonal_7d 4.2" in text


def test_gain_over_the_champion_has_its_sign_and_its_interval(settings: Settings) -> None:
    comparison = {"gain": -0.0281074, "low": -0.04155, "high": -0.01467}
    meta = {"metrics": {"auc": 0.7}, "champion_metrics": {"auc": 0.73}, "comparison": comparison, "baseline": "champion"}
    uri, _ = Store(settings.store_uri).manifests.put_files("evaluation", {"metrics.json": b"{}"}, meta)
    text = text_of(
        settings, [TaskView("evaluate", "success", 1, 3.0, "cpu")], result("evaluate", artifact_uri=uri, scalars={"primary": "auc"})
    )
    assert "auc gain over the champion -0.02811, interval -0.04155 to -0.01467" in text


def test_comparison_has_the_season_that_the_spec_names_and_the_warnings_where_another_baseline_is_best(settings: Settings) -> None:
    named = [{"name": "seasonal_14d", "key": "evaluate.baseline.season", "metrics": {"mae": 31.5, "rmse": 39.0}}]
    meta = {
        "metrics": {"mae": 20.0, "rmse": 40.0},
        "champion_metrics": {"mae": 21.0, "rmse": 41.0},
        "comparison": None,
        "baseline": "no champion",
        "naive_baseline": {"name": "last_value", "metrics": {"mae": 24.2, "rmse": 31.0}},
        "named_baselines": named,
        "baseline_warnings": ["evaluate.baseline.season 14d is not a longer multiple of the series' step, 21 days, 0:00:00"],
    }
    uri, _ = Store(settings.store_uri).manifests.put_files("evaluation", {"metrics.json": b"{}"}, meta)
    scalars = {"primary": "mae", "naive_baseline_gain": 4.2}

    text = text_of(settings, [TaskView("evaluate", "success", 1, 3.0, "cpu")], result("evaluate", artifact_uri=uri, scalars=scalars))

    lines = [line.split() for line in text.splitlines()]
    assert ["metric", "new", "model", "champion", "last_value", "seasonal_14d"] in lines
    assert ["rmse", "40", "41", "31", "39"] in lines
    assert "mae gain over the naive baseline last_value 4.2\n" in text
    assert "mae gain over the naive baseline seasonal_14d 11.5 (evaluate.baseline.season)\n" in text
    assert f"warning: {meta['baseline_warnings'][0]}\n" in text  # type: ignore[index]


def test_malformed_xcom_is_an_error_and_not_an_empty_line() -> None:
    client: Any = OneRun(result("train"))
    client._values["ingest"] = {"stage": "ingest"}

    assert stage_result(client, DAG, RUN, "validate") is None
    with pytest.raises(ContractError, match="'ingest' left a malformed result"):
        stage_result(client, DAG, RUN, "ingest")


@pytest.mark.parametrize(("value", "text"), [(633672, "633,672"), (0.60841, "0.6084"), (None, "-"), (True, "True"), ("b", "b")])
def test_figures_read_as_people_write_them(value: object, text: str) -> None:
    assert number(value) == text
