"""Orders divided other than by time, from ingest to the evaluation: whole, in any order of rows, and with the right champion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import EvaluateBench, nobody_else, orders
from training.contracts import ExitCode
from training.data.dataset.reader import DatasetReader

pytestmark = pytest.mark.slow

TIME = "by: time, validation: 5d, test: 10d"
SHARES = "validation: 0.2, test: 0.3"
SPLITS = ("train", "validation", "test")
COUNTRIES = "values: {train: [NL], validation: [DE], test: [BE]}"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluateBench]:
    folder = tmp_path_factory.mktemp("orders")
    with nobody_else(folder):
        yield EvaluateBench(folder, "binary")


def divided(bench: EvaluateBench, uri: str, folder: Path) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    reader = DatasetReader(bench.store, bench.store.manifests.get(uri), folder)
    return reader.columns(reader.schema.names), {split: reader.numbers(split) for split in SPLITS}


@pytest.mark.parametrize(
    "split",
    [
        f"by: random, {SHARES}",
        f"by: group, {SHARES}, column: customer",
        f"by: stratified, {SHARES}",
        f"by: column, column: country, {COUNTRIES}",
    ],
)
def test_every_row_is_in_one_split_and_the_rows_order_changes_none(bench: EvaluateBench, tmp_path: Path, split: str) -> None:
    frame, rows = divided(bench, bench.prepare({TIME: split}, work=split[4:10]), tmp_path / "one")
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(frame)))
    assert all(len(numbers) > 10 for numbers in rows.values())
    if "customer" in split:
        customers = [set(frame["customer"].iloc[numbers]) for numbers in rows.values()]
        assert not customers[0] & customers[1] | customers[1] & customers[2] | customers[0] & customers[2]
    if "stratified" in split:
        for label in (0, 1):
            whole = (frame["label"] == label).sum()
            assert abs((frame["label"].iloc[rows["test"]] == label).sum() - 0.3 * whole) < 1
    if "country" in split:
        assert set(frame["country"].iloc[rows["test"]]) == {"BE"}
    shuffled = EvaluateBench(tmp_path / "shuffled", "binary", frame=orders().sample(frac=1, random_state=1))
    mine, theirs = (made.store.manifests.get(made.prepare({TIME: split}, work=split[4:10])) for made in (bench, shuffled))
    assert {name: entry.digest for name, entry in mine.files.items()} == {name: entry.digest for name, entry in theirs.files.items()}


def test_a_column_may_be_the_stratum_and_another_seed_divides_otherwise(bench: EvaluateBench, tmp_path: Path) -> None:
    found = {}
    splits = ("by: stratified, column: country", "by: stratified, column: country, seed: 5", "by: random", "by: random, seed: 5")
    for number, split in enumerate(splits):
        name = f"seed{number}"
        frame, rows = divided(bench, bench.prepare({TIME: f"{split}, {SHARES}"}, work=name), tmp_path / name)
        found[split] = set(frame["order_id"].iloc[rows["test"]])
        if "stratified" in split:
            for country, whole in frame["country"].value_counts().items():
                assert abs((frame["country"].iloc[rows["test"]] == country).sum() - 0.3 * whole) < 1
    assert len({frozenset(ids) for ids in found.values()}) == 4


def test_rows_of_the_gaps_are_left_out_of_the_dataset(bench: EvaluateBench, tmp_path: Path) -> None:
    frame, rows = divided(bench, bench.prepare({TIME: f"{TIME}, gap: 2d"}, work="gap"), tmp_path)
    whole, before = divided(bench, bench.dataset_uri, tmp_path / "whole")
    times = whole["ordered_at"]
    start = pd.Timestamp(bench.store.manifests.get(bench.dataset_uri).meta["bounds"]["test"][0])
    day = pd.Timedelta(days=1)
    ends = (start, start - 7 * day)
    gaps = np.any([(times >= end - 2 * day) & (times < end) for end in ends], axis=0)
    assert gaps.sum() > 300
    assert set(frame["order_id"]) == set(whole["order_id"][~gaps])
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(frame)))
    assert len(rows["test"]) == len(before["test"])


def test_value_that_names_no_split_ends_prepare(bench: EvaluateBench) -> None:
    values = COUNTRIES.replace("BE", "FR")
    bench.spec = bench.spec_of({TIME: f"by: column, column: country, {values}"})
    ended, work_folder = bench.attempt("prepare", {"snapshot": bench.snapshot_uri}, {}, "value")
    assert ended is not ExitCode.DONE
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "split.value"
    assert "'BE'" in error["message"]


def test_champion_is_compared_where_rows_are_divided_alike_and_only_there(bench: EvaluateBench) -> None:
    alike = f"by: random, {SHARES}"
    other = f"by: random, {SHARES}, seed: 5"
    champion = bench.train({TIME: alike}, work="champion")
    foreign = bench.train({TIME: other}, work="foreign")
    uri = bench.prepare({TIME: alike}, work="champion")
    bench.dataset_uri, before = uri, bench.dataset_uri
    records = []
    for name, model in (("alike", champion), ("other", foreign)):
        seat = bench.seat(model, "3")
        seat["bounds"] = bench.store.manifests.get(model.artifact_uri).meta["bounds"]
        records.append(bench.evaluate(champion, {TIME: alike}, work=name, champion=seat)[1])
    bench.dataset_uri = before
    assert records[0]["comparison"] is not None
    assert records[1]["comparison"] is None
    assert "after the test rows begin" in records[1]["baseline"]
    assert "divided otherwise" in records[1]["baseline"]
    assert records[0]["baselines"]["found"]


def test_champion_of_a_stratified_split_is_compared_on_test_rows_that_it_did_not_learn_from(bench: EvaluateBench) -> None:
    split = f"by: stratified, {SHARES}"
    champion = bench.train({TIME: split}, work="stratified")
    foreign = bench.train({TIME: f"{split}, end: 9d"}, work="without-the-last-days")
    uri = bench.prepare({TIME: split}, work="stratified")
    bench.dataset_uri, before = uri, bench.dataset_uri
    records = []
    for name, model in (("same", champion), ("fewer", foreign)):
        seat = bench.seat(model, "3")
        seat["bounds"] = bench.store.manifests.get(model.artifact_uri).meta["bounds"]
        result, record = bench.evaluate(champion, {TIME: split}, work=f"stratified-{name}", champion=seat)
        records.append(record)
        page = bench.store.reports.get(result.reports["evaluation"]).decode()
        assert "by stratified, validation 0.2, test 0.3, seed 0" in page
    bench.dataset_uri = before
    assert all(record["comparison"] is not None for record in records)
    assert "rows_seen" not in records[0]
    assert records[1]["num_rows"] + records[1]["rows_seen"]["champion"] == records[0]["num_rows"]


def test_stratified_champion_whose_dataset_is_gone_or_of_most_test_rows_is_no_baseline(
    bench: EvaluateBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = f"by: stratified, {SHARES}"
    champion = bench.train({TIME: split}, work="stratified")
    foreign = bench.train({TIME: f"{split}, end: 9d"}, work="without-the-last-days")
    uri = bench.prepare({TIME: split}, work="stratified")
    seat = bench.seat(foreign, "3")
    seat["bounds"] = bench.store.manifests.get(foreign.artifact_uri).meta["bounds"]
    bench.dataset_uri, before = uri, bench.dataset_uri
    with monkeypatch.context() as patch:
        patch.setattr("training.evaluation.compared_models.MIN_UNSEEN", 1.0)
        most = bench.evaluate(champion, {TIME: split}, work="stratified-most", champion=seat)[1]
    manifest = bench.store.manifests.get(foreign.artifact_uri)
    theirs = bench.store.manifests.get(bench.store.manifests.uri(manifest.meta["dataset"]))
    bench.store.bucket.delete(bench.store.manifests.key(theirs.digest))
    gone = bench.evaluate(champion, {TIME: split}, work="stratified-gone", champion=seat)[1]
    bench.store.manifests.put(theirs)
    bench.dataset_uri = before
    assert (most["comparison"], gone["comparison"]) == (None, None)
    assert "give promote.model another name" in most["baseline"]
    assert gone["baseline"].endswith("is gone, so which test rows it was trained on is unknown: give promote.model another name")
