"""One class per kind of transform: from a raw column to 4-byte numbers, fitted on training rows alone.

| kind | result | fitted | missing value |
| --- | --- | --- | --- |
| `number` | float32, the value | mean | NaN; the mean with `fill: mean` |
| `standard` | float32, (value - mean) / deviation | mean, deviation | 0, the mean; NaN with `fill: keep` |
| `log` | float32, log(1 + value), then standard | mean, deviation | as `standard`; a negative value counts as missing |
| `category` | int32, 1 for the most frequent value (ties: the smaller), and so on | values | 0, as for a value never seen |
| `category` with `top: n` | the same for the n most frequent values; the next id for all others, those never seen too | values | 0 |
| `text` | float32 for each bucket, n-grams of the text: `training.data.features.text_ngrams` | | 0 |
| `target_encode` | float32, smoothed mean of the label: `training.data.features.target_encoding` | mean of each value | the mean of all |
| `datetime` | one or two cells for each part of an instant: `training.data.features.datetime_parts` | mean | mean, or 0 for ids |
| `hash` | int32, 1 + BLAKE2b of the value modulo `buckets`, of integers in full | | 0 |
| `bucket` | int32, 1 + number of inner quantiles at or below the value | quantiles | 0 |
| `identity` | int32, the value | largest value | 0, as for a value outside 0 … largest |

`number` keeps NaN because trees split on missing values; what is scaled is meant for neural models, which cannot.
Infinite values count as missing once fitted.
Fitting depends on which values there are, never on the order of rows. -0.0 counts as 0.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.contracts import JsonObject
from training.data.dataset.frames import FIRST_INEXACT
from training.data.dataset.shard_format import CellType
from training.errors import DataError, shown

MAX_REMEMBERED: Final = 1 << 17
_HASHES: Final[dict[str | float, int]] = {}
"""The first values and their hash: most come again in the next batch of rows."""

Fill = Literal["mean", "keep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSettings:
    """What a user may set for one feature."""

    kind: str
    fill: Fill | None = None
    """What stands for a missing value, for float kinds; None: the kind's own way, see the module."""
    max_categories: int | None = None
    buckets: int | None = None
    """For `hash`, `bucket` and `text`."""
    top: int | None = None
    """For `category`: how many of the most frequent values have an id of their own, the others one together; None: all have."""
    parts: tuple[str, ...] = ()
    """For `datetime` (`training.data.features.datetime_parts`), as the two below."""
    form: Literal["number", "id", "cyclic"] = "number"
    zone: str = "UTC"
    tokens: Literal["words", "characters"] = "words"
    """For `text` (`training.data.features.text_ngrams`), as the three below."""
    ngrams: tuple[int, int] | None = None
    lowercase: bool = True
    scale: Literal["count", "share"] = "count"
    smoothing: float | None = None
    """For `target_encode` (`training.data.features.target_encoding`), as the one below; None: its own."""
    folds: int | None = None


class Encoder(Protocol):
    """A fitted transform of one column."""

    kind: ClassVar[str]
    dtype: ClassVar[CellType]

    @property
    def cardinality(self) -> int:
        """Number of different ids, 0 included; 0 for float kinds."""

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[Any]:
        """Return [n] of `dtype`.

        Raises:
            DataError: `schema.type`, the column is not of a kind that this transform takes; `transform.precision`, it has floats where the
                fitted integers need all digits.
        """

    def parameters(self) -> JsonObject:
        """Return what was fitted, as JSON: the constructor's arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledNumber:
    """`number`, `standard` and `log`: one affine map, which `number` leaves at the identity."""

    mean: float
    fill: Fill
    kind: ClassVar[str] = "number"
    dtype: ClassVar[CellType] = "float32"
    cardinality: ClassVar[int] = 0

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.float32]:
        return self._filled(numbers(column, name), mean=self.mean)

    def parameters(self) -> JsonObject:
        return {"mean": self.mean, "fill": self.fill}

    def _filled(self, values: NDArray[np.float64], *, mean: float) -> NDArray[np.float32]:
        """Return float32 cells; what is missing, infinite or too large for them becomes `mean` (on the cells' scale) or NaN."""
        with np.errstate(over="ignore"):
            cells = values.astype(np.float32)
        cells[~np.isfinite(cells)] = mean if self.fill == "mean" else np.nan
        return cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Standard(ScaledNumber):
    deviation: float
    kind: ClassVar[str] = "standard"

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.float32]:
        values = (self._unscaled(numbers(column, name)) - self.mean) / self.deviation
        return self._filled(values, mean=0.0)

    def parameters(self) -> JsonObject:
        return {"mean": self.mean, "fill": self.fill, "deviation": self.deviation}

    @staticmethod
    def _unscaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Log(Standard):
    kind: ClassVar[str] = "log"

    @staticmethod
    def _unscaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return logarithms(values)


