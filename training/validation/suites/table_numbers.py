"""The numbers that Great Expectations' expectations judge, of all rows of a table: equal to those of its own pandas.

An expectation asks for metrics by name (`column.mean`, `column_values.between.unexpected_count`), and judges them. What the profile of
the table has, or one query of DuckDB finds, is answered here; `Unknown` is raised for the rest. Conditions on single values are evaluated
by Great Expectations itself, on the different values of the column, each counted as often as it stands there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from training.data.snapshot.parquet_parts import FILE_COLUMN, ROW_COLUMN
from training.sql.expressions import quoted
from training.validation.checks.key_order import has_unique_order
from training.validation.columns.numbers import NumberSide
from training.validation.columns.statistics import ColumnProfile
from training.validation.snapshot_view import TableView
from training.validation.suites.batches import EXAMPLES, MAX_EXAMPLES

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
QUANTILE_METHODS: Final = ("linear", "lower", "higher", "midpoint", "nearest")
INTEGERS: Final = ("int8", "int16", "int32", "int64")
UNEXPECTED: Final = ".unexpected_count"
MISSING: Final = {
    "all_values_are_missing": " OR ",
    "any_value_is_missing": " AND ",
    "never": None,
}
"""`ignore_row_if`: how the conditions that a column has a value are put together."""


class Unknown(Exception):
    """No query here finds this."""


@dataclass
class ProfileMetrics:
    """The metrics of a table."""

    view: TableView
    profiles: Mapping[str, ColumnProfile]

    def value(self, metric: Any) -> Any:
        """Return the value of a `MetricConfiguration`.

        Raises:
            Unknown: no query here finds it.
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
        if self.profiles[column].numbers is None:
            return self._by_values(metric, column)
        if name in _AGGREGATES:
            sql = (_AGGREGATES if self.view.contract.types[column] in INTEGERS else _OF_FLOATS)[name]
            found = self._value(sql.format(self._comparable(column)))
            return math.nan if found is None else found
        return _OF_NUMBERS[name](self, column, arguments) if name in _OF_NUMBERS else self._by_values(metric, column)

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
        """Return some rows with the types that the frame of all rows would have.

        Numbers are widened to 64 bits: Great Expectations compares narrower ones value by value in Python.
        """
        frame: pd.DataFrame = rows.to_pandas()
        wanted: dict[str, str] = {}
        for name in frame.columns:
            kind = self.view.contract.types[name]
            if kind in INTEGERS:
                wanted[name] = "float64" if name in self.with_nulls else "int64"
            elif kind in ("float", "double"):
                wanted[name] = "float64"
            elif kind == "boolean" and name in self.with_nulls:
                wanted[name] = "object"
        return frame.astype(wanted)

    def num_distinct(self, column: str) -> int:
        """Return the number of different values that are not null."""
        values = self.profiles[column].values
        return self._num_rows(f"SELECT 1 AS n FROM {{table}} {self._groups([column])}") if values is None else values.num_distinct  # noqa: S608

    def num_repeated(self, column: str) -> int:
        """Return the number of rows whose value stands in another row too; null is no value."""
        if has_unique_order(self.view, [column]):
            return 0
        return self._num_rows(f"SELECT count(*) AS n FROM {{table}} {self._groups([column])} HAVING count(*) > 1")  # noqa: S608

    def repeated(self, expectation: Any) -> list[Any]:
        """Return the first values, or pairs of column and value, that stand in several rows, by an expectation that there are none."""
        arguments = expectation.configuration.kwargs
        columns = [arguments["column"]] if "column" in arguments else list(arguments["column_list"])
        missing = " AND " if "column" in arguments else MISSING[arguments.get("ignore_row_if") or "all_values_are_missing"]
        # With a space, as no column of a table has one.
        names = {column: quoted(f"value {n}") for n, column in enumerate(columns)}
        same = " AND ".join(f"{self._comparable(column)} IS NOT DISTINCT FROM r.{name}" for column, name in names.items())
        values = ", ".join(f"{self._comparable(column)} AS {name}" for column, name in names.items())
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
        return f"{self._known(columns, missing)} GROUP BY {', '.join(map(self._comparable, columns))}"

    def _known(self, columns: list[str], missing: str | None) -> str:
        return "" if missing is None else f"WHERE {missing.join(f'({self._comparable(column)}) IS NOT NULL' for column in columns)}"

    def _comparable(self, column: str) -> str:
        """Return SQL of a column's values that are equal where pandas' are: NaN is null, -0.0 is 0.0, integers next to null are floats."""
        kind, name = self.view.contract.types[column], quoted(column)
        if kind in ("float", "double"):
            return f"CASE WHEN isnan({name}) THEN NULL ELSE CAST({name} AS DOUBLE) + 0 END"
        if kind in INTEGERS:
            return f"CAST({name} AS {'DOUBLE' if column in self.with_nulls else 'BIGINT'})"
        return name

    def _value(self, expression: str) -> Any:
        return self.view.rows(f"SELECT {expression} FROM {{table}}")[0][0]  # noqa: S608 - quoted column names

    def _num_rows(self, counts: str) -> int:
        """Return the sum of the column `n` of a query."""
        return int(self.view.rows(f"SELECT coalesce(sum(n), 0) FROM ({counts})")[0][0])  # noqa: S608

    def _compound(self, name: str, columns: list[str], ignore_row_if: str | None) -> int:
        if ignore_row_if not in MISSING or not set(columns) <= self.profiles.keys():
            raise Unknown
        if not name.endswith(UNEXPECTED):
            return self._num_rows(f"SELECT count(*) AS n FROM {{table}} {self._known(columns, MISSING[ignore_row_if])}")  # noqa: S608
        if has_unique_order(self.view, columns):
            return 0
        groups = self._groups(columns, missing=MISSING[ignore_row_if])
        return self._num_rows(f"SELECT count(*) AS n FROM {{table}} {groups} HAVING count(*) > 1")  # noqa: S608

    def _median(self, column: str) -> float:
        count, numbers = self._exact(column)
        low, high = self._at(column, numbers, (count - 1) // 2, count // 2) if count else (math.nan, math.nan)
        return float(low) if low == high else (float(low) + float(high)) / 2

    def _quantile(self, column: str, share: float, method: str | bool) -> float:
        count, numbers = self._exact(column)
        method = method or "nearest"
        if not count or not 0 <= share <= 1 or not isinstance(method, str) or method not in QUANTILE_METHODS:
            raise Unknown
        ranks, weight = _ranks(count, share, method)
        low, high = self._at(column, numbers, ranks[0], ranks[-1])
        return low if len(ranks) == 1 else _between(float(low), float(high), weight)

    def _exact(self, column: str) -> tuple[int, NumberSide]:
        """Return the number of values of a number column, and where they are.

        Raises:
            Unknown: float64 does not hold each of them.
        """
        numbers = self.profiles[column].numbers
        if numbers is None or not numbers.is_exact:
            raise Unknown
        return self.view.facts["rows"] - self.num_nulls(column), numbers.total

    def _at(self, column: str, numbers: NumberSide, first: int, last: int) -> tuple[float, float]:
        """Return the values of two ranks near each other, 0 being the least: sorted are the values of their bins of the histogram."""
        lows, ends = numbers.histogram.lows(), numbers.num_below + np.cumsum(numbers.histogram.counts)
        low, high = np.searchsorted(ends, [first, last], side="right").clip(max=max(0, len(ends) - 1))
        # Infinite values are beside the outer bins.
        start = f"value >= '{float(lows[low])!r}'::DOUBLE" if low else "value IS NOT NULL"
        stop = f"AND value < '{float(lows[high + 1])!r}'::DOUBLE" if high + 1 < len(lows) else ""
        values = f"SELECT {self._comparable(column)} AS value FROM {{table}}"  # noqa: S608
        limit = f"LIMIT {last - first + 1} OFFSET {first - (ends[low - 1] if low else 0)}"
        found = self.view.rows(f"FROM ({values}) WHERE {start} {stop} ORDER BY value {limit}")
        return found[0][0], found[-1][0]

    def _num_outside(self, column: str, arguments: Mapping[str, Any]) -> int:
        """Return the number of values that are not between `min_value` and `max_value`, compared as float64."""
        low, high = arguments.get("min_value"), arguments.get("max_value")
        if not all(bound is None or isinstance(bound, int | float) for bound in (low, high)) or (low is None and high is None):
            raise Unknown
        if low is not None and high is not None and low > high:
            raise Unknown
        value = f"CAST({self._comparable(column)} AS DOUBLE)"
        below = "false" if low is None else f"{value} {'<=' if arguments.get('strict_min') else '<'} '{float(low)!r}'::DOUBLE"
        above = "false" if high is None else f"{value} {'>=' if arguments.get('strict_max') else '>'} '{float(high)!r}'::DOUBLE"
        return int(self._value(f"count(*) FILTER ({below} OR {above})"))

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
        if not name.startswith("column_values.") or not name.endswith(UNEXPECTED):
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
        found = self.profiles[column].numbers or self.profiles[column].values
        if found is None or not found.has_few_values:
            raise Unknown
        query = f'SELECT {self._comparable(column)} AS value, count(*) AS "rows" FROM {{table}} GROUP BY 1 ORDER BY 1 NULLS LAST'  # noqa: S608
        values: pa.Table = self.view.connection.sql(self.view.sql(query)).to_arrow_table()
        return values


def _ranks(count: int, share: float, method: str) -> tuple[list[int], float]:
    """Return the ranks, one or two, that a quantile of `count` values lies at, and the second's weight, as `numpy.quantile` has them."""
    place = (count - 1) * share
    if method == "nearest":
        return [int(np.around(place))], 0.0
    low, high = int(np.floor(place)), min(int(np.floor(place)) + 1, count - 1)
    if method == "lower":
        return [low], 0.0
    if method == "higher":
        return [int(np.ceil(place))], 0.0
    if method == "midpoint":
        return [low, high], 0.0 if place == low else 0.5
    return [low, high], place - low


def _between(low: float, high: float, weight: float) -> float:
    """Return the number between two, as `numpy.quantile` rounds it, or the infinite one of them, where numpy has NaN; NaN between both."""
    if not weight:
        return low
    if math.isinf(low) or math.isinf(high):
        return low + high
    difference = high - low
    return high - difference * (1 - weight) if weight >= 0.5 else low + difference * weight


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


def _unique_share(metrics: ProfileMetrics, column: str) -> float:
    rows, nulls = metrics.view.facts["rows"], metrics.num_nulls(column)
    return metrics.num_distinct(column) / (rows - nulls) if rows > nulls else 0


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
_AGGREGATES: Final = {
    "column.max": "max({})",
    "column.mean": "avg({})",
    "column.min": "min({})",
    "column.standard_deviation": "stddev_samp({})",
    "column.sum": "coalesce(sum({}), 0)",
}
"""SQL of the metrics of a number column."""
_OF_FLOATS: Final = _AGGREGATES | {
    "column.mean": "coalesce(nullif(favg({0}), 'nan'), avg({0}))",
    "column.sum": "coalesce(nullif(fsum({0}), 'nan'), sum({0}), 0)",
}
"""The same by Kahan's sums: the mean of 0.1 and 0.1 and … is 0.1. Of infinities they are NaN."""
_OF_NUMBERS: Final[Mapping[str, Callable[[ProfileMetrics, str, Mapping[str, Any]], Any]]] = {
    "column.median": lambda metrics, column, _: metrics._median(column),
    "column.quantile_values": lambda metrics, column, arguments: [
        metrics._quantile(column, share, arguments["allow_relative_error"]) for share in arguments["quantiles"]
    ],
    f"column_values.between{UNEXPECTED}": lambda metrics, column, arguments: metrics._num_outside(column, arguments),
}
