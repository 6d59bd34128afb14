"""How the transforms of `training.data.features.encoders` are fitted: training rows in batches, transforms out.

Sums are exact and counts are whole numbers, so neither the order of the rows nor the batches change a bit. Of a column in memory are its
different values (`category`; with `top` up to `HELD_VALUES`) or, up to `QUANTILE_BYTES`, all values (`bucket`); what is beyond is in files
on local disk. Nothing else grows with the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.data.dataset.frames import FIRST_INEXACT
from training.data.exact.moments import ExactMoments
from training.data.exact.quantiles import Quantiles
from training.data.exact.sums import ExactSum
from training.data.features.encoders import (
    Buckets,
    Category,
    Encoder,
    EncoderSettings,
    Hash,
    Identity,
    Log,
    ScaledNumber,
    Standard,
    inexact,
    is_text,
    logarithms,
    numbers,
)
from training.data.features.rounding_loss import SampledValues, check_digits, warn_of_lost_digits
from training.data.features.vocabulary import ValueNumbers, infinite
from training.errors import DataError, shown

DEFAULT_MAX_CATEGORIES: Final = 1_000_000
DEFAULT_BUCKETS: Final = 10
DEFAULT_HASH_BUCKETS: Final = 1 << 16
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
            raise infinite(self.name, self._num_infinite, self.num_rows)
        check_known(self.name, self.num_known, self.num_rows)


class NumberFit:
    """`number`, `standard` and `log`; raises `data.nonfinite`, `transform.negative`, `transform.rounding`."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self._finite = Finite(name)
        self._sum = ExactSum()
        self._moments = ExactMoments()
        self._sampled = SampledValues()
        self._num_negative, self._least = 0, 0.0

    def add(self, column: pd.Series[Any]) -> None:
        values = self._finite.of(column)
        if not len(values):
            return
        if self._settings.kind == "log":
            self._num_negative += int((values < 0).sum())
            self._least = min(self._least, float(values.min()))
            values = logarithms(np.maximum(values, 0.0))
        self._sampled.add(values)
        if self._settings.kind == "number":
            self._sum.add(values)
        else:
            self._moments.add(values)

    def cells(self) -> list[tuple[str, Encoder]]:
        self._finite.check()
        if self._settings.kind == "number":
            number = ScaledNumber(mean=self._representable(self._sum.mean, LARGEST_CELL), fill=self._settings.fill or "keep")
            remedy = f"set prepare.features.{self._name} to {{transform: standard, fill: {number.fill}}}, which subtracts the mean first"
            check_digits(self._name, self._sampled.values, remedy)
            return [(self._name, number)]
        if self._num_negative:
            message = (
                f"feature {shown(self._name)}: {self._num_negative} of {self._finite.num_known} values are negative, "
                f"the least {self._least:g}"
            )
            raise DataError("transform.negative", message, hint="use the transform standard, or derive a value that is not negative")
        mean, deviation = self._representable(self._moments.mean, np.inf), self._representable(self._moments.deviation, LARGEST_ROOT)
        scaled = Log if self._settings.kind == "log" else Standard
        is_constant = deviation <= LEAST_DEVIATION * max(1.0, abs(mean))
        fitted = scaled(mean=mean, deviation=1.0 if is_constant else deviation, fill=self._settings.fill or "mean")
        warn_of_lost_digits(self._name, (self._sampled.values - mean) / fitted.deviation)
        return [(self._name, fitted)]

    def _representable(self, fitted: float, limit: float) -> float:
        if not abs(fitted) < limit:
            message = f"feature {shown(self._name)}: the training values are so large that their mean or variance is infinite"
            raise DataError("data.nonfinite", message, hint="derive smaller values in prepare.derive")
        return fitted


class CategoryFit:
    """`category`; raises `cardinality`, `schema.type`, `data.nonfinite`, `transform.precision`."""

    def __init__(self, settings: EncoderSettings, name: str, folder: Path | None, memory_bytes: int) -> None:
        self._top, self._name = settings.top, name
        limit = None if settings.top is not None else settings.max_categories or DEFAULT_MAX_CATEGORIES
        self._values = ValueNumbers(name, limit, folder, memory_bytes)

    def add(self, column: pd.Series[Any]) -> None:
        self._values.add(column)

    def cells(self) -> list[tuple[str, Encoder]]:
        self._values.check()
        if self._top is not None:
            return [(self._name, Category(values=self._values.most_frequent(self._top), pooled=True))]
        return [(self._name, Category(values=self._values.listed(self._values.by_frequency())))]


class HashFit:
    """`hash`: whether integers are taken in full; raises `transform.precision`."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._name, self._buckets = name, settings.buckets or DEFAULT_HASH_BUCKETS
        self._num_inexact, self._inexact = 0, 0.0
        self._has_large = False

    def add(self, column: pd.Series[Any]) -> None:
        if is_text(column):
            return
        if pd.api.types.is_integer_dtype(column.dtype):
            integers = column.dropna().to_numpy(dtype=np.int64)
            with np.errstate(invalid="ignore"):
                self._has_large |= bool((integers.astype(np.float64).astype(np.int64) != integers).any())
            return
        values = numbers(column, self._name)
        wrong = values[(np.abs(values) >= FIRST_INEXACT) & np.isfinite(values)]
        if len(wrong):
            self._inexact = self._inexact if self._num_inexact else float(wrong[0])
            self._num_inexact += len(wrong)

    def cells(self) -> list[tuple[str, Encoder]]:
        if self._num_inexact:
            raise inexact(self._name, self._num_inexact, self._inexact)
        return [(self._name, Hash(buckets=self._buckets, exact=self._has_large))]


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
        return [(self._name, Buckets(bounds=np.unique(self._values.at(self._inner)).tolist()))]


class IdentityFit:
    """`identity`; raises `data.nonfinite`, `transform.not_an_id`, `transform.rounding`: trees take ids as float32."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._finite = Finite(name)
        self._sampled = SampledValues()
        self._largest, self._num_wrong, self._wrong = 0, 0, 0.0

    def add(self, column: pd.Series[Any]) -> None:
        values = self._finite.of(column)
        wrong = values[(values < 0) | (values != np.floor(values)) | (values >= 1 << 31)]
        if len(wrong) and not self._num_wrong:
            self._wrong = float(wrong[0])
        self._num_wrong += len(wrong)
        if len(values) and not self._num_wrong:
            self._largest = max(self._largest, int(values.max()))
            self._sampled.add(values)

    def cells(self) -> list[tuple[str, Encoder]]:
        self._finite.check()
        if self._num_wrong:
            raise DataError(
                "transform.not_an_id",
                f"feature {shown(self._name)}: {self._num_wrong} values are not whole numbers from 0, such as {self._wrong:g}",
                hint="use the transform category",
            )
        check_digits(self._name, self._sampled.values, f"set prepare.features.{self._name} to {{transform: category}}")
        return [(self._name, Identity(largest=self._largest))]


def check_known(name: str, num_known: int, num_rows: int) -> None:
    """Refuse a feature of which no training row has a value.

    Raises:
        DataError: `data.all_missing`.
    """
    if not num_known:
        raise DataError("data.all_missing", f"feature {shown(name)}: all {num_rows} training values are missing", hint="drop it")
