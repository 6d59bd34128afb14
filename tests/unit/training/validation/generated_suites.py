"""Generated tables with every kind of value that makes a comparison hard, and suites whose limits are near what the tables hold."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from training.sql.arrow_types import ARROW_TYPES

Expectation = dict[str, Any]
WORDS: Final = ("a", "b", "ab", "ba", "", " ", "É", "ß", "x1", "y22", "zzz", "2026-01-31", "{}", "null", "nan", "NaN", "a'b", "\n", "0")
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
TYPES: Final = tuple(ARROW_TYPES)


def table(rng: np.random.Generator) -> tuple[pa.Table, dict[str, str]]:
    """Return rows, 1 to 60, and the type of each column; the first is `id`."""
    num_rows = int(rng.integers(1, 60))
    kinds = {"id": "int64", **{f"c{number}": str(kind) for number, kind in enumerate(rng.choice(TYPES, int(rng.integers(2, 6))))}}
    columns = {name: _column(rng, kind, num_rows) for name, kind in kinds.items()}
    columns["id"] = pa.array(rng.permutation(num_rows) if rng.random() < 0.8 else rng.integers(0, num_rows, num_rows), pa.int64())
    return pa.table(columns), kinds


def _column(rng: np.random.Generator, kind: str, num_rows: int) -> pa.Array:
    null_share = float(rng.choice([0, 0, 0.2, 1])) if rng.random() < 0.9 else 0.9
    return pa.array([None if rng.random() < null_share else _value(rng, kind) for _ in range(num_rows)], ARROW_TYPES[kind])


def _value(rng: np.random.Generator, kind: str) -> Any:
    if kind.startswith("int"):
        bits = int(kind[3:])
        if rng.random() < 0.1:
            return int(rng.choice([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0]))
        return int(rng.integers(-5, 6))
    if kind in ("float", "double"):
        special = (0.0, -0.0, 0.1, 1e-30, 1e30, math.nan, math.inf, -math.inf)
        return float(rng.choice(special)) if rng.random() < 0.15 else round(float(rng.normal(0, 3)), int(rng.integers(0, 4)))
    if kind == "boolean":
        return bool(rng.random() < 0.5)
    if kind == "string":
        return str(rng.choice(WORDS))
    day = START + timedelta(days=int(rng.integers(0, 5)))
    return day.date() if kind == "date" else day + timedelta(seconds=int(rng.integers(0, 3)))


def expectations(rng: np.random.Generator, rows: pa.Table, kinds: dict[str, str]) -> list[Expectation]:
    """Return some expectations of each kind of question."""
    found = [_table_expectation(rng, rows)]
    for name, kind in kinds.items():
        makers = [_nulls, _values, _unique, _distinct]
        makers += [_between, _aggregate, _aggregate, _quantiles] if kind.startswith(("int", "float", "double")) else [_text] * 2
        found += [maker(rng, rows, name) for maker in rng.choice(np.array(makers, dtype=object), 3)]
    found += [_of_several(rng, list(kinds)) for _ in range(2)]
    for expectation in found:
        if rng.random() < 0.3 and expectation["type"].startswith("expect_column_values"):
            expectation["kwargs"]["mostly"] = float(rng.choice([0, 0.5, 0.8, 0.9, 1]))
        if rng.random() < 0.08 and expectation["type"].startswith("expect_column_values"):
            expectation["kwargs"] |= {"row_condition": f"id > {int(rng.integers(0, 10))}", "condition_parser": "pandas"}
        expectation["severity"] = str(rng.choice(["critical", "warning", "info"]))
    return found


def _expectation(kind: str, **arguments: Any) -> Expectation:
    return {"type": f"expect_{kind}", "kwargs": arguments}


def _limits(rng: np.random.Generator, values: list[Any]) -> dict[str, Any]:
    """Return `min_value` and `max_value`, or one of them, near some values."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)] or [0.0]
    low, high = sorted(float(rng.choice(known)) + float(rng.choice([0, 0, 0.5, -0.5, 1e-9])) for _ in range(2))
    chosen = {"min_value": low, "max_value": high}
    if rng.random() < 0.3:
        chosen.pop(str(rng.choice(list(chosen))))
    return chosen


def _table_expectation(rng: np.random.Generator, rows: pa.Table) -> Expectation:
    count = rows.num_rows + int(rng.integers(-1, 2))
    return [
        _expectation("table_row_count_to_equal", value=count),
        _expectation("table_row_count_to_be_between", min_value=count),
        _expectation("table_columns_to_match_ordered_list", column_list=[*rows.column_names][: int(rng.integers(1, 9))]),
        _expectation("table_columns_to_match_set", column_set=[*rows.column_names, "id"]),
        _expectation("table_column_count_to_equal", value=rows.num_columns),
        _expectation("column_to_exist", column=str(rng.choice([*rows.column_names, "gone"]))),
        _expectation("column_values_to_not_be_null", column="gone"),
    ][int(rng.integers(0, 7))]


