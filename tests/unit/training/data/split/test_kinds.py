"""Splits that are not made by time, against a plain loop over 1,000 generated tables, and as a stage."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from training.contracts import JsonObject
from training.data.dataset import scratch_arrays
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.split.hashing import row_hashes
from training.data.split.kinds import Shares, division_words, hashed_parts, is_same_division, named_parts, stratified_parts
from training.errors import DataError

TABLES = 1000
TENTHS = Shares.of(0.1, 0.2)


def plain_hash(seed: int, *values: object) -> int:
    """The definition, value by value."""
    text = struct.pack("<q", seed)
    for value in values:
        content = b"n\0\0\0\0"
        if isinstance(value, int):
            content = b"i" + struct.pack("<I", len(str(value))) + str(value).encode()
        elif isinstance(value, str):
            content = b"s" + struct.pack("<I", len(value.encode())) + value.encode()
        text += content
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def column(values: list[Any], kind: pa.DataType, pieces: int = 1) -> pa.ChunkedArray:
    edges = np.linspace(0, len(values), pieces + 1).astype(int)
    return pa.chunked_array([pa.array(values[first:last], kind) for first, last in itertools.pairwise(edges)], kind)


def stratified(hashes: np.ndarray, strata: pa.ChunkedArray, shares: Shares, folder: Path, batch_rows: int = 7) -> np.ndarray:
    batches = [strata.slice(first, batch_rows) for first in range(0, len(strata), batch_rows)]
    return np.concatenate(list(stratified_parts(hashes, batches, shares, ScratchArrays(folder))))


def generated(seed: int) -> tuple[list[int], list[str | None], list[str]]:
    """Return (key, group, stratum) of 2 to 80 rows."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(2, 80))
    key = random.permutation(1000)[:rows].tolist()
    group = [None if number == 9 else f"gröup {number}" for number in random.integers(0, 10, rows).tolist()]
    return key, group, [f"s{number}" for number in random.integers(0, 3, rows).tolist()]


def part(number: int, shares: Shares) -> int:
    share = Fraction(number, 2**64)
    return 2 if share < shares.test else 1 if share < shares.test + shares.validation else 0


def test_random_rows_go_where_a_plain_loop_sends_them_in_any_order_and_chunks() -> None:
    for seed in range(TABLES):
        key, group, _ = generated(seed)
        columns = [column(key, pa.int64(), 1 + seed % 4), column(group, pa.string(), 1 + seed % 3)]
        parts = hashed_parts(row_hashes(columns, seed), TENTHS)
        assert parts.tolist() == [part(plain_hash(seed, *values), TENTHS) for values in zip(key, group, strict=True)]

        order = np.random.default_rng(seed).permutation(len(key))
        shuffled = hashed_parts(row_hashes([found.combine_chunks().take(order) for found in columns], seed), TENTHS)
        assert np.array_equal(shuffled, parts[order])


def test_a_group_is_never_divided_and_new_rows_move_no_other() -> None:
    for seed in range(TABLES):
        _, group, _ = generated(seed)
        parts = hashed_parts(row_hashes([column(group, pa.string())], seed), TENTHS)
        by_group: dict[str | None, set[int]] = {}
        for name, number in zip(group, parts.tolist(), strict=True):
            by_group.setdefault(name, set()).add(number)
        assert all(len(found) == 1 for found in by_group.values())
        longer = hashed_parts(row_hashes([column(["new", *group], pa.string())], seed), TENTHS)
        assert np.array_equal(longer[1:], parts)


def test_each_stratum_has_its_shares_to_less_than_a_row_in_any_order(tmp_path: Path) -> None:
    for seed in range(TABLES):
        key, _, strata = generated(seed)
        hashes = row_hashes([column(key, pa.int64())], seed)
        parts = stratified(hashes, column(strata, pa.string()), TENTHS, tmp_path)
        for stratum in set(strata):
            found = parts[np.array(strata) == stratum]
            for number, share in ((1, 0.1), (2, 0.2)):
                assert abs((found == number).sum() - share * len(found)) < 1
        order = np.random.default_rng(seed).permutation(len(key))
        shuffled = stratified(hashes[order], column([strata[row] for row in order], pa.string()), TENTHS, tmp_path)
        assert np.array_equal(shuffled, parts[order])