class Category:
    """Values by frequency; id 0 is everything else, or where the rest is pooled, what is missing."""

    kind: ClassVar[str] = "category"
    dtype: ClassVar[CellType] = "int32"

    def __init__(self, *, values: list[Any], pooled: bool = False) -> None:
        self.values, self.pooled = values, pooled
        self._is_text = bool(values) and isinstance(values[0], str)
        self._has_large = not self._is_text and any(abs(value) >= FIRST_INEXACT for value in values)
        self._index = pd.Index(values, dtype=object) if self._is_text else pd.Index(np.asarray(values))

    @property
    def cardinality(self) -> int:
        return len(self.values) + 1 + self.pooled

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.int32]:
        if self.values and self._is_text != is_text(column) and len(column) and not column.isna().all():
            wanted = "text" if self._is_text else "numbers"
            raise DataError("schema.type", f"column {shown(name)} holds {column.dtype}, its categories were fitted on {wanted}")
        # get_indexer says -1 for what is not there, a missing value included.
        ids = (self._places(column, name) + 1).astype(np.int32)
        if self.pooled:
            ids[(ids == 0) & column.notna().to_numpy()] = len(self.values) + 1
        return ids

    def _places(self, column: pd.Series[Any], name: str) -> NDArray[np.intp]:
        """Return [n]: the place of each value among the fitted ones, -1 for any other."""
        if not self.values:
            # Nothing but missing values was fitted: numbers or text may come later.
            return np.full(len(column), -1, dtype=np.intp)
        values: Any = column.astype(object) if self._is_text else exact(column, name)
        places: NDArray[np.intp]
        if not self._has_large or values.dtype.kind != "f":
            places = self._index.get_indexer(pd.Index(values))
            return places
        check_exact(values, name)
        # Looked up as floats, neighbours among the fitted integers would be equal.
        is_whole = np.isfinite(values) & (values == np.floor(values))
        places = np.full(len(values), -1, dtype=np.intp)
        places[is_whole] = self._index.get_indexer(pd.Index(values[is_whole].astype(np.int64)))
        return places

    def parameters(self) -> JsonObject:
        return {"values": self.values, **({"pooled": True} if self.pooled else {})}


