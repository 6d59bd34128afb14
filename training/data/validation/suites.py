"""Great Expectations suites of the repository, run on the rows themselves: all rows, never a sample, a few columns at a time.

The validator is used below `ValidationDefinition.run`: that one stores its result, and cannot store one of an expectation on
quantiles (numpy's booleans are not JSON); and `Batch.validate` hashes the whole frame twice. Numbers are widened to 64 bits
first: Great Expectations compares narrower ones value by value in Python.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from training.contracts import JsonObject
from training.data.validation.results import CheckResult, Status
from training.errors import Problem, SpecError, shown
from training.format import figure
from training.installation import EXPECTATIONS
from training.runtime.lazy_imports import lean_imports

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

CHECKOUT: Final = Path(__file__).resolve().parent.parent.parent.parent
CODE: Final = "expectation.failed"
BLOCKING_SEVERITIES: Final = frozenset({"critical", "error"})
COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list")
MAX_VALUES_SHOWN: Final = 3
DEFERRED: Final = ("altair", "scipy.spatial", "scipy.stats")
"""Great Expectations needs them for distributions and for the charts of its own pages."""
ABSENT: Final = ("boto3", "botocore", "cryptography", "google.cloud", "psycopg2", "sqlalchemy")
"""What it can do without: it judges data frames here, no databases and clouds."""
SHIPPED_EXPECTATIONS: Final = "great_expectations.expectations.core."
WITHOUT_VALUES: Final = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
    }
)
"""Types that read the names of columns or the number of rows, and no value; unless they have a row condition."""


def suites_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `NIGHTSHIFT_EXPECTATIONS`, by default expectations/ of the checkout."""
    return Path(EXPECTATIONS.text(environ) or CHECKOUT / "expectations")


class Expectation(TypedDict):
    """An entry of a suite."""

    type: str
    kwargs: JsonObject
    meta: NotRequired[JsonObject | None]


class Suite(TypedDict):
    """A file of the folder of suites."""

    expectations: list[Expectation]


def load_suite(name: str, folder: Path | None = None) -> Suite:
    """Return the JSON of `<folder>/<name>.json`.

    Raises:
        SpecError: `suite.missing`, or `suite.invalid`: not JSON, or no expectations in it.
    """
    path = (folder or suites_folder()) / f"{name}.json"
    try:
        suite: Suite = json.loads(path.read_bytes())
    except FileNotFoundError as err:
        raise _refused("suite.missing", name, "there is no such file in the folder of suites", "write it, or correct `suite`") from err
    except ValueError as err:
        raise _refused("suite.invalid", name, f"it is not JSON: {err}", "correct the file") from err
    if not isinstance(suite, dict) or not suite.get("expectations"):
        raise _refused("suite.invalid", name, "it holds no expectations", "a suite that checks nothing would always pass")
    return suite


def run_suite(suite: Suite, frame: pd.DataFrame, *, name: str, table: str) -> list[CheckResult]:
    """Judge all rows of `frame` by a suite; return one result per expectation, in the suite's order.

    Raises:
        SpecError: `suite.invalid`, as `SuiteJudge`.
    """
    judge = SuiteJudge(suite, name=name, table=table, columns=list(frame.columns))
    judge.judge_frame(frame)
    return judge.results(len(frame), lambda columns: frame[columns])