def test_strata_on_disk_are_divided_as_a_sort_of_all_rows_would_also_where_hashes_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_arrays, "MEMORY_BYTES", 0)
    monkeypatch.setattr(scratch_arrays, "SLICE_ROWS", 7)
    for seed in range(TABLES // 10):
        random = np.random.default_rng(seed)
        strata = random.integers(0, 6, 60)
        hashes = random.integers(0, 40, 60).astype(np.uint64)
        expected = np.zeros(60, dtype=np.int8)
        for stratum in np.unique(strata):
            rows = np.flatnonzero(strata == stratum)
            rows = rows[np.argsort(hashes[rows], kind="stable")]
            test, both = (int(len(rows) * share + Fraction(1, 2)) for share in (TENTHS.test, TENTHS.test + TENTHS.validation))
            expected[rows[:both]], expected[rows[:test]] = 1, 2
        assert stratified(hashes, column(strata.tolist(), pa.int64()), TENTHS, tmp_path).tolist() == expected.tolist()


def test_the_smallest_hashes_of_a_stratum_are_test_and_null_is_a_stratum(tmp_path: Path) -> None:
    hashes = np.arange(20, 0, -1, dtype=np.uint64)
    strata = column(["a", None] * 10, pa.string())
    parts = stratified(hashes, strata, TENTHS, tmp_path)
    assert np.flatnonzero(parts == 2).tolist() == [16, 17, 18, 19]
    assert np.flatnonzero(parts == 1).tolist() == [14, 15]


def named(values: list[Any], kind: pa.DataType, splits: Mapping[Any, Sequence[object]] | None, batch_rows: int = 7) -> list[int]:
    batches = [column(values[first : first + batch_rows], kind) for first in range(0, len(values), batch_rows)]
    return [part for parts in named_parts(batches, splits, column_name="year") for part in parts.tolist()]


def test_named_values_decide_and_every_value_must_name_a_split() -> None:
    for seed in range(TABLES):
        random = np.random.default_rng(seed)
        years = random.integers(2020, 2025, int(random.integers(1, 50))).tolist()
        values = {"train": (2020, 2021, 2022), "validation": (2023,), "test": (2024,)}
        assert named(years, pa.int32(), values) == [max(0, year - 2022) for year in years]
    for batch_rows in (1, 2, 9):
        with pytest.raises(DataError, match=r"column year has 2 values that name no split: 2030 \(2 rows\), null \(1 rows\)") as caught:
            named([2020, 2030, 2030, None], pa.int32(), values, batch_rows)
        assert caught.value.code == "split.value"
    assert named(["test", "train"], pa.string(), None) == [2, 0]


def test_shares_of_many_rows_are_those_of_the_spec_and_another_seed_divides_otherwise() -> None:
    hashes = row_hashes([column(list(range(50_000)), pa.int64())], 0)
    parts = hashed_parts(hashes, TENTHS)
    # Four standard deviations of a binomial share.
    assert np.bincount(parts) / 50_000 == pytest.approx([0.7, 0.1, 0.2], abs=0.008)
    other = hashed_parts(row_hashes([column(list(range(50_000)), pa.int64())], 1), TENTHS)
    assert 0.3 < (parts != other).mean() < 0.6


def test_equal_values_have_equal_hashes_whatever_their_width_unit_or_zone() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    pairs = [
        (column([7], pa.int8()), column([7], pa.int64())),
        (column([1.5], pa.float32()), column([1.5], pa.float64())),
        (column([0.0], pa.float64()), column([-0.0], pa.float64())),
        (column([moment], pa.timestamp("s", "UTC")), column([moment], pa.timestamp("us", "Europe/Paris"))),
        (column(["x"], pa.string()), column(["x"], pa.large_string())),
    ]
    for one, other in pairs:
        assert row_hashes([one], 3) == row_hashes([other], 3)
    kinds = [column([value], kind) for value, kind in ((1, pa.int8()), ("1", pa.string()), (True, pa.bool_()), (1.0, pa.float64()))]
    assert len({int(row_hashes([found], 0)[0]) for found in [*kinds, column([None], pa.string())]}) == 5
    apart = [row_hashes([column([one], pa.string()), column([other], pa.string())], 0) for one, other in (("ab", "c"), ("a", "bc"))]
    assert apart[0] != apart[1]


def test_a_division_is_told_in_a_line() -> None:
    random: JsonObject = {"by": "random", "seed": 3, "test": 0.4, "validation": 0.2, "key": ["id"], "group": None}
    assert division_words(random) == "by random, validation 0.2, test 0.4, seed 3"
    assert division_words({**random, "by": "group", "column": "user"}) == "by group, column user, validation 0.2, test 0.4, seed 3"
    assert division_words({"by": "column", "column": "part", "seed": 0, "key": ["id"], "group": None}) == "by column, column part"


def test_only_equal_divisions_by_what_a_row_is_are_the_same() -> None:
    random = {"by": "random", "seed": 0, "test": 0.1, "validation": 0.1, "key": ["id"], "group": None}
    assert is_same_division(random, dict(random))
    assert not is_same_division(random, {**random, "seed": 1})
    stratified = {**random, "by": "stratified", "test_rows": "a1"}
    assert is_same_division(stratified, dict(stratified))
    assert not is_same_division(stratified, {**stratified, "test_rows": "b2"})
    assert not is_same_division({**random, "by": "stratified"}, {**random, "by": "stratified"})
    assert not is_same_division(None, None)


def test_a_day_is_hashed_alike_as_date32_and_date64() -> None:
    day = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=3)).date()
    assert row_hashes([column([day], pa.date32())], 0) == row_hashes([column([day], pa.date64())], 0)
