"""Great Expectations suites of the repository, judged by all rows of a table, never by a sample, and never by all of them in memory.

Great Expectations' own expectations judge numbers that DuckDB or the pass of the columns found (`table_numbers`), or the sum of what they
find in batches of rows (`batches`). Some need all rows at a time, as one batch; those are held to `validate.memory`. Neither a data
context nor its validator is used: two expectations on quantiles of a column would both be judged by those of the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.contracts import JsonObject, JsonValue
from training.errors import Problem, SpecError, shown, spec_error
from training.installation import CHECKOUT, EXPECTATIONS
from training.spec.reader.problems import nearest
from training.validation.columns.statistics import ColumnProfile
from training.validation.results import CheckResult
from training.validation.snapshot_view import TableView, rows_bytes
from training.validation.suites.batches import EXAMPLES, judge_batches, metrics_of, result_of_metrics
from training.validation.suites.supported_expectations import (
    ADDITIVE,
    OF_A_BATCH,
    REPEATED,
    SHIPPED_EXPECTATIONS,
    WITHOUT_VALUES,
    nearest_supported,
    needs_all_rows,
)
from training.validation.suites.table_numbers import ProfileMetrics, Unknown
from training.validation.suites.wording import columns_named, result_of

if TYPE_CHECKING:
    import pandas as pd

    from training.sources.table_contract import TableContract

MIB: Final = 2**20


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
    folder = folder or suites_folder()
    path = folder / f"{name}.json"
    try:
        suite: Suite = json.loads(path.read_bytes())
    except FileNotFoundError as err:
        raise _refused("suite.missing", name, f"there is no such file in {folder}", "write it, or correct `suite`") from err
    except ValueError as err:
        raise _refused("suite.invalid", name, f"it is not JSON: {err}", "correct the file") from err
    if not isinstance(suite, dict) or not suite.get("expectations"):
        raise _refused("suite.invalid", name, "it holds no expectations", "a suite that checks nothing would always pass")
    if any(isinstance(each, Mapping) and "expectation_type" in each for each in suite["expectations"]):
        hint = "rename expectation_type to type in each expectation, and expectation_suite_name to name"
        raise _refused("suite.invalid", name, "it has the form of Great Expectations 0.x (expectation_type)", hint)
    return suite


def check_suites(contracts: Iterable[TableContract], folder: Path | None = None) -> None:
    """Refuse suites of tables that no data could meet, before there are data.

    Raises:
        SpecError: `suite.missing`, `suite.invalid`, `suite.regex`.
    """
    for contract in contracts:
        if contract.suite:
            SuiteJudge(load_suite(contract.suite, folder), name=contract.suite, table=contract.name, types=contract.types)


class SuiteJudge:
    """Judges a table by a suite.

    An expectation that could not be evaluated has failed, at every severity. One that was evaluated and not met has failed
    where its severity is critical (the default), and is a warning else.

    Args:
        name: of the suite, for messages.
        types: column that can be read to the type that the YAML names.

    Raises:
        SpecError: `suite.invalid`: Great Expectations does not know an expectation or an argument.
    """

    def __init__(self, suite: Suite, *, name: str, table: str, types: Mapping[str, str]) -> None:
        self._given = suite["expectations"]
        self._name, self._table, self._columns = name, table, list(types)
        self._expectations = self._prepared(types)
        self._reads = {number: _reads(expectation, self._columns) for number, expectation in self._expectations.items()}
        self._results: dict[int, CheckResult] = {}

    def refuse_too_large(self, view: TableView, limit_bytes: int) -> None:
        """Refuse expectations that need all rows in memory, where that is more than the limit; before anything is read.

        Raises:
            SpecError: `suite.memory`.
        """
        for number, expectation in self._expectations.items():
            if self._reads[number] and needs_all_rows(expectation):
                self._check_size(view, number, limit_bytes)

    def judge(self, view: TableView, profiles: Mapping[str, ColumnProfile], limit_bytes: int) -> list[CheckResult]:
        """Judge all by the profile of a table with rows; what it does not say by batches of rows, the rest by all rows.

        Args:
            limit_bytes: of all rows of the columns that an expectation reads.

        Returns:
            One result per expectation, in the suite's order.

        Raises:
            SpecError: `suite.memory`: an expectation needs more.
        """
        import pandas as pd

        metrics = ProfileMetrics(view, profiles)
        for number in self._missing():
            self._by_profile(number, metrics)
        # Of columns that are not there: an error for any rows.
        self._by_batches([number for number in self._missing() if not self._reads[number]], [pd.DataFrame(columns=self._columns)])
        for numbers in self._of_equal_columns([number for number in self._missing() if self._type(number) in ADDITIVE]):
            self._by_batches(numbers, (metrics.frame(chunk) for chunk in view.chunks(self._columns_of(numbers))))
        for numbers in self._of_equal_columns(self._missing()):
            self._check_size(view, numbers[0], limit_bytes)
            self._by_batches(numbers, [metrics.frame(pa.concat_tables(view.chunks(self._columns_of(numbers))))])
        return [self._results[number] for number in sorted(self._expectations)]

    def _by_profile(self, number: int, metrics: ProfileMetrics) -> None:
        """Judge an expectation if the profile says enough; of one that is not met, only if no examples of rows are needed."""
        expectation = self._expectations[number]
        if needs_all_rows(expectation) or self._type(number) in OF_A_BATCH:
            return
        try:
            values = {metric.id: metrics.value(metric) for metric in metrics_of(expectation, None)}
        except Unknown:
            return
        result = result_of_metrics(expectation, values, None)
        if self._type(number) in ADDITIVE and self._reads[number] and not result.success:
            return
        if result.success or self._type(number) not in REPEATED:
            self._add(number, result)
        else:
            examples = {
                metric: metrics.repeated(expectation) if metric[0].endswith(EXAMPLES) else value for metric, value in values.items()
            }
            self._add(number, result_of_metrics(expectation, examples, None))

    def _by_batches(self, numbers: Sequence[int], batches: Iterable[pd.DataFrame]) -> None:
        for number, result in zip(numbers, judge_batches([self._expectations[number] for number in numbers], batches), strict=True):
            self._add(number, result)

    def _add(self, number: int, result: Any) -> None:
        self._results[number] = result_of(result, self._given[number]["kwargs"], table=self._table)

    def _missing(self) -> list[int]:
        return [number for number in sorted(self._expectations) if number not in self._results]

    def _type(self, number: int) -> str:
        return str(self._given[number]["type"])

    def _columns_of(self, numbers: Sequence[int]) -> list[str]:
        """Return the columns that some expectations read, in the table's order."""
        reads = frozenset[str]().union(*(self._reads[number] for number in numbers))
        return [column for column in self._columns if column in reads]

    def _of_equal_columns(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the expectations in lists of those that read the same columns."""
        sets = {self._reads[number]: None for number in numbers}
        return [[number for number in numbers if self._reads[number] == reads] for reads in sets]

    def _check_size(self, view: TableView, number: int, limit_bytes: int) -> None:
        size_bytes = rows_bytes(view, self._columns_of([number]))
        if size_bytes <= limit_bytes:
            return
        kind, columns = self._type(number), columns_named(self._given[number]["kwargs"])
        what = f"{kind} of {', '.join(columns) or 'all columns'} needs all rows in memory, {size_bytes / MIB:,.0f} MiB"
        message = f"table {shown(self._table)}: {what}, and validate.memory is {limit_bytes / MIB:,.0f} MiB"
        raise _refused("suite.memory", self._name, message, f"use {nearest_supported(kind)}, or raise validate.memory")

    def _prepared(self, types: Mapping[str, str]) -> dict[int, Any]:
        """Return Great Expectations' own expectations by their position in the file; refuse all that it does not know at once."""
        # A second of CPU, which a pipeline without suites does not pay.
        import great_expectations  # noqa: F401 - it registers its expectations
        from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

        narrow = [column for column, kind in types.items() if kind == "float"]
        prepared: dict[int, Any] = {}
        problems: list[Problem] = []
        for number, given in enumerate(self._given):
            try:
                _require_values(given, types, self._name)
                _require_bounded(given, self._name)
                (judged,) = judged_as([given], narrow)
                prepared[number] = ExpectationConfiguration(**judged).to_domain_obj()
            except SpecError as err:
                problems += err.problems
            except Exception as err:  # Great Expectations and its pydantic raise a dozen classes here, each about the file
                problems.append(_unknown(number, given, err))
        if problems:
            raise SpecError(f"expectations/{self._name}.json", problems)
        return prepared


def _unknown(number: int, given: object, err: Exception) -> Problem:
    """Return what is wrong with an expectation that Great Expectations does not take."""
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    kind = given.get("type") if isinstance(given, Mapping) else None
    known = list_registered_expectation_implementations()
    if not isinstance(kind, str):
        message, hint = f"{shown(given)} is none", 'write {"type": "expect_…", "kwargs": {…}}'
    elif kind not in known:
        message, hint = f"{shown(kind)} is unknown to Great Expectations", nearest(kind, known)
    else:
        found = [f"{each['loc'][0]}: {each['msg']}".removeprefix("__root__: ") for each in getattr(err, "errors", list)()]
        text = "; ".join(found) or str(err).removeprefix("ExpectationConfiguration.__init__() ")
        message, hint = f"{kind}: {text[:400]}", "correct the expectation"
    return Problem(code="suite.invalid", message=f"expectation {number + 1}: {message}", hint=hint)


def _reads(expectation: Any, columns: Sequence[str]) -> frozenset[str]:
    """Return the columns whose values an expectation reads, empty for one that reads names and the number of rows only."""
    from great_expectations.expectations import expectation as kinds

    named = columns_named(expectation.configuration.kwargs)
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


def judged_as(expectations: Sequence[Expectation], narrow: Collection[str]) -> list[Expectation]:
    """Return expectations that judge widened numbers as they would have judged the narrow ones.

    A bound of a 32-bit column is compared as the 32-bit number that it is nearest to: 0.01 is met by a stored 0.01.

    Args:
        narrow: the columns of type `float`.
    """
    judged: list[Expectation] = []
    for expectation in expectations:
        arguments: dict[str, JsonValue] = dict(expectation.get("kwargs", {}))
        if arguments.get("column") in narrow:
            bounds = {name: arguments.get(name) for name in ("min_value", "max_value")}
            arguments |= {name: float(np.float32(bound)) for name, bound in bounds.items() if isinstance(bound, int | float)}
        judged.append({**expectation, "kwargs": arguments})
    return judged


def _require_values(expectation: Expectation, types: Mapping[str, str], name: str) -> None:
    """Refuse a parameter, whose value no run gives, and a bound of instants that is none.

    Raises:
        SpecError: `suite.invalid`.
    """
    kind, arguments = expectation.get("type"), expectation.get("kwargs", {})
    for key, value in arguments.items():
        if isinstance(value, Mapping) and "$PARAMETER" in value:
            message = f"{kind}: {key} is the parameter {shown(value['$PARAMETER'])}, and no run gives parameters"
            raise _refused("suite.invalid", name, message, "write its value")
        is_bound = key in ("min_value", "max_value") and isinstance(value, str)
        if is_bound and types.get(str(arguments.get("column"))) == "timestamp" and not _is_instant(str(value)):
            message = f"{kind}: {key} of {shown(arguments['column'])}, a timestamp, is {shown(value)}: no instant with an offset"
            raise _refused("suite.invalid", name, message, "write it with its offset: 2026-01-31T06:00:00+00:00")


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _require_bounded(expectation: Expectation, name: str) -> None:
    """Refuse a regular expression that pandas leaves to Python's `re`, which may take for ever: `^(?=a)(a+)+$`.

    Raises:
        SpecError: `suite.regex`.
    """
    arguments: dict[str, JsonValue] = dict(expectation.get("kwargs", {}))
    listed = arguments.get("regex_list")
    given = [arguments.get("regex"), *(listed if isinstance(listed, list) else [])]
    for pattern in (each for each in given if isinstance(each, str)):
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowException:
            message = f"{expectation.get('type')}: {shown(pattern)} has what no bounded search knows"
            raise _refused("suite.regex", name, message, "write it without look-around and back-references, in RE2's syntax") from None
    if _has_patterns(arguments.get("json_schema")):
        hint = "judge the texts by expect_column_values_to_match_regex, or leave the pattern out"
        raise _refused("suite.regex", name, f"{expectation.get('type')}: patterns of a JSON schema have no bounded search", hint)


def _has_patterns(schema: object) -> bool:
    if isinstance(schema, Mapping):
        return any(key in ("pattern", "patternProperties") or _has_patterns(value) for key, value in schema.items())
    return isinstance(schema, list) and any(map(_has_patterns, schema))


def _refused(code: str, name: str, message: str, hint: str) -> SpecError:
    return spec_error(f"expectations/{name}.json", code, message, hint=hint)
