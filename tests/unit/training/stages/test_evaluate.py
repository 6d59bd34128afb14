"""Evaluation as a stage: what the record says of models of every task, from the same rows and each through its own preprocessing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.stages.evaluate_bench import LATENCY, EvaluateBench, nobody_else
from training.contracts import ExitCode, StageResult
from training.data.features.classes import MAX_CLASSES
from training.errors import DataError
from training.models.shard_rows import num_classes
from training.spec.descriptors.metrics import metrics_of

pytestmark = pytest.mark.slow

BLIND = {"    value: {transform: number}\n": ""}
RULES = "primary: auc, slices: [country, channel], sensitive: [country], entities: [customer], slice_support: 50"


@pytest.fixture(scope="module", autouse=True)
def _nobody_else(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with nobody_else(tmp_path_factory.mktemp("database"), LATENCY):
        yield


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> EvaluateBench:
    return EvaluateBench(tmp_path_factory.mktemp("binary"), "binary")


@pytest.fixture(scope="module")
def judged(binary: EvaluateBench) -> tuple[StageResult, dict[str, Any]]:
    """A good candidate against a champion that knows only noise, and a canary that is the candidate itself."""
    blind = binary.train(BLIND, work="blind")
    good = binary.train(work="good")
    return binary.evaluate(good, {"primary: auc": RULES}, work="judged", champion=binary.seat(blind, "3"), canary=binary.seat(good, "6"))


def test_record_has_all_that_gates_and_report_read(judged: tuple[StageResult, dict[str, Any]]) -> None:
    record = judged[1]
    assert record["format_version"] == 1
    assert (record["version"], record["champion"]["version"], record["canary"]["version"]) == ("7", "3", "6")
    assert set(record["metrics"]) == set(record["champion_metrics"]) == set(metrics_of("binary"))
    assert record["latency"] == LATENCY
    assert record["num_rows"] == record["num_units"] == judged[0].scalars["rows"] > 900


def test_better_candidate_has_its_gain_and_an_equal_canary_none(judged: tuple[StageResult, dict[str, Any]]) -> None:
    result, record = judged
    comparison = record["comparison"]
    assert 0.1 < comparison["low"] < comparison["gain"] < comparison["high"]
    assert comparison["gain"] == pytest.approx(record["metrics"]["auc"] - record["champion_metrics"]["auc"])
    ends = ("gain", "low", "high", "probability", "row_low", "row_high")
    assert {name: record["canary_comparison"][name] for name in ends} == dict.fromkeys(ends, 0)
    assert comparison["low"] == min(comparison["row_low"], comparison["blocks"]["low"])
    assert comparison["high"] == max(comparison["row_high"], comparison["blocks"]["high"])
    assert comparison["blocks"]["clusters"] in ("time", "entity", "group", "none")
    assert result.scalars["gain"] == comparison["gain"]


def test_baselines_are_in_record_scalars_manifest_and_report(binary: EvaluateBench, judged: tuple[StageResult, dict[str, Any]]) -> None:
    result, record = judged
    found = record["baselines"]
    assert [entry["name"] for entry in found["found"]] == ["prior", "majority_class"]
    assert all(set(entry["metrics"]) == set(metrics_of("binary")) for entry in found["found"])
    assert (found["best"], found["why_none"]) == ("prior", None)
    assert found["comparison"]["gain"] == pytest.approx(record["metrics"]["auc"] - 0.5)
    assert result.scalars["naive_baseline"] == "prior"
    assert (result.scalars["naive_baseline_auc"], result.scalars["naive_baseline_gain"]) == (0.5, found["comparison"]["gain"])
    meta = binary.store.manifests.get(result.artifact_uri, kind="evaluation").meta
    assert meta["naive_baseline"] == found["found"][0]
    assert (meta["named_baselines"], meta["baseline_warnings"]) == ([], [])
    page = binary.store.reports.get(result.reports["evaluation"]).decode()
    section = page.split('<h2 id="baselines">')[1].split("</section>")[0]
    assert "Best by auc on the validation rows: <strong>prior</strong>" in section
    assert "majority_<wbr>class" in section
    head = page.split('<h2 id="metrics">')[1].split("</thead>")[0]
    assert head.count("difference") == 3
    assert '<th scope="col" class="n">prior</th>' in head


@pytest.mark.parametrize("stage", ["ingest", "prepare"])
def test_sql_baseline_that_cannot_be_computed_ends_ingest_and_prepare_before_anything_is_read(binary: EvaluateBench, stage: str) -> None:
    binary.spec = binary.spec_of({"primary: auc": 'primary: auc, baseline: {sql: "no_such_function(value)"}'})
    inputs = {"snapshot": binary.snapshot_uri} if stage == "prepare" else {}
    ended, work_folder = binary.attempt(stage, inputs, {"listing": {}}, f"no row expression {stage}")
    assert ended is ExitCode.BAD_DATA
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "derive.expression"
    assert "evaluate.baseline.sql" in error["message"]


def test_slices_are_columns_and_pairs_and_the_worst_is_not_a_small_one(judged: tuple[StageResult, dict[str, Any]]) -> None:
    record = judged[1]
    found = {tuple(sorted(part["columns"].items())): part for part in record["slices"]}
    assert len(found) == 3 + 2 + 3 * 2
    assert sum(part["support"] for names, part in found.items() if len(names) == 2) == record["num_rows"]
    assert found[(("country", "BE"),)]["is_small"]
    worst = record["slices"][record["worst_slice"]]
    known = [part["candidate"] for part in record["slices"] if not part["is_small"]]
    assert worst["candidate"] == min(known)
    assert record["slice_gap"] == pytest.approx(max(known) - min(known))
    assert judged[0].scalars["worst_slice"] == min(known)


def test_sensitive_columns_have_gaps_between_values_of_enough_rows(judged: tuple[StageResult, dict[str, Any]]) -> None:
    country = judged[1]["fairness"]["country"]
    rates = {one["value"]: one["true_positive_rate"] for one in country["values"] if not one["is_small"]}
    assert set(rates) == {"NL", "DE"}
    assert country["equal_opportunity_gap"] == pytest.approx(abs(rates["NL"] - rates["DE"]))


def test_checks_and_importance_name_the_column_that_decides(judged: tuple[StageResult, dict[str, Any]]) -> None:
    record = judged[1]
    assert record["checks"]["leakage"]["feature"] == "value"
    assert 0.8 < record["checks"]["leakage"]["value"] < 0.98
    assert record["checks"]["overlap"]["entities"] == ["customer"]
    assert record["checks"]["overlap"]["share"] > 0.9
    assert record["checks"]["drift"]["psi"] > 0.25
    assert record["checks"]["constant"] is False
    assert max(record["importance"], key=record["importance"].get) == "value"


def test_column_that_names_what_a_row_is_about_is_not_taken_for_the_label(binary: EvaluateBench) -> None:
    """The areas of a demand series differ in size: their names order the labels, and are known before them."""
    model = binary.train({"    noise: {transform: number}\n": "    leak: {transform: number}\n"}, work="leaking")
    rules = {"evaluate: {task: binary,": "evaluate: {entities: [leak], task: binary,"}
    assert binary.evaluate(model, rules, work="entities")[1]["checks"]["leakage"]["feature"] == "value"


def test_feature_that_is_the_label_is_found(binary: EvaluateBench) -> None:
    model = binary.train({"    noise: {transform: number}\n": "    leak: {transform: number}\n"}, work="leaking")
    record = binary.evaluate(model, work="leaking")[1]
    assert record["checks"]["leakage"] == {"feature": "leak", "value": 1.0}
    # The order's number is not an entity that returns.
    assert record["checks"]["overlap"] == {"entities": ["order_id"], "share": 0.0, "num_test": record["num_rows"]}


def test_what_a_person_has_to_approve_of_the_data_is_in_the_record_and_the_report(binary: EvaluateBench) -> None:
    line = "[drift.exceeded] orders.price: drift against the previous snapshot: observed PSI 0.7"
    validation, _ = binary.store.manifests.put_files("validation", {}, {"snapshot": "s", "to_approve": [line]})
    inputs = {"model": binary.train(work="good").artifact_uri, "dataset": binary.dataset_uri, "validation": validation}

    result = binary.stage("evaluate", inputs, {}, work="moved data")

    evaluation = binary.store.manifests.get(result.artifact_uri, kind="evaluation")
    record = json.loads(binary.store.manifests.read(evaluation, "metrics.json"))
    assert record["data_to_approve"] == [line]
    page = binary.store.reports.get(result.reports["evaluation"]).decode()
    assert "Needs approval" in page
    assert "orders.price: drift against the previous snapshot" in page


def test_first_candidate_is_not_compared(binary: EvaluateBench) -> None:
    record = binary.evaluate(binary.train(work="good"), work="first")[1]
    assert record["baseline"] == "no champion"
    assert record["comparison"] is record["canary_comparison"] is record["checks"]["drift"] is None
    assert record["champion_metrics"] == record["canary_metrics"] == {}


def test_champion_that_was_trained_on_the_test_rows_is_no_baseline(binary: EvaluateBench) -> None:
    model = binary.train(work="good")
    seat = binary.seat(model, "3")
    seat["bounds"]["train"][1] = "2026-01-29T00:00:00+00:00"
    record = binary.evaluate(model, work="no baseline", champion=seat)[1]
    assert record["baseline"] == "its train rows end at 2026-01-29T00:00:00+00:00, after the test rows begin"
    assert record["comparison"] is None
    assert record["champion_metrics"] == {}


@pytest.mark.parametrize(("task", "primary"), [("multiclass", "log_loss"), ("regression", "rmse")])
def test_other_tasks_train_and_are_judged_to_the_end(tmp_path: Path, task: str, primary: str) -> None:
    bench = EvaluateBench(tmp_path, task)
    blind, good = bench.train(BLIND, work="blind"), bench.train(work="good")
    result, record = bench.evaluate(
        good, {f"primary: {primary}": f"primary: {primary}, slices: [country]"}, champion=bench.seat(blind, "3")
    )
    assert set(record["metrics"]) == set(metrics_of(task))
    assert all(math.isfinite(value) for value in record["metrics"].values())
    assert record["comparison"]["low"] > 0
    assert record["metrics"][primary] < 0.7 * record["champion_metrics"][primary]
    assert record["checks"]["leakage"]["feature"] == max(record["importance"], key=record["importance"].get) == "value"
    assert record["slices"][0]["columns"] == {"country": "NL"}
    assert result.scalars["gain"] > 0


@pytest.mark.parametrize("wrong", [1.5, -1.0, float(MAX_CLASSES)])
def test_label_that_is_not_a_class_is_named(wrong: float) -> None:
    labels = np.array([0.0, 1, 2, 0.0, wrong, 3], dtype=np.float32)
    with pytest.raises(DataError, match=rf"1 of 6 labels are not a class, the first is {wrong:g}") as caught:
        num_classes(labels)
    assert caught.value.code == "label.not_a_class"
    assert num_classes(labels[:3]) == 3


@pytest.mark.parametrize(
    ("task", "label", "wrong"), [("multiclass", "size", "days"), ("binary", "cancelled", "days"), ("binary", "cancelled", "size")]
)
def test_labels_that_are_not_classes_end_in_prepare_before_anything_is_trained(tmp_path: Path, task: str, label: str, wrong: str) -> None:
    bench = EvaluateBench(tmp_path, task)
    bench.spec = bench.spec_of({f"label: {{column: {label}}}": f"label: {{column: {wrong}}}"})
    ended, work_folder = bench.attempt("prepare", {"snapshot": bench.snapshot_uri}, {}, "numbers")
    assert ended is ExitCode.BAD_DATA
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "label.not_a_class"


def test_champion_that_cannot_be_read_ends_the_evaluation_and_nothing_is_promoted(binary: EvaluateBench) -> None:
    model = binary.train(work="good")
    binary.spec = binary.spec_of({})
    gone = {**binary.seat(model, "3"), "model_uri": model.artifact_uri.rsplit("/", 1)[0] + "/" + "0" * 64 + ".json"}
    inputs = {"model": model.artifact_uri, "dataset": binary.dataset_uri}
    ended, work_folder = binary.attempt("evaluate", inputs, {"champion": gone}, "unreadable")
    assert ended is ExitCode.BAD_DATA
    assert work_folder.result() is None
