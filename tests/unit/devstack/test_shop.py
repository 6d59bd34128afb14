"""The simulated shop: deterministic, of the declared shape, learnable, and breakable on purpose."""

from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from devstack import shop
from training.errors import DataError

DAY = date(2026, 3, 4)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def ndcg_at_10(score: np.ndarray, clicked: np.ndarray) -> float:
    pages, labels = score.reshape(-1, 12), clicked.reshape(-1, 12).astype(float)
    pages, labels = pages[labels.any(axis=1)], labels[labels.any(axis=1)]
    discount = np.where(np.arange(12) < 10, 1 / np.log2(np.arange(2, 14)), 0.0)
    gained = np.take_along_axis(labels, np.argsort(-pages, axis=1, kind="stable"), axis=1) @ discount
    return float(np.mean(gained / (-np.sort(-labels, axis=1) @ discount)))


def test_a_day_has_the_same_bytes_whether_or_not_other_days_were_made_before(tmp_path: Path) -> None:
    shop.write_day(tmp_path / "long", DAY - timedelta(days=1), searches=50)
    long = shop.write_day(tmp_path / "long", DAY, searches=50)
    shop.world.cache_clear()
    alone = shop.write_day(tmp_path / "alone", DAY, searches=50)
    assert digest(long) == digest(alone)
    assert digest(shop.write_day(tmp_path / "other", DAY, searches=50, seed=1)) != digest(alone)


def test_a_day_has_the_declared_columns_and_lies_inside_the_day(tmp_path: Path) -> None:
    table = read(shop.write_day(tmp_path, DAY, searches=80))
    assert table.schema.equals(shop.SCHEMA)
    assert all(column.null_count == 0 for column in table.columns)
    midnight = datetime(2026, 3, 4, tzinfo=UTC)
    assert midnight <= pc.min(table["shown_at"]).as_py() <= pc.max(table["shown_at"]).as_py() < midnight + timedelta(days=1)
    assert table["position"].to_pylist()[:24] == [*range(1, 13)] * 2
    assert set(pc.unique(table["clicked"]).to_pylist()) == {0, 1}


def test_keys_are_unique_over_days() -> None:
    days = [shop.make_day(DAY + timedelta(days=n), searches=60) for n in range(3)]
    table = pa.concat_tables(days)
    keys = set(zip(table["search_id"].to_pylist(), table["item_id"].to_pylist(), strict=True))
    assert len(keys) == table.num_rows
    assert len(set(table["search_id"].to_pylist())) * shop.RESULTS_PER_SEARCH == table.num_rows


def test_volume_follows_the_week_within_the_gate_of_the_pipeline() -> None:
    sizes = [shop.make_day(DAY + timedelta(days=n), searches=400).num_rows for n in range(8)]
    changes = [abs(later / earlier - 1) for earlier, later in itertools.pairwise(sizes)]
    assert max(changes) < 0.15
    assert sizes[3] > sizes[0]  # a Saturday and a Wednesday


def test_true_relevance_ranks_clicks_better_than_popularity_and_that_better_than_chance() -> None:
    table = shop.make_day(DAY, searches=1500)
    clicked = table["clicked"].to_numpy()
    oracle = shop.true_relevance(table["user_id"].to_numpy(), table["query_id"].to_numpy(), table["item_id"].to_numpy(), DAY)
    assert oracle.dtype == np.float64
    best, popular = ndcg_at_10(oracle, clicked), ndcg_at_10(table["popularity"].to_numpy().astype(float), clicked)
    chance = ndcg_at_10(np.random.default_rng(0).random(clicked.size), clicked)
    assert best > popular + 0.08
    assert popular > chance + 0.06