class SuiteJudge:
    """Judges a table by a suite, a few columns at a time: each expectation once all that it reads is there.

    An expectation that could not be evaluated has failed, at every severity. One that was evaluated and not met has failed
    where its severity is critical (the default), and is a warning else.

    Raises:
        SpecError: `suite.invalid`, Great Expectations does not know an expectation, or refuses its arguments.
    """

    def __init__(self, suite: Suite, *, name: str, table: str, columns: Sequence[str]) -> None:
        with lean_imports(deferred=DEFERRED, absent=ABSENT):
            # A second of CPU even so, which a pipeline without suites does not pay.
            import great_expectations as gx
            from great_expectations.data_context.types.base import ProgressBarsConfig

        self._given = suite["expectations"]
        self._name, self._table, self._columns = name, table, list(columns)
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("snapshot").add_dataframe_asset(table)
        self._definition = asset.add_batch_definition_whole_dataframe("rows")
        self._results: dict[int, CheckResult] = {}
        prepared = self._prepared([*enumerate(self._given)]).expectations
        reads = {expectation.meta["position"]: _reads(expectation, self._columns) for expectation in prepared}
        self._without_values = [number for number in sorted(reads) if not reads[number]]
        self._waiting = {number: columns for number, columns in sorted(reads.items()) if columns}

    @property
    def compared(self) -> frozenset[str]:
        """Columns that some expectation reads together with others: they must be in memory together."""
        return frozenset(column for columns in self._waiting.values() if len(columns) > 1 for column in columns)

    def judge(self, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Judge what reads none but these columns, and has not been judged."""
        ready = [number for number, reads in self._waiting.items() if reads <= columns.keys()]
        if read := {column for number in ready for column in self._waiting[number]}:
            self._run(ready, pa.table({name: values for name, values in columns.items() if name in read}).to_pandas())

    def judge_frame(self, frame: pd.DataFrame) -> None:
        """Judge all that reads a value, by a frame with all columns."""
        self._run(list(self._waiting), frame)

    def results(self, num_rows: int, frame_of: Callable[[list[str]], pd.DataFrame]) -> list[CheckResult]:
        """Judge the rest; return one result per expectation, in the suite's order.

        Args:
            frame_of: returns the rows of some columns, all of them in `compared`.
        """
        for reads in sorted(set(self._waiting.values()), key=sorted):
            numbers = [number for number, columns in self._waiting.items() if columns == reads]
            self._run(numbers, frame_of([column for column in self._columns if column in reads]))
        self._run(self._without_values, _without_values(self._columns, num_rows))
        lost = [expectation["type"] for number, expectation in enumerate(self._given) if number not in self._results]
        if lost:
            raise _refused("suite.invalid", self._name, f"no result for {', '.join(lost)}", "an expectation without a result cannot pass")
        return [self._results[number] for number in sorted(self._results)]

    def _run(self, numbers: Sequence[int], frame: pd.DataFrame) -> None:
        from great_expectations.validator.v1_validator import Validator

        if not numbers:
            return
        frame, judged = _widened(frame, [self._given[number] for number in numbers])
        suite = self._prepared([*zip(numbers, judged, strict=True)])
        validator = Validator(self._definition, batch_parameters={"dataframe": frame}, result_format="SUMMARY")
        for result in validator.validate_expectation_suite(suite).results:
            number = result.expectation_config.meta["position"]
            self._results[number] = _judge(result, self._given[number]["kwargs"], table=self._table)
        for number in numbers:
            self._waiting.pop(number, None)

    def _prepared(self, expectations: Sequence[tuple[int, Expectation]]) -> Any:
        """Return a suite of Great Expectations; each expectation's meta holds its position in the file."""
        import great_expectations as gx

        placed = [{**given, "meta": {**(given.get("meta") or {}), "position": number}} for number, given in expectations]
        try:
            return gx.ExpectationSuite(name=self._name, expectations=placed)
        except Exception as err:  # Great Expectations and its pydantic raise a dozen classes here, each about the file
            raise _refused("suite.invalid", self._name, str(err).splitlines()[0][:400], "correct the expectation") from err


def _reads(expectation: Any, columns: Sequence[str]) -> frozenset[str]:
    """Return the columns whose values an expectation reads, empty for one that reads names and the number of rows only."""
    from great_expectations.expectations import expectation as kinds

    named = _named(expectation.configuration.kwargs)
    of_its_columns = (
        kinds.ColumnMapExpectation,
        kinds.ColumnAggregateExpectation,
        kinds.ColumnPairMapExpectation,
        kinds.MulticolumnMapExpectation,
    )
    if not type(expectation).__module__.startswith(SHIPPED_EXPECTATIONS) or getattr(expectation, "row_condition", None):
        return frozenset(columns)
    if expectation.configuration.type in WITHOUT_VALUES:
        return frozenset()
    return frozenset(named) & frozenset(columns) if isinstance(expectation, of_its_columns) else frozenset(columns)


def _without_values(columns: Sequence[str], num_rows: int) -> pd.DataFrame:
    """Return a frame with these columns and rows whose values are one byte in all."""
    import pandas as pd

    zeros = np.broadcast_to(np.int8(0), num_rows)
    return pd.DataFrame(dict.fromkeys(columns, zeros), index=pd.RangeIndex(num_rows), copy=False)


def _widened(frame: pd.DataFrame, expectations: Sequence[Expectation]) -> tuple[pd.DataFrame, list[Expectation]]:
    """Return the frame with 64-bit numbers, and expectations that judge it as they would have judged the narrow ones.

    A bound of a 32-bit column is compared as the 32-bit number that it is nearest to: 0.01 is met by a stored 0.01.
    """
    narrow = {name for name, dtype in frame.dtypes.items() if dtype == "float32"}
    wide = {
        name: "float64" if name in narrow else "int64"
        for name, dtype in frame.dtypes.items()
        if dtype in ("float32", "int8", "int16", "int32")
    }
    judged: list[Expectation] = []
    for expectation in expectations:
        arguments = dict(expectation.get("kwargs", {}))
        if arguments.get("column") in narrow:
            bounds = {name: arguments.get(name) for name in ("min_value", "max_value")}
            arguments |= {name: float(np.float32(bound)) for name, bound in bounds.items() if isinstance(bound, int | float)}
        judged.append({**expectation, "kwargs": arguments})
    return frame.astype(wide), judged


def _judge(result: Any, given: Mapping[str, Any], *, table: str) -> CheckResult:
    """Return the result in words; `given` are the arguments as they stand in the file."""
    config = result.expectation_config
    severity = str(getattr(config.severity, "value", config.severity) or "critical")
    broken = _exception(result.exception_info)
    values = result.result or {}
    status: Status = "passed"
    if broken or not bool(result.success):
        status = "failed" if broken or severity in BLOCKING_SEVERITIES else "warned"
    arguments = {name: value for name, value in given.items() if name not in COLUMN_ARGUMENTS and value is not None}
    return CheckResult(
        code=CODE,
        check=config.type,
        table=table,
        column=", ".join(_named(given)),
        status=status,
        observed=f"not evaluated: {broken}" if broken else _observed(values),
        allowed=_told(arguments) or "as named",
        detail=_examples(values) if status != "passed" else "",
    )


def _exception(info: Mapping[str, object] | None) -> str:
    """Return the first exception's message, or an empty text: Great Expectations puts them into the result instead of raising."""
    if not info:
        return ""
    for entry in (info, *info.values()):
        if isinstance(entry, Mapping) and entry.get("raised_exception"):
            return str(entry.get("exception_message") or "unknown exception").splitlines()[0][:200]
    return ""


def _observed(values: Mapping[str, Any]) -> str:
    if "observed_value" in values:
        return _told(values["observed_value"])
    if "unexpected_count" in values:
        percent = values.get("unexpected_percent_total", values.get("unexpected_percent"))
        share = f" ({percent:.3g} %)" if percent else ""
        return f"{values['unexpected_count']:,} unexpected of {values.get('element_count', 0):,} rows{share}"
    return "met" if not values else _told(dict(values))


def _examples(values: Mapping[str, Any]) -> str:
    examples = values.get("partial_unexpected_list") or []
    return f"for example {', '.join(shown(_plain(value)) for value in examples[:MAX_VALUES_SHOWN])}" if examples else ""


def _named(arguments: Mapping[str, Any]) -> list[str]:
    named = [arguments[name] for name in COLUMN_ARGUMENTS if arguments.get(name)]
    return [name for value in named for name in (value if isinstance(value, list) else [value])]


def _told(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(inner)}" for name, inner in value.items())[:300]
    if isinstance(value, float):
        return figure(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)[:300]


def _plain(value: Any) -> Any:
    """Return a numpy scalar as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _refused(code: str, name: str, message: str, hint: str) -> SpecError:
    return SpecError(f"expectations/{name}.json", [Problem(code=code, message=message, hint=hint)])
