"""A canary is judged on what arrived since it was made, and on nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.stages.evaluate_bench import AS_OF, NUM_ROWS, EvaluateBench, orders
from training.contracts import ExitCode, StageResult

pytestmark = pytest.mark.slow

BLIND = {"    value: {transform: number}\n": ""}


@pytest.fixture(scope="module", autouse=True)
def _nobody_else(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('database')}/nightshift.db")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        yield


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> EvaluateBench:
    return EvaluateBench(tmp_path_factory.mktemp("canary"), "binary")


@pytest.fixture(scope="module")
def seats(bench: EvaluateBench) -> dict[str, dict[str, Any]]:
    return {"blind": bench.seat(bench.train(BLIND, work="blind"), "1"), "good": bench.seat(bench.train(work="good"), "2")}


def made(seat: dict[str, Any], days_ago: float) -> dict[str, Any]:
    """Return the seat of a model whose own window ended so long ago."""
    end = (AS_OF.replace(hour=0) - timedelta(days=days_ago)).isoformat()
    return {**seat, "bounds": {**seat["bounds"], "test": [seat["bounds"]["test"][0], end]}}


def judge(bench: EvaluateBench, canary: dict[str, Any], champion: dict[str, Any], work: str) -> tuple[StageResult, dict[str, Any]]:
    result = bench.stage("canary", {"dataset": bench.dataset_uri}, {"canary": canary, "champion": champion}, work=work)
    manifest = bench.store.manifests.get(result.artifact_uri, kind="evaluation")
    return result, json.loads(bench.store.manifests.read(manifest, "metrics.json"))


def test_only_rows_that_arrived_since_are_scored(bench: EvaluateBench, seats: dict[str, dict[str, Any]]) -> None:
    result, record = judge(bench, made(seats["good"], 6), seats["blind"], "six days")
    assert record["num_rows"] == pytest.approx(NUM_ROWS * 6 / 29.8, rel=0.03)
    assert record["since"] == (AS_OF.replace(hour=0) - timedelta(days=6)).isoformat()
    assert result.scalars["rows"] == record["num_rows"]
    assert judge(bench, made(seats["good"], 3), seats["blind"], "three days")[1]["num_rows"] < record["num_rows"]


def test_a_good_canary_is_significantly_better_and_a_poisoned_one_significantly_worse(
    bench: EvaluateBench, seats: dict[str, dict[str, Any]]
) -> None:
    good = judge(bench, made(seats["good"], 6), seats["blind"], "good")[1]
    poisoned = judge(bench, made(seats["blind"], 6), seats["good"], "poisoned")[1]
    assert good["comparison"]["low"] > 0.1
    assert poisoned["comparison"]["high"] < -0.1
    assert good["metrics"]["auc"] == poisoned["champion_metrics"]["auc"]
    assert good["version"] == "2"


def test_nothing_has_arrived_yet(bench: EvaluateBench, seats: dict[str, dict[str, Any]]) -> None:
    result, record = judge(bench, made(seats["good"], 0), seats["blind"], "nothing")
    assert (record["num_rows"], record["comparison"], record["metrics"]) == (0, None, {})
    page = bench.store.reports.get(result.reports["canary"])
    assert page.startswith(b"<!doctype html")


@pytest.mark.parametrize(
    ("canary", "champion", "since_days", "as_of_days", "heading"),
    [
        ("blind", "good", 6, 0, "Rolled back"),
        ("good", "blind", 6, 0, "Promoted"),
        ("good", "blind", 0.5, 0, "Waiting"),
        # The decision is that of the instant at which it is made, never of a later one.
        ("good", "blind", 0.5, 36_500, "Waiting"),
    ],
)
def test_page_shows_the_decision_that_will_be_recorded(
    bench: EvaluateBench, seats: dict[str, Any], canary: str, champion: str, since_days: float, as_of_days: int, heading: str
) -> None:
    spec = bench.spec_of({"promote: {model: orders}": "promote: {model: orders, canary: {for: 1d, support: 100, patience: 3650d}}"})
    since = (datetime.now(UTC) if as_of_days else AS_OF) - timedelta(days=since_days)
    parameters = {"canary": made(seats[canary], 6), "champion": seats[champion], "canary_since": since.isoformat()}
    bench.spec = spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.training.stages.evaluate_bench.AS_OF", AS_OF + timedelta(days=as_of_days))
        result = bench.stage("canary", {"dataset": bench.dataset_uri}, parameters, work=f"{heading} {as_of_days}")
    page = bench.store.reports.get(result.reports["canary"]).decode()
    assert f"</span> {heading}</h2>" in page
    assert "No decision" not in page
    # Time and rows that are still missing are not failures.
    assert ("not yet" in page) == (heading == "Waiting")


def test_canary_waits_on_rows_of_one_class(tmp_path: Path) -> None:
    frame = orders()
    is_late = frame["ordered_at"] >= (AS_OF.replace(hour=0) - timedelta(days=3)).isoformat()
    bench = EvaluateBench(tmp_path, "binary", frame=frame.assign(cancelled=frame["cancelled"].where(~is_late, 0)))
    seats = {"blind": bench.seat(bench.train(BLIND, work="blind"), "1"), "good": bench.seat(bench.train(work="good"), "2")}
    bench.spec = bench.spec_of({"promote: {model: orders}": "promote: {model: orders, canary: {for: 1d, support: 100, patience: 10d}}"})
    parameters = {"canary": made(seats["good"], 3), "champion": seats["blind"], "canary_since": (AS_OF - timedelta(days=2)).isoformat()}
    result = bench.stage("canary", {"dataset": bench.dataset_uri}, parameters, work="one class")
    manifest = bench.store.manifests.get(result.artifact_uri, kind="evaluation")
    record = json.loads(bench.store.manifests.read(manifest, "metrics.json"))
    assert record["without_value"]["auc"] == "one class only"
    page = bench.store.reports.get(result.reports["canary"]).decode()
    assert "</span> Waiting</h2>" in page
    assert "auc cannot be computed yet on the rows that have labels: one class only" in page


def test_page_says_how_many_blocks_an_alarm_lacks(bench: EvaluateBench, seats: dict[str, Any]) -> None:
    bench.spec = bench.spec_of({"promote: {model: orders}": "promote: {model: orders, canary: {for: 3d, support: 100}}"})
    since = (AS_OF - timedelta(days=1)).isoformat()
    parameters = {"canary": made(seats["good"], 1.5), "champion": seats["blind"], "canary_since": since}
    result = bench.stage("canary", {"dataset": bench.dataset_uri}, parameters, work="few blocks")
    page = bench.store.reports.get(result.reports["canary"]).decode()
    words = r"no alarm by significance can be raised yet: (\d) completed blocks of (\d+)h with rows, at least 8 required"
    found = re.search(words, page)
    assert found is not None
    # Rows of 34 hours, of which the last is not complete.
    assert int(found[1]) == 33 // int(found[2])


def test_without_a_canary_it_says_so(bench: EvaluateBench, seats: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    parameters = {"canary": None, "champion": seats["good"]}
    ended, work_folder = bench.attempt("canary", {"dataset": bench.dataset_uri}, parameters, "without")
    assert ended is ExitCode.DENIED
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "canary.missing"