def stable_hash(value: str | float) -> int:
    """Return the first 64 bits of BLAKE2b of a text, or of a number's shortest notation as float64 (of other integers: decimal)."""
    if isinstance(value, str):
        text = value
    else:
        text = repr(float(value)) if float(value) == value or not isinstance(value, int) else str(value)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return `stable_hash` of each text, [n]."""
    blake2b = hashlib.blake2b
    digests = b"".join([blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts])
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def _remembered_hash(value: str | float) -> int:
    found = _HASHES.get(value)
    if found is None:
        found = stable_hash(value)
        # Nothing is dropped for it: where no value comes again, that would take longer than the hash.
        if len(_HASHES) < MAX_REMEMBERED:
            _HASHES[value] = found
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Hash:
    buckets: int
    exact: bool = False
    """Whether integers that float64 lacks are distinguished from their neighbours: training rows had some. Where they had
    none, such an integer has the bucket of its float64, in evaluation and serving alike, and transforms.json lacks the key."""
    kind: ClassVar[str] = "hash"
    dtype: ClassVar[CellType] = "int32"

    @property
    def cardinality(self) -> int:
        return self.buckets + 1

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.int32]:
        # Numbers hash as float64, so that 7, 7.0 and a nullable 7 are one value, and so that -0.0 is 0.0.
        is_plain = is_text(column) or (self.exact and pd.api.types.is_integer_dtype(column.dtype))
        raw = column if is_plain else pd.Series(numbers(column, name) + 0.0)
        if self.exact and not is_plain:
            check_exact(numbers(raw, name), name)
        codes, values = pd.factorize(raw)
        found = values.tolist()
        if not self.exact:
            found = [float(value) if isinstance(value, int) else value for value in found]
        ids = np.array([0, *(1 + _remembered_hash(value) % self.buckets for value in found)], dtype=np.int32)
        hashed: NDArray[np.int32] = ids[codes + 1]
        return hashed

    def parameters(self) -> JsonObject:
        return {"buckets": self.buckets, **({"exact": True} if self.exact else {})}


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    bounds: list[float]
    """Ascending; a value at a bound belongs to the bucket above it."""
    kind: ClassVar[str] = "bucket"
    dtype: ClassVar[CellType] = "int32"

    @property
    def cardinality(self) -> int:
        return len(self.bounds) + 2

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.int32]:
        values = numbers(column, name)
        ids = np.searchsorted(np.asarray(self.bounds), values, side="right") + 1
        return np.where(np.isnan(values), 0, ids).astype(np.int32)

    def parameters(self) -> JsonObject:
        return {"bounds": self.bounds}


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    largest: int
    kind: ClassVar[str] = "identity"
    dtype: ClassVar[CellType] = "int32"

    @property
    def cardinality(self) -> int:
        return self.largest + 1

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.int32]:
        values = numbers(column, name)
        known = (values >= 0) & (values <= self.largest) & (values == np.floor(values))
        return np.where(known, values, 0).astype(np.int32)

    def parameters(self) -> JsonObject:
        return {"largest": self.largest}


ENCODERS: Final[Mapping[str, Callable[..., Encoder]]] = {
    "number": ScaledNumber,
    "standard": Standard,
    "log": Log,
    "category": Category,
    "hash": Hash,
    "bucket": Buckets,
    "identity": Identity,
}


def is_text(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_string_dtype(column.dtype) or pd.api.types.is_object_dtype(column.dtype)) and not _is_flags(column)


def _is_flags(column: pd.Series[Any]) -> bool:
    """Return whether these are booleans with a missing one among them: pandas has them as objects."""
    return bool(pd.api.types.is_object_dtype(column.dtype)) and pd.api.types.infer_dtype(column, skipna=True) == "boolean"


def numbers(column: pd.Series[Any], name: str) -> NDArray[np.float64]:
    """Return [n] float64: missing as NaN, -0.0 as 0.0.

    Raises:
        DataError: `schema.type`, the column does not hold numbers.
    """
    if is_text(column) and column.isna().all():
        return np.full(len(column), np.nan)
    if _is_flags(column):
        column = column.astype("boolean")
    if not (pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype)):
        raise DataError(
            "schema.type",
            f"column {shown(name)} holds {column.dtype}, its transform takes numbers",
            hint="derive a number in prepare.derive",
        )
    return column.to_numpy(dtype=np.float64, na_value=np.nan) + 0.0


def logarithms(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(1 + value), NaN for a negative value."""
    return np.log1p(np.where(values < 0, np.nan, values))


def exact(column: pd.Series[Any], name: str) -> Any:
    """Return [n] int64, or pandas' Int64 where one is missing, of integers: those above 2**53 are not float64. Others as float64."""
    if pd.api.types.is_integer_dtype(column.dtype):
        return column.astype("Int64").array if column.hasnans else column.to_numpy(dtype=np.int64)
    return numbers(column, name)


def inexact(name: str, count: int, example: float) -> DataError:
    """Return the error of a feature with float64 that may be an integer or its neighbour."""
    message = f"feature {shown(name)}: {count} values from 2**53, such as {example:.0f}: float64 lacks some integers there"
    hint = "give integers as int64, or as pandas' Int64 where one is missing; or derive a text from the column in data.source.derive"
    return DataError("transform.precision", message, hint=hint)


def check_exact(values: NDArray[np.float64], name: str) -> None:
    """Refuse floats that may have been other integers, where integers are distinguished.

    Raises:
        DataError: `transform.precision`.
    """
    wrong = values[(np.abs(values) >= FIRST_INEXACT) & np.isfinite(values)]
    if len(wrong):
        raise inexact(name, len(wrong), float(wrong[0]))