def test_clicks_are_relevance_times_examination() -> None:
    table = shop.make_day(DAY, searches=4000)
    relevance = shop.true_relevance(table["user_id"].to_numpy(), table["query_id"].to_numpy(), table["item_id"].to_numpy(), DAY)
    position, clicked = table["position"].to_numpy(), table["clicked"].to_numpy()
    for place in (1, 12):
        rate = clicked[position == place].sum() / relevance[position == place].sum()
        assert rate == pytest.approx(place**-shop.EXAMINATION_DECAY, abs=0.06)


def test_relevance_drifts_a_little_in_a_day_and_more_in_a_month() -> None:
    table = shop.make_day(DAY, searches=300)
    ids = [table[name].to_numpy() for name in ("user_id", "query_id", "item_id")]
    today = shop.true_relevance(*ids, DAY)
    tomorrow = np.abs(shop.true_relevance(*ids, DAY + timedelta(days=1)) - today).mean()
    next_month = np.abs(shop.true_relevance(*ids, DAY + timedelta(days=30)) - today).mean()
    assert 0 < tomorrow < 0.02 < next_month < 0.25


def test_popularity_is_the_click_through_of_the_days_before() -> None:
    today = shop.make_day(DAY, searches=1500)
    before = pa.concat_tables([shop.make_day(DAY - timedelta(days=n), searches=1500) for n in range(1, 8)])
    observed = before.group_by("item_id").aggregate([("clicked", "mean"), ("clicked", "count")])
    observed = observed.filter(pc.greater(observed["clicked_count"], 50))
    rate = dict(zip(observed["item_id"].to_pylist(), observed["clicked_mean"].to_pylist(), strict=True))
    known = dict(zip(today["item_id"].to_pylist(), today["popularity"].to_pylist(), strict=True))
    pairs = np.array([(known[item], rate[item]) for item in sorted(known.keys() & rate.keys())])
    assert len(pairs) > 500
    assert np.corrcoef(pairs.T)[0, 1] > 0.7


def test_each_fault_breaks_one_thing_and_repair_restores_the_bytes(tmp_path: Path) -> None:
    path = shop.write_day(tmp_path, DAY, searches=100, seed=5)
    good, rows = digest(path), read(path).num_rows
    shop.break_day(tmp_path, DAY, "missing_column")
    assert "rating" not in read(path).column_names
    shop.break_day(tmp_path, DAY, "volume")
    assert read(path).num_rows == pytest.approx(0.4 * rows, rel=0.03)
    shop.break_day(tmp_path, DAY, "null_key")
    assert read(path)["item_id"].null_count == -(-rows // 100)
    shop.break_day(tmp_path, DAY, "duplicated_day")
    assert read(path).num_rows == 2 * rows
    shop.break_day(tmp_path, DAY, "repair")
    assert digest(path) == good
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("fault", "made", "code"), [("earthquake", True, "shop.fault"), ("volume", False, "shop.no_day")], ids=["unknown fault", "no such day"]
)
def test_breaking_what_is_not_there_is_refused(tmp_path: Path, fault: str, made: bool, code: str) -> None:
    if made:
        shop.write_day(tmp_path, DAY, searches=5)
    with pytest.raises(DataError) as caught:
        shop.break_day(tmp_path, DAY, fault)
    assert caught.value.code == code


def test_number_of_searches_out_of_range_is_refused() -> None:
    with pytest.raises(DataError, match=r"shop\.searches"):
        shop.make_day(DAY, searches=0)


def test_command_makes_missing_days_only(tmp_path: Path) -> None:
    command = ["--root", str(tmp_path), "--first", DAY.isoformat(), "--days", "2", "--searches", "20"]
    shop.main([*command, "--seed", "3"])
    first = digest(shop.day_path(tmp_path, DAY))
    shop.main([*command, "--seed", "4"])
    assert digest(shop.day_path(tmp_path, DAY)) == first
    assert shop.day_path(tmp_path, DAY + timedelta(days=1)).exists()
    shop.main(["--root", str(tmp_path), "--first", DAY.isoformat(), "--fault", "volume"])
    assert digest(shop.day_path(tmp_path, DAY)) != first
