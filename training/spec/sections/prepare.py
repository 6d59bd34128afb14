"""The section `prepare`: what the model sees of the rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from training.spec.scalar_types import (
    ColumnName,
    Many,
    Scalar,
    Section,
)
from training.spec.sections.data import MAX_COLUMNS
from training.spec.sections.derived import Derived
from training.sql.analysis import in_order_of_use

Transform = Literal["category", "number", "standard", "log", "hash", "bucket", "identity", "datetime", "target_encode", "text"]

NgramSize = Annotated[int, Field(ge=1, le=10)]

DatetimePart = Literal["hour", "minute_of_day", "day_of_week", "day_of_month", "month", "day_of_year", "week", "is_weekend"]


class Feature(Section):
    """A column of the frame, or of `prepare.derive`, and how the model sees it."""

    transform: Transform
    """How the values become numbers or ids."""
    serve_as: Scalar | None = None
    """Constant that stands in for the column when scoring."""
    fill: Literal["mean", "keep"] | None = None
    """What stands for a missing number: the training mean, or nothing (trees split on missing); absent: the transform's own way."""
    max_categories: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """More different values than this are refused; absent: the transform's own limit. Unit: values. Example: `5000`."""
    buckets: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    """Of `hash` (absent: 65,536), `bucket` (absent: 10) and `text` (absent: 128; each is an input of the model, at most 1,024).
    Unit: buckets. Example: `1000`."""
    top: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Of `category`: only so many of the most frequent values have an id of their own; all others, also those never seen, have one
    together. Absent: each value has its own, up to `max_categories`. Unit: values. Example: `1000`."""
    parts: Many[DatetimePart] = ()
    """Of `datetime`: what the model sees of the instant, on the clock of the pipeline's `timezone`; each part is an input of its own.
    Example: `[hour, day_of_week]`."""
    form: Literal["number", "id", "cyclic"] | None = None
    """Of `datetime`: each part as a number (`number`, when absent), as an id (`id`), or as sine and cosine of its place in the period
    (`cyclic`)."""
    tokens: Literal["words", "characters"] | None = None
    """Of `text`: what n-grams are made of; absent: words."""
    ngrams: Annotated[tuple[NgramSize, NgramSize], Field(strict=False)] | None = None
    """Of `text`: the smallest and the largest n; absent: `[1, 1]`. Unit: tokens. Example: `[1, 2]`."""
    lowercase: bool | None = None
    """Of `text`: whether capital letters count as small ones; absent: true. Example: `false`."""
    scale: Literal["count", "share"] | None = None
    """Of `text`: a bucket's number of n-grams (`count`, when absent), or their share of all n-grams of the text (`share`)."""
    smoothing: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Of `target_encode`: the mean of all training rows counts as much as this many rows of the value; absent: 10.
    Unit: rows. Example: `20`."""
    folds: Annotated[int, Field(ge=2, le=100)] | None = None
    """Of `target_encode`: a training row sees the labels of all folds but its own, by a hash of its key or group; absent: 5.
    Unit: folds. Example: `5`."""


class Prepare(Section):
    """What the model sees of the joined rows."""

    derive: dict[ColumnName, Derived] = Field(default_factory=dict)
    """Part of the fitted transforms: computed alike when training, evaluating and serving."""
    features: Annotated[dict[ColumnName, Feature], Field(min_length=1, max_length=MAX_COLUMNS)]
    """Column to how the model sees it; other columns are no features."""

    def derive_in_order(self) -> list[tuple[str, Derived]]:
        """Return the derived columns such that each comes after those that it mentions."""
        return in_order_of_use(self.derive)
