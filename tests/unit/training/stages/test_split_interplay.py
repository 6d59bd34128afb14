"""Splits other than by time beside windows, target encoding, weights, samples and several main tables."""

from __future__ import annotations

import shutil
from collections import defaultdict
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.golden.synthetic_flights import write_flights
from tests.unit.training.stages.test_prepare import Prepared, load, run
from training.data.dataset.mapped_shards import MappedShards
from training.data.features.target_encoding import fold_numbers

pytestmark = pytest.mark.slow

AS_OF = datetime(2013, 5, 1, 6, tzinfo=UTC)
TIME = "split: {by: time, validation: 7d, test: 7d}"
SHARES = "validation: 0.2, test: 0.2"
SPLITS = {
    "random": f"split: {{by: random, {SHARES}}}",
    "group": f"split: {{by: group, {SHARES}, column: tailnum}}",
    "stratified": f"split: {{by: stratified, {SHARES}, column: origin}}",
    "column": "split: {by: column, column: origin, values: {train: [EWR], validation: [JFK], test: [LGA]}}",
}
WINDOWS = """  windows:
    last_delay: {kind: lag, column: arr_delay, by: [carrier], rows: 1}
    late_share: {kind: rolling, function: mean, column: arr_delay, by: [origin], time: 3d}
  label: {column: arr_delay"""
CARRIER = "carrier: {transform: target_encode, folds: 4, smoothing: 3}"
ENCODED = {
    "  label: {column: arr_delay": WINDOWS,
    "carrier: {transform: category}": f"{CARRIER}\n    last_delay: {{transform: number}}\n    late_share: {{transform: number}}",
}


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights") / "source"
    write_flights(folder, date(2013, 3, 11), 52)
    return folder


def prepared(flights: Path, folder: Path, changes: dict[str, str]) -> Prepared:
    folder.mkdir(parents=True)
    return run(folder, load("flight_delay", {"FLIGHTS_URI": flights.as_uri()}, changes), AS_OF)


def cells(found: Prepared, folder: Path, split: str, name: str) -> np.ndarray:
    found.store.manifests.fetch(found.manifest, folder)
    shards = MappedShards(folder, found.manifest.meta, split)  # type: ignore[arg-type]
    return shards.columns()[0][:, [entry["name"] for entry in shards.features].index(name)]


def assert_partition(found: Prepared) -> None:
    rows = [found.rows(split) for split in ("train", "validation", "test")]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(found.frame)))
    assert all(len(part) > 100 for part in rows)


@pytest.mark.parametrize("kind", list(SPLITS))
def test_target_encoding_and_windows_stand_beside_every_split(flights: Path, tmp_path: Path, kind: str) -> None:
    by_time = prepared(flights, tmp_path / "time", ENCODED)
    found = prepared(flights, tmp_path / kind, {**ENCODED, TIME: SPLITS[kind]})
    assert_partition(found)
    # A window is of a row's past, whichever split that is in.
    pd.testing.assert_frame_equal(found.frame[["last_delay", "late_share"]], by_time.frame[["last_delay", "late_share"]])
    assert found.frame["last_delay"].notna().mean() > 0.9
    frame = found.frame
    train, validation = (frame.iloc[found.rows(split)] for split in ("train", "validation"))
    prior, sums, counts = train["label"].mean(), train.groupby("carrier")["label"].sum(), train.groupby("carrier")["label"].count()
    expected = [(sums.get(name, 0.0) + 3 * prior) / (counts.get(name, 0) + 3) for name in validation["carrier"]]
    got = cells(found, tmp_path / "dataset", "validation", "carrier")
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    key = [pa.chunked_array([pa.Array.from_pandas(frame[name])]) for name in found.spec.data.source.key]
    mask = np.zeros(len(frame), dtype=bool)
    mask[found.rows("train")] = True
    folds = fold_numbers(key, mask)[mask] % 4
    by_fold: dict[tuple[int, str], list[float]] = defaultdict(list)
    for fold, name, label in zip(folds, train["carrier"], train["label"], strict=True):
        for other in set(range(4)) - {int(fold)}:
            by_fold[other, name].append(label)
    out_of_fold = [
        (sum(by_fold[int(fold), name]) + 3 * prior) / (len(by_fold[int(fold), name]) + 3)
        for fold, name in zip(folds, train["carrier"], strict=True)
    ]
    np.testing.assert_allclose(cells(found, tmp_path / "dataset2", "train", "carrier"), out_of_fold, rtol=1e-5)


@pytest.mark.parametrize("kind", ["random", "group", "column"])
def test_a_row_of_a_sample_is_in_the_split_that_it_has_without_it(flights: Path, tmp_path: Path, kind: str) -> None:
    whole = prepared(flights, tmp_path / "whole", {TIME: SPLITS[kind]})
    sampled = prepared(flights, tmp_path / "sampled", {TIME: SPLITS[kind], "    window: 60d": "    sample: {share: 0.5}\n    window: 60d"})
    key = list(whole.spec.data.source.key)

    def by_key(found: Prepared) -> dict[tuple[object, ...], str]:
        frame = found.frame
        rows = {split: frame.iloc[found.rows(split)][key] for split in ("train", "validation", "test")}
        return {tuple(row): split for split, part in rows.items() for row in part.itertuples(index=False)}

    expected, got = by_key(whole), by_key(sampled)
    assert_partition(sampled)
    assert 0.4 * len(expected) < len(got) < 0.6 * len(expected)
    assert all(expected[row] == split for row, split in got.items())


def test_weights_stand_beside_a_stratified_split(flights: Path, tmp_path: Path) -> None:
    change = {TIME: f"weight: distance\n  {SPLITS['stratified']}"}
    found = prepared(flights, tmp_path / "weights", change)
    assert_partition(found)
    found.store.manifests.fetch(found.manifest, tmp_path / "dataset")
    for split in ("train", "validation"):
        shards = MappedShards(tmp_path / "dataset", found.manifest.meta, split)  # type: ignore[arg-type]
        weights = np.concatenate([shards.weights(shard, slice(None)) for shard in range(len(shards.cells))])
        assert np.array_equal(weights, found.frame["distance"].to_numpy()[found.rows(split)].astype(np.float32))


@pytest.mark.parametrize("kind", ["random", "stratified"])
def test_rows_of_two_main_tables_are_divided_and_encoded_as_those_of_one(flights: Path, tmp_path: Path, kind: str) -> None:
    halves = tmp_path / "halves"
    shutil.copytree(flights, halves)
    rows = pd.read_csv(flights / "flights.csv", dtype=str, keep_default_na=False)
    rows.iloc[::2].to_csv(halves / "flights.csv", index=False)
    rows.iloc[1::2].to_csv(halves / "more.csv", index=False)
    changes = {**ENCODED, TIME: f"weight: distance\n  {SPLITS[kind]}"}
    union = '    union: [{table: more, kind: csv, uri: "${FLIGHTS_URI}/more.csv"}]\n    window: 60d'
    one = prepared(flights, tmp_path / "one", changes)
    two = prepared(halves, tmp_path / "two", {**changes, "    window: 60d": union})
    assert one.manifest.files == two.manifest.files
    assert one.manifest.meta["rows"] == two.manifest.meta["rows"]
