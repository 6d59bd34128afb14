"""Drift between snapshots, against scipy on the rows, and its limits."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.spatial.distance import jensenshannon

from tests.unit.training.validation.drift.test_within_snapshot import view
from training.contracts import canonical_json
from training.spec.sections.drift import Drift
from training.validation.all_checks import _named
from training.validation.columns.profiles import Tables, counts_of, tables_of, to_json
from training.validation.columns.statistics import profile
from training.validation.drift.between_snapshots import ColumnDrift, SnapshotComparison
from training.validation.drift.limits import Earlier, compare
from training.validation.results import CheckResult

START = datetime(2026, 1, 1, tzinfo=UTC)
SPAN_US = (round(START.timestamp() * 1e6), round((START + timedelta(days=10)).timestamp() * 1e6))


def counted(folder: Path, columns: dict[str, Any], named: dict[str, list[str]] | None = None) -> tuple[Any, dict[str, dict[str, int]]]:
    folder.mkdir()
    opened = view(folder, columns)
    profiles = profile(opened, SPAN_US, named)
    return counts_of(opened, profiles), {name: column.values.named for name, column in profiles.items() if column.values is not None}


def compared(
    folder: Path, before: dict[str, Any], now: dict[str, Any], rules: Drift | None = None
) -> tuple[dict[str, ColumnDrift], list[CheckResult]]:
    """Compare two tables by a stored profile of the first."""
    counts, _ = counted(folder / "before", before)
    stored = json.loads(canonical_json(to_json({"t": counts}, snapshot="d", as_of=datetime(2026, 1, 1, tzinfo=UTC))))
    tables: Tables | None = tables_of(stored)
    assert tables is not None
    earlier = Earlier(names=("previous",), as_of=datetime(2026, 1, 1, tzinfo=UTC), tables=tables)
    counts, named = counted(folder / "now", now, _named([earlier], "t"))
    comparison = SnapshotComparison(words=earlier.words, as_of=earlier.as_of)
    checks = compare(earlier, comparison, "t", counts, named, rules or Drift())
    return comparison.tables["t"], checks


@pytest.mark.parametrize("shift", [0.0, 0.3, 2.0])
def test_distances_of_numbers_are_those_of_scipy_on_the_rows(tmp_path: Path, shift: float) -> None:
    rng = np.random.default_rng(1)
    before, now = np.round(rng.normal(size=4000), 1), np.round(rng.normal(shift, size=3000), 1)
    found, _ = compared(tmp_path, {"x": pa.array(before)}, {"x": pa.array(now)})
    drift = found["x"]
    # Few different values: each has a bin of its own.
    assert drift.kolmogorov_smirnov == pytest.approx(stats.ks_2samp(before, now).statistic, abs=1e-12)
    deciles = np.unique(np.quantile(before, np.arange(1, 10) / 10, method="inverted_cdf"))
    shares = [np.bincount(np.searchsorted(deciles, side), minlength=len(deciles) + 1) / len(side) for side in (before, now)]
    assert drift.jensen_shannon == pytest.approx(jensenshannon(*shares, base=2), abs=1e-9)
    p, q = (np.maximum(share, 1e-4) for share in shares)
    assert drift.psi == pytest.approx(((q - p) * np.log(q / p)).sum(), rel=1e-9)
    assert drift.psi_of_chance == pytest.approx(stats.chi2.ppf(0.999, len(deciles)) * (1 / 4000 + 1 / 3000), rel=0.01)


def test_kolmogorov_smirnov_of_many_numbers_is_near_that_of_the_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    before, now = rng.normal(size=50_000), rng.normal(0.2, 1.1, size=40_000)
    found, _ = compared(tmp_path, {"x": pa.array(before)}, {"x": pa.array(now)})
    assert found["x"].kolmogorov_smirnov == pytest.approx(stats.ks_2samp(before, now).statistic, abs=0.005)


def test_equal_rows_have_no_drift_and_are_one_passed_check(tmp_path: Path) -> None:
    columns = {"x": pa.array([1.5, None, 2.0, math.nan, math.inf] * 50), "word": pa.array(["a", "b", None, "c", "a"] * 50)}
    found, checks = compared(tmp_path, columns, columns)
    for drift in found.values():
        assert (drift.psi, drift.jensen_shannon) == (0, 0)
        assert drift.missing_before == drift.missing_now
    assert (found["x"].kolmogorov_smirnov, found["word"].new_categories) == (0, 0)
    assert [(check.status, check.column) for check in checks] == [("passed", "")]
    assert checks[0].observed.startswith("2 columns within their limits")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([3.0] * 600, [2.0] * 600),
        ([3.0] * 600, [4.0] * 600),
        ([3.0] * 600, [3.0, -8.0] * 300),
        ([1.0] * 594 + [0.0] * 6, [1.0, 0.0] * 300),
        ([0.0] * 594 + [1.0] * 6, [1.0, 0.0] * 300),
        ([None] * 600, [1.0, 2.0] * 300),
        ([1.0, 2.0] * 300, [None] * 600),
    ],
    ids=["constant falls", "constant rises", "half falls", "ones become rare", "zeros become rare", "appears", "disappears"],
)
def test_a_share_that_leaves_a_frequent_value_exceeds_the_limit_in_either_direction(tmp_path: Path, before: Any, now: Any) -> None:
    _, (check,) = compared(tmp_path, {"x": pa.array(before, pa.float64())}, {"x": pa.array(now, pa.float64())}, Drift(action="fail"))
    assert (check.code, check.column, check.status) == ("drift.exceeded", "x", "failed")


def test_missing_values_that_are_new_show_in_the_index(tmp_path: Path) -> None:
    found, checks = compared(tmp_path, {"x": pa.array([1.0, 2.0] * 500)}, {"x": pa.array([1.0, None] * 500)})
    assert (found["x"].missing_before, found["x"].missing_now) == (0, 0.5)
    assert [check.status for check in checks] == ["warned"]


def test_new_categories_are_counted_among_all_values_of_the_earlier_snapshot(tmp_path: Path) -> None:
    # More values than a profile's index looks at, each rare; ten of a hundred rows are new.
    before = {"word": pa.array([f"w{number:03}" for number in range(100)] * 4)}
    now = {"word": pa.array([f"w{number:03}" for number in range(90)] + [f"new{number}" for number in range(10)])}
    found, checks = compared(tmp_path, before, now)
    assert found["word"].new_categories == pytest.approx(0.1)
    assert [check.observed for check in checks if check.status == "warned"] == ["10.0% of the rows in new categories"]


def test_new_categories_are_not_judged_where_the_profile_has_not_all_values(tmp_path: Path) -> None:
    before = {"many": pa.array([f"w{number:04}" for number in range(1000)]), "long": pa.array(["x" * 300, "y"] * 500)}
    found, _ = compared(tmp_path, before, {"many": pa.array(["other"] * 1000), "long": pa.array(["y"] * 1000)})
    assert (found["many"].new_categories, found["long"].new_categories) == (None, None)


def test_few_rows_without_drift_are_below_the_limit(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        before, now = ({"x": pa.array(rng.normal(size=200))} for _ in range(2))
        found, checks = compared(folder, before, now)
        assert found["x"].psi_of_chance > 0.25
        assert checks[0].status == "passed", found


def test_limits_of_a_column_replace_those_of_the_section(tmp_path: Path) -> None:
    before = {name: pa.array([0.0, 1.0] * 500) for name in ("a", "b", "c", "d")}
    now = {name: pa.array([1.0, 2.0] * 500) for name in before}
    columns: Any = {"a": {"action": "fail"}, "b": {"action": "off"}, "c": {"psi": 100}, "d": {"psi": 100, "kolmogorov_smirnov": 0.4}}
    _, checks = compared(tmp_path, before, now, Drift(columns=columns))
    found = {check.column: (check.status, check.observed.split(" ")[0], check.code) for check in checks if check.column}
    assert found == {"a": ("failed", "PSI", "drift.exceeded"), "d": ("warned", "Kolmogorov-Smirnov", "drift.exceeded")}
    assert [check.observed.split(",")[0] for check in checks if not check.column] == ["1 columns within their limits"]


@pytest.mark.parametrize(
    ("key", "column", "words"),
    [
        ("psi", "number", "PSI "),
        ("jensen_shannon", "number", "Jensen-Shannon distance 0."),
        ("jensen_shannon", "word", "Jensen-Shannon distance 0."),
        ("kolmogorov_smirnov", "number", "Kolmogorov-Smirnov 0.3"),
        ("new_categories", "word", "30.0% of the rows in new categories"),
    ],
)
@pytest.mark.parametrize("of_the_column", [False, True], ids=["section", "column"])
def test_each_limit_judges_alone_and_that_of_a_column_comes_first(
    tmp_path: Path, key: str, column: str, words: str, *, of_the_column: bool
) -> None:
    before = {"number": pa.array([0.0, 1.0] * 500), "word": pa.array(["a", "b"] * 500)}
    now = {"number": pa.array([0.0] * 200 + [1.0] * 500 + [2.0] * 300), "word": pa.array(["a"] * 200 + ["b"] * 500 + ["c"] * 300)}
    nothing: Any = {"psi": None, "new_categories": None}
    low, high = 0.01, 100 if key == "psi" else 1

    def exceeded(limit: float) -> list[tuple[str, bool]]:
        # The section's limit would say the opposite.
        own = {key: high if limit == low else low, "columns": {column: {key: limit}}} if of_the_column else {key: limit}
        folder = tmp_path / str(limit)
        folder.mkdir()
        _, checks = compared(folder, before, now, Drift(**{**nothing, **own}))
        return [(check.status, check.observed.startswith(words)) for check in checks if check.column == column]

    assert exceeded(low) == [("warned", True)]
    assert exceeded(high) == []


def test_a_column_of_another_kind_or_without_rows_is_not_compared(tmp_path: Path) -> None:
    found, checks = compared(
        tmp_path, {"x": pa.array([1.0, 2.0]), "y": pa.array([1.0, 2.0])}, {"x": pa.array(["a", "b"]), "z": pa.array([1, 2])}
    )
    assert (found, checks) == ({}, [])


def test_a_profile_of_a_later_format_is_not_read() -> None:
    assert tables_of({"format": 2, "tables": None}) is None
