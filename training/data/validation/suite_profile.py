"""The numbers that Great Expectations' expectations judge, out of the profile of a table: equal to those of its own pandas on all rows.

An expectation asks for metrics by name (`column.mean`, `column_values.between.unexpected_count`), and judges them. What a profile can
say is answered here; `Unknown` is raised for the rest. Conditions on single values are evaluated by Great Expectations itself, on the
different values of the column, each counted as often as it stands there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from training.data.validation.column_statistics import ColumnProfile
from training.data.validation.number_columns import LARGEST_EXACT, NumberColumn, NumberSide
from training.data.validation.order_statistics import between, quantile, values_at
from training.data.validation.snapshot_view import FILE_COLUMN, ROW_COLUMN, TableView
from training.data.validation.suite_batches import EXAMPLES, MAX_EXAMPLES
from training.data.validation.suite_frames import frame_of
from training.sql.expressions import quoted

if TYPE_CHECKING:
    import pandas as pd

OF_THE_VALUES: Final = frozenset(
    {
        "column.distinct_values",
        "column.distinct_values.count",
        "column.distinct_values.missing_from_column",
        "column.distinct_values.missing_from_column.count",
        "column.distinct_values.not_in_set",
        "column.distinct_values.not_in_set.count",
        "column.max",
        "column.min",
    }
)
"""Metrics that do not change if each value stands once."""
UNEXPECTED: Final = ".unexpected_count"
MISSING: Final = {
    "all_values_are_missing": " OR ",
    "any_value_is_missing": " AND ",
    "never": None,
}
"""`ignore_row_if`: how the conditions that a column has a value are put together."""


class Unknown(Exception):
    """The profile does not say this."""


@dataclass
class ProfileMetrics:
    """The metrics of a table."""

    view: TableView
    profiles: Mapping[str, ColumnProfile]

    def value(self, metric: Any) -> Any:
        """Return the value of a `MetricConfiguration`.

        Raises:
            Unknown: the profile does not say it.
        """
        name, domain, arguments = metric.metric_name, metric.metric_domain_kwargs, metric.metric_value_kwargs
        if domain.get("row_condition"):
            raise Unknown
        if name in _OF_THE_TABLE:
            return _OF_THE_TABLE[name](self.view)
        if name.endswith(EXAMPLES):
            return []
        if name.startswith("compound_columns.unique."):
            return self._compound(name, domain["column_list"], domain.get("ignore_row_if"))
        column = domain.get("column")
        if column not in self.profiles:
            raise Unknown
        if name in _GENERAL:
            return _GENERAL[name](self, column)
        numbers = self.profiles[column].numbers
        if numbers is None or name not in _OF_NUMBERS:
            return self._by_values(metric, column)
        return _OF_NUMBERS[name](self, column, numbers, arguments)

    def num_nulls(self, column: str) -> int:
        return self.profiles[column].statistics["nulls"]

    @cached_property
    def with_nulls(self) -> frozenset[str]:
        """Columns with a null (NaN is none here)."""
        found = set()
        for name, profile in self.profiles.items():
            num_null = profile.numbers.num_null if profile.numbers else profile.statistics["nulls"]
            if num_null:
                found.add(name)
        return frozenset(found)

    def frame(self, rows: pa.Table) -> pd.DataFrame:
        return frame_of(rows, self.view.contract.types, self.with_nulls)

    def num_distinct(self, column: str) -> int:
        """Return the number of different values that are not null."""
        values = self.profiles[column].values
        if values is not None:
            return values.num_distinct
        return int(self.view.rows(f"SELECT count(*) FROM (SELECT 1 FROM {{table}} {self._groups([column])})")[0][0])  # noqa: S608

    def num_repeated(self, column: str) -> int:
        """Return the number of rows whose value stands in another row too; null is no value."""
        query = f"SELECT coalesce(sum(n), 0) FROM (SELECT count(*) AS n FROM {{table}} {self._groups([column])} HAVING count(*) > 1)"  # noqa: S608
        return int(self.view.rows(query)[0][0])

    def repeated(self, expectation: Any) -> list[Any]:
        """Return the first values, or pairs of column and value, that stand in several rows, by an expectation that there are none."""
        arguments = expectation.configuration.kwargs
        columns = [arguments["column"]] if "column" in arguments else list(arguments["column_list"])
        missing = " AND " if "column" in arguments else MISSING[arguments.get("ignore_row_if") or "all_values_are_missing"]
        same = " AND ".join(f"{self._comparable(column)} IS NOT DISTINCT FROM r.{quoted(f'v{n}')}" for n, column in enumerate(columns))
        values = ", ".join(f"{self._comparable(column)} AS {quoted(f'v{n}')}" for n, column in enumerate(columns))
        query = f"""
            WITH r AS (SELECT {values} FROM {{table}} {self._groups(columns, missing=missing)} HAVING count(*) > 1)
            SELECT {", ".join(quoted(column) for column in columns)} FROM {{table}} t SEMI JOIN r ON {same}
            ORDER BY {FILE_COLUMN}, {ROW_COLUMN} LIMIT {MAX_EXAMPLES}
        """  # noqa: S608 - quoted column names
        rows = self.frame(self.view.connection.sql(self.view.sql(query)).to_arrow_table())
        if "column" in arguments:
            return list(rows[columns[0]])
        return [dict(zip(columns, row, strict=True)) for row in rows.itertuples(index=False)]

    def _groups(self, columns: list[str], *, missing: str | None = " AND ") -> str:
        values = [self._comparable(column) for column in columns]
        where = "" if missing is None else f"WHERE {missing.join(f'({value}) IS NOT NULL' for value in values)}"
        return f"{where} GROUP BY {', '.join(values)}"

    def _comparable(self, column: str) -> str:
        """Return SQL of a column's values that are equal where pandas' are: NaN is null, -0.0 is 0.0, integers next to null are floats."""
        kind, name = self.view.contract.types[column], quoted(column)
        if kind in ("float", "double"):
            return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} + 0 END"
        return f"CAST({name} AS DOUBLE)" if kind == "int64" and column in self.with_nulls else name

    def _compound(self, name: str, columns: list[str], ignore_row_if: str | None) -> int:
        if ignore_row_if not in MISSING or not set(columns) <= self.profiles.keys():
            raise Unknown
        groups = self._groups(columns, missing=MISSING[ignore_row_if])
        having = "HAVING count(*) > 1" if name.endswith(UNEXPECTED) else ""
        return int(self.view.rows(f"SELECT coalesce(sum(n), 0) FROM (SELECT count(*) AS n FROM {{table}} {groups} {having})")[0][0])  # noqa: S608

    def _quantile(self, column: str, numbers: NumberColumn, share: float, method: str | bool) -> float:
        whole = numbers.total
        count = whole.num_values - whole.num_nan
        if not count or not numbers.is_exact:
            raise Unknown
        method = method or "nearest"
        if not isinstance(method, str) or method not in ("linear", "lower", "higher", "midpoint", "nearest"):
            raise Unknown
        ranks, weight = quantile(count, share, method)
        found = self._at(column, whole, ranks)
        if len(ranks) == 2:
            return between(found[0], found[1], weight)
        return int(found[0]) if numbers.is_integer and column not in self.with_nulls else found[0]

    def _at(self, column: str, whole: NumberSide, ranks: list[int]) -> list[float]:
        """Return the values of some ranks, infinite numbers among them."""
        finite = range(whole.num_below, whole.num_below + whole.moments.count)
        wanted = [rank - whole.num_below for rank in ranks if rank in finite]
        found = iter(values_at(self.view, column, list(dict.fromkeys(wanted)), whole.histogram))
        by_rank = {rank: next(found) for rank in dict.fromkeys(wanted)}
        ends = {rank: -math.inf if rank < finite.start else math.inf for rank in ranks if rank not in finite}
        return [ends[rank] if rank in ends else by_rank[rank - whole.num_below] for rank in ranks]

    def _by_values(self, metric: Any, column: str) -> Any:
        """Return a metric that follows from the different values of a column and how often each stands there."""
        from great_expectations.validator.metric_configuration import MetricConfiguration

        table = self._values_of(column)
        frame = self.frame(pa.table({column: table.column("value")}))
        rows = np.asarray(table.column("rows").to_pylist(), dtype=np.int64)
        name = metric.metric_name
        if name in OF_THE_VALUES:
            return _computed(frame, metric)
        if name == "column.most_common_value":
            known = frame[column].notna().to_numpy()
            most = rows[known].max(initial=0)
            return list(frame[column][known & (rows == most)].mode().values)
        if not name.startswith("column_values.") or not name.endswith(UNEXPECTED) or name not in ROW_WISE:
            raise Unknown
        condition = MetricConfiguration(
            metric_name=f"{name.removesuffix(UNEXPECTED)}.condition",
            metric_domain_kwargs=metric.metric_domain_kwargs,
            metric_value_kwargs={key: value for key, value in metric.metric_value_kwargs.items() if key != "result_format"},
        )
        unexpected = _computed(frame, condition)[0]
        return int(rows[unexpected.index[unexpected.to_numpy(dtype=bool)]].sum())

    def _values_of(self, column: str) -> pa.Table:
        """Return `value` and `rows` of each value, null among them."""
        profile = self.profiles[column]
        if profile.values is not None and profile.values.held is not None:
            return profile.values.held
        if profile.numbers is None:
            raise Unknown
        return _few_numbers(profile.numbers)


def _few_numbers(numbers: NumberColumn) -> pa.Table:
    """Return the different values of a number column whose histogram tells all of them apart."""
    whole = numbers.total
    if whole.histogram.shift or not numbers.is_exact:
        raise Unknown
    special = [(math.nan, whole.num_nan), (-math.inf, whole.num_below), (math.inf, whole.num_above)]
    present = [(value, count) for value, count in special if count]
    values: list[float | int | None] = [*whole.histogram.lows().tolist(), *(value for value, _ in present)]
    if numbers.is_integer:
        values = [None if value is None else int(value) for value in values]
    rows = [*whole.histogram.counts.tolist(), *(count for _, count in present)]
    if numbers.num_null:
        values, rows = [*values, None], [*rows, numbers.num_null]
    kind = pa.int64() if numbers.is_integer else pa.float64()
    return pa.table({"value": pa.array(values, kind), "rows": pa.array(rows, pa.int64())})


def _computed(frame: pd.DataFrame, metric: Any) -> Any:
    """Return a metric of a frame, as Great Expectations computes it."""
    from great_expectations.execution_engine import PandasExecutionEngine
    from great_expectations.validator.metrics_calculator import MetricsCalculator

    engine = PandasExecutionEngine()
    engine.load_batch_data("values", frame)
    calculator = MetricsCalculator(engine)
    graph = calculator.build_metric_dependency_graph([metric])
    found, broken = calculator.resolve_validation_graph(graph)
    if broken:
        raise Unknown  # The batches report it.
    return found[metric.id]


def _num_outside(numbers: NumberColumn, arguments: Mapping[str, Any]) -> int:
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if not all(bound is None or isinstance(bound, int | float) for bound in (low, high)) or (low is None and high is None):
        raise Unknown
    if low is not None and high is not None and low > high:
        raise Unknown
    below = 0 if low is None else numbers.num_less(float(low), or_equal=bool(arguments.get("strict_min")))
    whole = numbers.total
    above = 0
    if high is not None:
        above = whole.num_values - whole.num_nan - numbers.num_less(float(high), or_equal=not arguments.get("strict_max"))
    return below + above


def _extreme(metrics: ProfileMetrics, column: str, numbers: NumberColumn, *, largest: bool) -> float:
    whole = numbers.total
    finite = numbers.maximum if largest else numbers.minimum
    found = [-math.inf] * bool(whole.num_below) + [math.inf] * bool(whole.num_above) + ([] if finite is None else [finite])
    if not found:
        return math.nan
    value = max(found) if largest else min(found)
    return float(value) if column in metrics.with_nulls else value


def _special(whole: NumberSide) -> float | None:
    """Return the sum of the infinite numbers of a column, None where there are none."""
    if whole.num_above and whole.num_below:
        return math.nan
    return math.inf if whole.num_above else -math.inf if whole.num_below else None


def _mean(numbers: NumberColumn) -> float:
    whole = numbers.total
    special = _special(whole)
    return whole.moments.mean if special is None else special


def _sum(metrics: ProfileMetrics, column: str, numbers: NumberColumn) -> float:
    whole = numbers.total
    special = _special(whole)
    if special is not None:
        return special
    found = whole.moments.sum
    if not isinstance(found, int):
        return found.value
    if abs(found) > LARGEST_EXACT:
        raise Unknown
    return float(found) if column in metrics.with_nulls else found


def _deviation(numbers: NumberColumn) -> float:
    whole = numbers.total
    count = whole.moments.count
    if _special(whole) is not None or count < 2:
        return math.nan
    return whole.moments.deviation * math.sqrt(count / (count - 1))


def _median(metrics: ProfileMetrics, column: str, numbers: NumberColumn) -> float:
    whole = numbers.total
    count = whole.num_values - whole.num_nan
    if not count:
        return math.nan
    if not numbers.is_exact:
        raise Unknown
    low, high = metrics._at(column, whole, [(count - 1) // 2, count // 2])
    return low if low == high else (low + high) / 2


def _unique_share(metrics: ProfileMetrics, column: str) -> float:
    rows, nulls = metrics.view.facts["rows"], metrics.num_nulls(column)
    return metrics.num_distinct(column) / (rows - nulls) if rows > nulls else 0


ROW_WISE: Final = frozenset(
    f"column_values.{name}{UNEXPECTED}"
    for name in (
        "between",
        "dateutil_parseable",
        "in_set",
        "json_parseable",
        "match_json_schema",
        "match_regex",
        "match_regex_list",
        "match_strftime_format",
        "not_in_set",
        "not_match_regex",
        "not_match_regex_list",
        "value_length.between",
        "value_length.equals",
    )
)
"""Conditions on one value."""
_OF_THE_TABLE: Final[Mapping[str, Callable[[TableView], Any]]] = {
    "table.row_count": lambda view: view.facts["rows"],
    "table.columns": lambda view: view.sound_columns(),
    "table.column_count": lambda view: len(view.sound_columns()),
}
_GENERAL: Final[Mapping[str, Callable[[ProfileMetrics, str], Any]]] = {
    f"column_values.nonnull{UNEXPECTED}": ProfileMetrics.num_nulls,
    f"column_values.null{UNEXPECTED}": lambda metrics, column: metrics.view.facts["rows"] - metrics.num_nulls(column),
    f"column_values.unique{UNEXPECTED}": ProfileMetrics.num_repeated,
    "column.distinct_values.count": ProfileMetrics.num_distinct,
    "column.unique_proportion": _unique_share,
    "column.non_null_proportion": lambda metrics, column: (
        (metrics.view.facts["rows"] - metrics.num_nulls(column)) / metrics.view.facts["rows"]
    ),
}
_OF_NUMBERS: Final[Mapping[str, Callable[[ProfileMetrics, str, NumberColumn, Mapping[str, Any]], Any]]] = {
    "column.max": lambda metrics, column, numbers, _: _extreme(metrics, column, numbers, largest=True),
    "column.min": lambda metrics, column, numbers, _: _extreme(metrics, column, numbers, largest=False),
    "column.mean": lambda metrics, column, numbers, _: _mean(numbers),
    "column.sum": lambda metrics, column, numbers, _: _sum(metrics, column, numbers),
    "column.standard_deviation": lambda metrics, column, numbers, _: _deviation(numbers),
    "column.median": lambda metrics, column, numbers, _: _median(metrics, column, numbers),
    "column.quantile_values": lambda metrics, column, numbers, arguments: [
        metrics._quantile(column, numbers, share, arguments["allow_relative_error"]) for share in arguments["quantiles"]
    ],
    f"column_values.between{UNEXPECTED}": lambda metrics, column, numbers, arguments: _num_outside(numbers, arguments),
}