def _nulls(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    del rows
    share = float(rng.random())
    return [
        _expectation("column_values_to_not_be_null", column=name),
        _expectation("column_values_to_be_null", column=name),
        _expectation("column_proportion_of_non_null_values_to_be_between", column=name, min_value=share),
    ][int(rng.integers(0, 3))]


def _some(rng: np.random.Generator, rows: pa.Table, name: str) -> list[Any]:
    known = [value for value in rows.column(name).drop_null().unique().to_pylist() if value == value]
    return [known[place] for place in rng.permutation(len(known))[: int(rng.integers(0, len(known) + 1))]] or [1]


def _values(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    kind = str(rng.choice(["values_to_be_in_set", "values_to_not_be_in_set"]))
    return _expectation(f"column_{kind}", column=name, value_set=_some(rng, rows, name))


def _unique(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    del rows
    limit = int(rng.integers(0, 20))
    return [
        _expectation("column_values_to_be_unique", column=name),
        _expectation("column_unique_value_count_to_be_between", column=name, max_value=limit),
        _expectation("column_proportion_of_unique_values_to_be_between", column=name, min_value=float(rng.random())),
    ][int(rng.integers(0, 3))]


def _distinct(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    kinds = (
        "distinct_values_to_be_in_set",
        "distinct_values_to_contain_set",
        "distinct_values_to_equal_set",
        "most_common_value_to_be_in_set",
    )
    kind = str(rng.choice(kinds))
    return _expectation(f"column_{kind}", column=name, value_set=_some(rng, rows, name))


def _between(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    strict = {key: bool(rng.random() < 0.3) for key in ("strict_min", "strict_max")}
    return _expectation("column_values_to_be_between", column=name, **_limits(rng, rows.column(name).to_pylist()), **strict)


def _aggregate(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    whole = pa.types.is_integer(rows.column(name).type)
    is_large = whole and any(abs(value) > 2**53 for value in rows.column(name).drop_null().to_pylist())
    # Sums of floats that are not exact depend on the order of adding: of Great Expectations', not of ours.
    kind = str(rng.choice(["max", "min", *([] if is_large else ["mean", "sum", "stdev", "median"])]))
    # Far from the last digit: the order of adding decides that one.
    limits = {key: value + 0.0137 for key, value in _limits(rng, rows.column(name).to_pylist()).items()}
    return _expectation(f"column_{kind}_to_be_between", column=name, **limits)


def _quantiles(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    shares = sorted(round(float(share), 2) for share in rng.random(2))
    limits = _limits(rng, rows.column(name).to_pylist())
    ranges = [[limits.get("min_value"), limits.get("max_value")]] * 2
    method = rng.choice(np.array([False, "linear", "lower", "higher", "midpoint", "nearest"], dtype=object))
    quantiles = {"quantiles": shares, "value_ranges": ranges}
    return _expectation("column_quantile_values_to_be_between", column=name, quantile_ranges=quantiles, allow_relative_error=method)


def _text(rng: np.random.Generator, rows: pa.Table, name: str) -> Expectation:
    pattern = str(rng.choice(["^[a-z]", "b", "^$", r"\d", "a|É", "(?i)A", r"^\w+$", "^[^a]"]))
    return [
        _expectation("column_values_to_match_regex", column=name, regex=pattern),
        _expectation("column_values_to_not_match_regex", column=name, regex=pattern),
        _expectation("column_values_to_match_regex_list", column=name, regex_list=[pattern, "z"], match_on=str(rng.choice(["any", "all"]))),
        _expectation("column_value_lengths_to_be_between", column=name, min_value=1, max_value=2),
        _expectation("column_value_lengths_to_equal", column=name, value=1),
        _expectation("column_values_to_match_strftime_format", column=name, strftime_format="%Y-%m-%d"),
        _expectation("column_values_to_be_json_parseable", column=name),
        _expectation("column_values_to_be_dateutil_parseable", column=name),
        _expectation("column_values_to_be_of_type", column=name, type_="str"),
        _expectation("column_type_to_be", column=name, type_="str"),
        _expectation("column_values_to_be_between", column=name, min_value="2026-01-02", max_value="2026-01-04"),
        _expectation("column_values_to_be_increasing", column=name),
    ][int(rng.integers(0, 12))]


def _of_several(rng: np.random.Generator, names: list[str]) -> Expectation:
    first, second = (str(name) for name in rng.choice(names, 2, replace=False))
    several = sorted({first, second, "id"} if rng.random() < 0.5 else {first, second})
    both = str(rng.choice(["both_values_are_missing", "either_value_is_missing", "neither"]))
    some = str(rng.choice(["all_values_are_missing", "any_value_is_missing", "never"]))
    return [
        _expectation("column_pair_values_a_to_be_greater_than_b", column_A=first, column_B=second, or_equal=True, ignore_row_if=both),
        _expectation("column_pair_values_to_be_equal", column_A=first, column_B=second, ignore_row_if=both),
        _expectation("compound_columns_to_be_unique", column_list=several, ignore_row_if=some),
        _expectation("multicolumn_sum_to_equal", column_list=several, sum_total=3, ignore_row_if=some),
        _expectation("select_column_values_to_be_unique_within_record", column_list=several, ignore_row_if=some),
    ][int(rng.integers(0, 5))]
