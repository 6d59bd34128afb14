"""Expectations judged by Great Expectations on some rows at a time: counts of single rows add up to those of all rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

ADDED: Final = (".unexpected_count", ".filtered_row_count", "table.row_count")
EXAMPLES: Final = ".unexpected_values"
MAX_EXAMPLES: Final = 20
SAME: Final = ("table.columns", "table.column_count", "table.column_types")
"""Metrics that are the same for all batches."""


class NotAdditiveError(Exception):
    """An expectation asks for a metric of a batch that does not add up."""


def judge_batches(expectations: list[Any], batches: Iterable[pd.DataFrame]) -> list[Any]:
    """Return Great Expectations' result for each expectation.

    Args:
        batches: all rows, some at a time, with the types of the whole; at least one. Only one if an expectation has a type that is not in
            `supported_expectations.ADDITIVE`.

    Raises:
        NotAdditiveError: there are several batches, and an expectation asks for more than counts of its rows.
    """
    sums = [_Sums(expectation) for expectation in expectations]
    for batch in batches:
        engine = _engine(batch)
        for sum_ in sums:
            sum_.add(engine)
    return [sum_.result() for sum_ in sums]


def result_of_metrics(expectation: Any, metrics: dict[Any, Any], engine: Any) -> Any:
    """Return what an expectation says of metrics, by their ids; an error becomes its exception, as in a validation."""
    try:
        result = expectation.metrics_validate(metrics=metrics, runtime_configuration=_runtime(), execution_engine=engine)
    except Exception as err:  # as Great Expectations does: any error of an expectation is its result
        return _not_evaluated(expectation, str(err))
    result.expectation_config = expectation.configuration
    return result


def metrics_of(expectation: Any, engine: Any) -> list[Any]:
    """Return the `MetricConfiguration`s that an expectation asks for."""
    found = expectation.get_validation_dependencies(execution_engine=engine, runtime_configuration=_runtime())
    return list(found.get_metric_configurations())


class _Sums:
    """The metrics of one expectation over the batches so far."""

    def __init__(self, expectation: Any) -> None:
        self._expectation = expectation
        self._metrics: dict[Any, Any] = {}
        self._engine: Any = None
        self._broken = ""

    def add(self, engine: Any) -> None:
        if self._broken:
            return
        self._engine = engine
        try:
            self._add(engine)
        except NotAdditiveError:
            raise
        except Exception as err:  # as Great Expectations does: any error of an expectation is its result
            self._broken = str(err) or type(err).__name__

    def result(self) -> Any:
        if self._broken:
            return _not_evaluated(self._expectation, self._broken)
        return result_of_metrics(self._expectation, self._metrics, self._engine)

    def _add(self, engine: Any) -> None:
        from great_expectations.validator.metrics_calculator import MetricsCalculator

        wanted = metrics_of(self._expectation, engine)
        calculator = MetricsCalculator(engine)
        found, broken = calculator.resolve_validation_graph(calculator.build_metric_dependency_graph(wanted, _runtime()), _runtime())
        if broken:
            self._broken = str(next(iter(broken.values()))["exception_info"]["exception_message"])
            return
        for metric in wanted:
            self._metrics[metric.id] = _merged(metric.metric_name, self._metrics.get(metric.id), found[metric.id])


def _not_evaluated(expectation: Any, message: str) -> Any:
    from great_expectations.core import ExpectationValidationResult

    info = {"raised_exception": True, "exception_message": message}
    return ExpectationValidationResult(success=False, exception_info=info, expectation_config=expectation.configuration)


def _merged(name: str, before: Any, now: Any) -> Any:
    if name.endswith(ADDED):
        return (before or 0) + int(now or 0)
    if name.endswith(EXAMPLES):
        return [*(before or []), *(now or [])][:MAX_EXAMPLES]
    if before is None or name in SAME:
        return now
    raise NotAdditiveError(name)


def _engine(batch: pd.DataFrame) -> Any:
    from great_expectations.execution_engine import PandasExecutionEngine

    engine = PandasExecutionEngine()
    # One id for all: a metric's id holds it.
    engine.load_batch_data("rows", batch)
    return engine


def _runtime() -> dict[str, Any]:
    """Return a new one each time: Great Expectations changes it."""
    return {"result_format": {"result_format": "BASIC", "partial_unexpected_count": MAX_EXAMPLES}}
