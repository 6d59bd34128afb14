"""The order of the rows shows that keys are unique only where they are, however the rows are divided into chunks."""

from __future__ import annotations

import numpy as np
import pytest

from training.validation.checks import key_order
from training.validation.checks.key_order import has_no_repeats


def keys(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 40))
    first = np.sort(rng.integers(-5, 12, num))
    rest = [rng.integers(0, 25, num, dtype=np.int8), rng.choice([-(2**61), 0, 2**61], num)]
    return [first, *rest[: rng.integers(0, 3)]]


@pytest.mark.parametrize("seed", range(60))
def test_rising_rows_are_unique_where_no_two_are_equal(seed: int) -> None:
    columns = keys(seed)
    edges = np.sort(np.random.default_rng(seed).integers(0, len(columns[0]), 3))
    chunks = list(zip(*(np.split(column, edges) for column in columns), strict=True))
    rows = list(zip(*(column.tolist() for column in columns), strict=True))

    found = has_no_repeats(chunks)

    # A key of three columns may need more than 64 bits: then it is not known.
    assert found == (len(set(rows)) == len(rows)) or (len(columns) == 3 and not found)


def test_a_run_of_two_chunks_is_looked_at_as_one() -> None:
    assert has_no_repeats([[np.array([1, 2]), np.array([7, 8])], [np.array([2, 3]), np.array([9, 8])]])
    assert not has_no_repeats([[np.array([1, 2]), np.array([7, 8])], [np.array([2, 3]), np.array([8, 8])]])


@pytest.mark.parametrize("chunks", [[[np.array([2, 1])]], [[np.array([2])], [np.array([1])]], [[np.array([1])], None]])
def test_rows_that_fall_or_lack_a_value_show_nothing(chunks: list[list[np.ndarray] | None]) -> None:
    assert not has_no_repeats(chunks)


def test_a_long_run_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "MAX_RUN", 3)
    run = [np.zeros(2, dtype=np.int64), np.arange(2)]
    assert has_no_repeats([run])
    assert not has_no_repeats([run, [run[0], run[1] + 2]])


def test_a_column_wider_than_64_bits_is_left_to_the_count() -> None:
    assert not has_no_repeats([[np.array([1, 1, 2]), np.array([-(2**63), 2**63 - 1, 0])]])
