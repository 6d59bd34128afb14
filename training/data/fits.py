"""How the transforms of `training.data.encoders` are fitted: training rows in batches, transforms out.

Sums are exact and counts are whole numbers, so neither the order of the rows nor the batches change a bit. Of a column in memory are its
different values (`category`) or, up to `QUANTILE_BYTES`, all values (`bucket`; beyond, they are in a file on local disk); nothing else
grows with the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.data.encoders import (
    Bucket,
    Category,
    Encoder,
    EncoderSettings,
    Hash,
    Identity,
    Log,
    ScaledNumber,
    Standard,
    exact,
    is_text,
    logarithms,
    numbers,
)
from training.data.exact_sums import ExactMoments, ExactSum
from training.data.quantiles import Quantiles
from training.errors import DataError, shown

DEFAULT_MAX_CATEGORIES: Final = 1_000_000
DEFAULT_BUCKETS: Final = 10
DEFAULT_HASH_BUCKETS: Final = 1 << 16
FIRST_INEXACT: Final = 1 << 53
"""Below it float64 has every integer; at it, the next one has become equal."""
LARGEST_CELL: Final = float(np.finfo(np.float32).max)
LARGEST_ROOT: Final = float(np.finfo(np.float64).max) ** 0.5
"""The variance of a larger deviation is infinite."""
LEAST_DEVIATION: Final = 1e-12
"""Relative to the mean; below it, a column counts as constant."""


class Fit(Protocol):
    """What is known of one feature so far."""

    def add(self, column: pd.Series[Any]) -> None:
        """Take the next training rows.

        Raises:
            DataError: `schema.type`.
        """

    def cells(self) -> list[tuple[str, Encoder]]:
        """Return (name, transform) of each cell, fitted on all rows that were added.

        Raises:
            DataError: see each class; `data.all_missing`.
        """


class Finite:
    """The values of a column of numbers that are there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_rows = 0
        self.num_known = 0
        self._num_infinite = 0

    def of(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """Return the finite values of the next rows, an array of the caller's own."""
        values = numbers(column, self.name)
        finite = np.isfinite(values)
        if not finite.all():
            self._num_infinite += int(np.isinf(values).sum())
            known = values[finite]
        else:
            known = values
        self.num_rows += len(values)
        self.num_known += len(known)
        return known

    def check(self) -> None:
        """Raise what is wrong with the values of all rows.

        Raises:
            DataError: `data.nonfinite`, `data.all_missing`.
        """
        if self._num_infinite:
            raise _infinite(self.name, self._num_infinite, self.num_rows)
        check_known(self.name, self.num_known, self.num_rows)


class NumberFit:
    """`number`, `standard` and `log`; raises `data.nonfinite`, `transform.negative`."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self._finite = Finite(name)
        self._sum = ExactSum()
        self._moments = ExactMoments()
        self._num_negative, self._least = 0, 0.0

    def add(self, column: pd.Series[Any]) -> None:
        values = self._finite.of(column)
        if not len(values):
            return
        if self._settings.kind == "number":
            self._sum.add(values)
            return
        if self._settings.kind == "log":
            self._num_negative += int((values < 0).sum())
            self._least = min(self._least, float(values.min()))
            values = logarithms(np.maximum(values, 0.0))
        self._moments.add(values)

    def cells(self) -> list[tuple[str, Encoder]]:
        self._finite.check()
        fill = self._settings.fill
        if self._settings.kind == "number":
            return [(self._name, ScaledNumber(mean=self._representable(self._sum.mean, LARGEST_CELL), fill=fill or "keep"))]
        if self._num_negative:
            message = (
                f"feature {shown(self._name)}: {self._num_negative} of {self._finite.num_known} values are negative, "
                f"the least {self._least:g}"
            )
            raise DataError("transform.negative", message, hint="use the transform standard, or derive a value that is not negative")
        mean, deviation = self._representable(self._moments.mean, np.inf), self._representable(self._moments.deviation, LARGEST_ROOT)
        scaled = Log if self._settings.kind == "log" else Standard
        is_constant = deviation <= LEAST_DEVIATION * max(1.0, abs(mean))
        return [(self._name, scaled(mean=mean, deviation=1.0 if is_constant else deviation, fill=fill or "mean"))]

    def _representable(self, fitted: float, limit: float) -> float:
        if not abs(fitted) < limit:
            message = f"feature {shown(self._name)}: the training values are so large that their mean or variance is infinite"
            raise DataError("data.nonfinite", message, hint="derive smaller values in prepare.derive")
        return fitted


class ValueNumbers:
    """A number for each different value of a column, in the order of appearance, and how many rows have it."""

    def __init__(self, name: str, limit: int | None) -> None:
        """Begin without values.

        Args:
            name: of the column.
            limit: of different values, above which rows are no longer counted; None: there is none.
        """
        self._name, self._limit = name, limit
        self._number_of: dict[Any, int] = {}
        self.counts = np.zeros(0, dtype=np.int64)
        """[different values] rows."""
        self.num_rows = 0
        """Missing ones included."""
        self._has_floats = False

    @property
    def values(self) -> list[Any]:
        """The different values by their number."""
        return list(self._number_of)

    @property
    def is_above_limit(self) -> bool:
        return self._limit is not None and len(self._number_of) > self._limit

    def add(self, column: pd.Series[Any]) -> NDArray[np.int64]:
        """Count the next rows; return the number of each one's value, [n], -1 for a missing one.

        Raises:
            DataError: `schema.type`, the column holds neither numbers nor texts.
        """
        self.num_rows += len(column)
        raw: Any = column
        if not is_text(column):
            raw = exact(column, self._name)
            # Also integers of which one is missing here or elsewhere: pandas has them as floats.
            self._has_floats |= raw.dtype.kind == "f"
        codes, values = pd.factorize(raw)
        found = np.empty(len(values) + 1, dtype=np.int64)
        found[-1] = -1
        if not self.is_above_limit:
            number_of = self._number_of
            found[:-1] = [number_of.setdefault(value, len(number_of)) for value in values.tolist()]
            self.counts = np.concatenate([self.counts, np.zeros(len(number_of) - len(self.counts), dtype=np.int64)])
            self.counts += np.bincount(found[codes] + 1, minlength=len(self.counts) + 1)[1:]
        return found[codes]

    def check(self) -> None:
        """Raise what is wrong with the values of all rows.

        Raises:
            DataError: `cardinality`; `schema.type`; `data.nonfinite`; `transform.precision`, two different integers from 2**53 may have
                become one float64.
        """
        if self.is_above_limit:
            raise DataError(
                "cardinality",
                f"feature {shown(self._name)}: more than {self._limit:,} different values, at most {self._limit:,} are allowed",
                hint="keep the most frequent ones (top), use the transform hash, or raise max_categories",
            )
        strange = next((value for value in self._number_of if not isinstance(value, str | int | float)), None)
        if strange is not None:
            message = f"feature {shown(self._name)}: its values are neither texts nor numbers, such as {strange}"
            raise DataError("schema.type", message, hint="derive a text or a number in prepare.derive, or use the transform datetime")
        if not self._has_floats:
            return
        num_infinite = sum(int(self.counts[number]) for value, number in self._number_of.items() if np.isinf(value))
        if num_infinite:
            raise _infinite(self._name, num_infinite, self.num_rows)
        inexact = {value: number for value, number in self._number_of.items() if abs(value) >= FIRST_INEXACT}
        if inexact:
            num_rows = int(self.counts[list(inexact.values())].sum())
            message = (
                f"feature {shown(self._name)}: {num_rows} values from 2**53, such as {next(iter(inexact)):.0f}: "
                "float64 lacks some integers there"
            )
            hint = "derive a text from the column in data.source.derive; integers of a column without missing values are exact"
            raise DataError("transform.precision", message, hint=hint)

    def by_frequency(self) -> NDArray[np.int64]:
        """Return the numbers of the values, the most frequent first, of equally frequent ones the smaller."""
        values = self.values
        return np.array(sorted(range(len(values)), key=lambda number: (-self.counts[number], values[number])), dtype=np.int64)

    def listed(self, order: NDArray[np.int64]) -> list[Any]:
        """Return the values of these numbers as JSON has them."""
        values = self.values
        return [_plain(values[number]) for number in order.tolist()]


class CategoryFit:
    """`category`; raises `cardinality`, `schema.type`, `data.nonfinite`, `transform.precision`."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._top, self._name = settings.top, name
        self._values = ValueNumbers(name, None if settings.top is not None else settings.max_categories or DEFAULT_MAX_CATEGORIES)

    def add(self, column: pd.Series[Any]) -> None:
        self._values.add(column)

    def cells(self) -> list[tuple[str, Encoder]]:
        self._values.check()
        order = self._values.by_frequency()[: self._top]
        return [(self._name, Category(values=self._values.listed(order), pooled=self._top is not None))]


class HashFit:
    """`hash`: nothing is fitted."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._found = (name, Hash(buckets=settings.buckets or DEFAULT_HASH_BUCKETS))

    def add(self, column: pd.Series[Any]) -> None:
        """Nothing depends on the values."""

    def cells(self) -> list[tuple[str, Encoder]]:
        return [self._found]


class BucketFit:
    """`bucket`; raises `data.nonfinite`."""

    def __init__(self, settings: EncoderSettings, name: str, folder: Path | None) -> None:
        self._name = name
        self._inner = np.linspace(0, 1, (settings.buckets or DEFAULT_BUCKETS) + 1)[1:-1]
        self._finite = Finite(name)
        self._values = Quantiles(folder)

    def add(self, column: pd.Series[Any]) -> None:
        self._values.add(self._finite.of(column))

    def cells(self) -> list[tuple[str, Encoder]]:
        self._finite.check()
        return [(self._name, Bucket(bounds=np.unique(self._values.at(self._inner)).tolist()))]


class IdentityFit:
    """`identity`; raises `data.nonfinite`, `transform.not_an_id`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._finite = Finite(name)
        self._largest, self._num_wrong, self._wrong = 0, 0, 0.0

    def add(self, column: pd.Series[Any]) -> None:
        values = self._finite.of(column)
        wrong = values[(values < 0) | (values != np.floor(values)) | (values >= 1 << 31)]
        if len(wrong) and not self._num_wrong:
            self._wrong = float(wrong[0])
        self._num_wrong += len(wrong)
        if len(values) and not self._num_wrong:
            self._largest = max(self._largest, int(values.max()))

    def cells(self) -> list[tuple[str, Encoder]]:
        self._finite.check()
        if self._num_wrong:
            raise DataError(
                "transform.not_an_id",
                f"feature {shown(self._name)}: {self._num_wrong} values are not whole numbers from 0, such as {self._wrong:g}",
                hint="use the transform category",
            )
        return [(self._name, Identity(largest=self._largest))]


def check_known(name: str, num_known: int, num_rows: int) -> None:
    """Refuse a feature of which no training row has a value.

    Raises:
        DataError: `data.all_missing`.
    """
    if not num_known:
        raise DataError("data.all_missing", f"feature {shown(name)}: all {num_rows} training values are missing", hint="drop it")


def _infinite(name: str, num_infinite: int, num_rows: int) -> DataError:
    message = f"feature {shown(name)}: {num_infinite} of {num_rows} training values are infinite"
    return DataError("data.nonfinite", message, hint="remove or replace them at the source, or by NULL in data.source.derive")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return int(value) if float(value).is_integer() else float(value)
