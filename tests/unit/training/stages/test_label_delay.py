"""Bookings whose label is known days later, from ingest to the evaluation's report: counted, limited, and a test split without them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import AS_OF, NUM_ROWS, SPEC, EvaluateBench, nobody_else, orders
from training.contracts import ExitCode

TEXT = SPEC.replace("label: {column: LABEL}", "label: {column: LABEL, known_at: settled_at}").replace(
    "      days: {type: double, known: after}",
    "      days: {type: double, known: after}\n      settled_at: {type: timestamp, known: after}",
)
SPLIT = "validation: 5d, test: 10d"
END_OF_SPLIT = {SPLIT: "validation: 5d, test: 5d, end: labels_complete"}


def bookings() -> pd.DataFrame:
    """Return orders whose label is known after up to eight days; a cancelled one is known sooner."""
    frame = orders()
    days = np.random.default_rng(1).uniform(0, 8, NUM_ROWS) * np.where(frame["cancelled"] == 1, 0.5, 1.0)
    moments = [datetime.fromisoformat(at) + timedelta(days=float(wait)) for at, wait in zip(frame["ordered_at"], days, strict=True)]
    return frame.assign(settled_at=[moment.isoformat() for moment in moments])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluateBench]:
    """Return the bookings, prepared; without a tracking server or a registry, which have tests of their own."""
    folder = tmp_path_factory.mktemp("bookings")
    with nobody_else(folder):
        yield EvaluateBench(folder, "binary", text=TEXT, frame=bookings())


def meta_of(bench: EvaluateBench, uri: str) -> dict[str, Any]:
    return dict(bench.store.manifests.get(uri).meta)


def expected_unknown() -> pd.DataFrame:
    frame = bookings()
    return frame[pd.to_datetime(frame["settled_at"], utc=True, format="ISO8601") > AS_OF]


def test_rows_without_a_known_label_are_counted_in_snapshot_and_dataset(bench: EvaluateBench) -> None:
    unknown = expected_unknown()
    found = meta_of(bench, bench.snapshot_uri)["unknown_labels"]
    assert (found["rows"], found["unknown"]) == (NUM_ROWS, len(unknown))
    assert found["splits"]["test"]["unknown"] == len(unknown) > 200
    assert found["splits"]["train"]["unknown"] == found["splits"]["validation"]["unknown"] == 0
    dataset = meta_of(bench, bench.dataset_uri)
    assert dataset["unknown_labels"] == found
    assert dataset["rows"]["test"] == found["splits"]["test"]["rows"] - len(unknown)


def test_log_of_ingest_names_each_splits_share_and_the_newest_days(bench: EvaluateBench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench.ingest(work="logged")
    found = meta_of(bench, bench.snapshot_uri)["unknown_labels"]["splits"]["test"]
    assert f"test: {found['unknown']:,} of {found['rows']:,} rows" in caplog.text
    assert "newest days: " in caplog.text


def validation(bench: EvaluateBench, replaced: dict[str, str], work: str) -> dict[str, Any]:
    bench.spec = bench.spec_of(replaced)
    result = bench.stage("validate", {"snapshot": bench.snapshot_uri}, {}, work=work)
    manifest = bench.store.manifests.get(result.artifact_uri)
    page = bench.store.reports.get(result.reports["validation"]).decode()
    return {**json.loads(bench.store.manifests.read(manifest, "results.json")), "page": page}


def test_validation_warns_of_a_split_that_lost_many_rows_and_shows_the_counts(bench: EvaluateBench) -> None:
    results = validation(bench, {}, "default")
    (warned,) = [check for check in results["checks"] if check["status"] == "warned"]
    assert (warned["code"], warned["check"]) == ("label.unknown", "rows of the test split without a known label")
    assert warned["observed"].startswith(f"{len(expected_unknown()):,} of 988 rows (2")
    assert "Labels that are not known yet" in results["page"]
    assert "2026-01-31" in results["page"]


def test_limit_that_a_split_exceeds_fails_with_split_counts_and_remedy(bench: EvaluateBench) -> None:
    bench.spec = bench.spec_of({"prepare:": "validate: {unknown_labels: 0.2}\nprepare:"})
    ended, work_folder = bench.attempt("validate", {"snapshot": bench.snapshot_uri}, {}, "limited")
    assert ended is ExitCode.BAD_DATA
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "label.unknown"
    for words in (
        "rows of the test split",
        f"observed {len(expected_unknown()):,} of",
        "allowed at most 20%",
        "data.split.end: labels_complete",
    ):
        assert words in error["message"]


@pytest.mark.usefixtures("bench")
def test_null_moments_of_labels_in_a_column_that_is_not_nullable_fail_with_the_key_to_set(tmp_path: Path) -> None:
    frame = bookings()
    late = EvaluateBench(tmp_path, "binary", text=TEXT, frame=frame.assign(settled_at=frame["settled_at"].mask(frame.index == 5)))
    ended, work_folder = late.attempt("validate", {"snapshot": late.snapshot_uri}, {}, "nulls")
    error = work_folder.error("a1")
    assert ended is ExitCode.BAD_DATA
    assert error is not None
    assert "orders.settled_at: no nulls: observed 1 of" in error["message"]
    assert "if null means that the label is not known yet, declare this column `nullable: true`" in error["message"]


def test_limit_that_no_split_exceeds_passes(bench: EvaluateBench) -> None:
    results = validation(bench, {"prepare:": "validate: {unknown_labels: 0.9}\nprepare:"}, "wide")
    assert {check["status"] for check in results["checks"]} == {"passed"}


def test_test_split_that_ends_where_labels_are_complete_has_every_row_of_its_days(bench: EvaluateBench) -> None:
    before = bench.snapshot_uri, bench.dataset_uri
    try:
        bench.snapshot_uri = bench.ingest(END_OF_SPLIT, work="complete")
        bench.dataset_uri = bench.prepare(END_OF_SPLIT, work="complete")
        meta = meta_of(bench, bench.dataset_uri)
        splits = meta["unknown_labels"]["splits"]
        assert {name: splits[name]["unknown"] for name in ("train", "validation", "test")} == {"train": 0, "validation": 0, "test": 0}
        assert splits["after the test split"]["unknown"] == len(expected_unknown())
        assert meta["rows"] == {name: splits[name]["rows"] for name in ("train", "validation", "test")}
        start, end = (datetime.fromisoformat(edge) for edge in meta["bounds"]["test"])
        frame = bookings()
        moments = pd.to_datetime(frame["ordered_at"], utc=True, format="ISO8601")
        assert meta["rows"]["test"] == ((moments >= start) & (moments < end)).sum()
        assert (end - start, end < AS_OF - timedelta(days=7)) == (timedelta(days=5), True)
        results = validation(bench, {**END_OF_SPLIT, "prepare:": "validate: {unknown_labels: 0}\nprepare:"}, "complete")
        assert {check["status"] for check in results["checks"]} == {"passed"}
    finally:
        bench.snapshot_uri, bench.dataset_uri = before


def test_evaluation_records_and_reports_the_rows_that_are_missing(bench: EvaluateBench) -> None:
    model = bench.train(work="reported")
    result, record = bench.evaluate(model, work="reported")
    found = record["unknown_labels"]["splits"]["test"]
    page = bench.store.reports.get(result.reports["evaluation"]).decode()
    section = page[page.index('id="labels"') :]
    assert f'<td class="n">{found["unknown"]:,}</td>' in section
    assert f"{100 * found['unknown'] / found['rows']:.1f} %" in section
