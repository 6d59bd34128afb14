"""The transform `datetime`: parts of a timestamp or a date, one or two cells of the model's input each.

| part | values | period |
| --- | --- | --- |
| `hour` | 0 to 23 | 24 |
| `minute_of_day` | 0 to 1439 | 1440 |
| `day_of_week` | 0, Monday, to 6 | 7 |
| `day_of_month` | 1 to 31 | 31 |
| `month` | 1 to 12 | 12 |
| `day_of_year` | 1 to 366 | 366 |
| `week` | 1 to 53, of ISO 8601 | 53 |
| `is_weekend` | 0 or 1, Saturday and Sunday | |

A timestamp is read on the clock of the pipeline's time zone, changes of that clock included; a date has no zone. `number` gives the value;
`id` a number from 1, 0 for a missing one; `cyclic` two cells, the sine and the cosine of its place in the period, so that the last value is
next to the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.contracts import JsonObject
from training.data.dataset.shard_format import CellType
from training.data.exact.sums import ExactSum
from training.data.features.encoders import Encoder, EncoderSettings, Fill, is_text
from training.data.features.fitting import check_known
from training.errors import DataError, shown

Form = Literal["number", "sin", "cos"]

PERIODS: Final[Mapping[str, int]] = {
    "hour": 24,
    "minute_of_day": 1440,
    "day_of_week": 7,
    "day_of_month": 31,
    "month": 12,
    "day_of_year": 366,
    "week": 53,
    "is_weekend": 2,
}
"""Part to its number of different values."""
FORMS: Final[Mapping[str, tuple[Form, ...]]] = {"number": ("number",), "id": (), "cyclic": ("sin", "cos")}
"""What a user may set to the forms of the cells that are numbers."""
FIRST_VALUES: Final[Mapping[str, int]] = {"day_of_month": 1, "month": 1, "day_of_year": 1, "week": 1}
OF_THE_CLOCK: Final = frozenset({"hour", "minute_of_day"})
"""Parts that a date does not have."""
SATURDAY: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class DatetimeNumber:
    """One float cell: a part, or its sine or cosine."""

    part: str
    form: Form
    zone: str
    mean: float
    """Of the cells of the training rows."""
    fill: Fill
    kind: ClassVar[str] = "datetime"
    dtype: ClassVar[CellType] = "float32"
    cardinality: ClassVar[int] = 0

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.float32]:
        cells = self.cells(column, name)
        return np.where(np.isnan(cells), self.mean if self.fill == "mean" else np.nan, cells).astype(np.float32)

    def cells(self, column: pd.Series[Any], name: str) -> NDArray[np.float64]:
        """Return [n] float64, NaN for a missing value."""
        values = part_of(column, name, self.part, self.zone)
        if self.form == "number":
            return values
        angle = 2 * np.pi * (values - FIRST_VALUES.get(self.part, 0)) / PERIODS[self.part]
        # As the model gets it: processors differ in the last bit of a sine.
        return (np.sin(angle) if self.form == "sin" else np.cos(angle)).astype(np.float32).astype(np.float64)

    def parameters(self) -> JsonObject:
        return {"part": self.part, "form": self.form, "zone": self.zone, "mean": self.mean, "fill": self.fill}


@dataclass(frozen=True, kw_only=True, slots=True)
class DatetimeId:
    """One id cell."""

    part: str
    zone: str
    kind: ClassVar[str] = "datetime_id"
    dtype: ClassVar[CellType] = "int32"

    @property
    def cardinality(self) -> int:
        return PERIODS[self.part] + 1

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.int32]:
        values = part_of(column, name, self.part, self.zone)
        return np.where(np.isnan(values), 0, values + 1 - FIRST_VALUES.get(self.part, 0)).astype(np.int32)

    def parameters(self) -> JsonObject:
        return {"part": self.part, "zone": self.zone}


class DatetimeFit:
    """`datetime`: a mean for each cell that is a number; raises `data.all_missing`."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self._num_rows = 0
        self._numbers = {
            (part, form): (self._number(part, form, mean=0.0), ExactSum()) for part in settings.parts for form in FORMS[settings.form]
        }

    def add(self, column: pd.Series[Any]) -> None:
        self._num_rows += len(column)
        if not column.notna().any():
            # Of text or of instants: nothing says which.
            return
        for unfitted, total in self._numbers.values():
            cells = unfitted.cells(column, self._name)
            total.add(cells[~np.isnan(cells)])

    def cells(self) -> list[tuple[str, Encoder]]:
        found: list[tuple[str, Encoder]] = []
        for part in self._settings.parts:
            if self._settings.form == "id":
                found.append((f"{self._name}.{part}", DatetimeId(part=part, zone=self._settings.zone)))
                continue
            for form in FORMS[self._settings.form]:
                total = self._numbers[part, form][1]
                check_known(self._name, total.count, self._num_rows)
                cell = f"{self._name}.{part}" if form == "number" else f"{self._name}.{part}.{form}"
                found.append((cell, self._number(part, form, mean=total.mean)))
        return found

    def _number(self, part: str, form: Form, *, mean: float) -> DatetimeNumber:
        return DatetimeNumber(part=part, form=form, zone=self._settings.zone, mean=mean, fill=self._settings.fill or "mean")


def part_of(column: pd.Series[Any], name: str, part: str, zone: str) -> NDArray[np.float64]:
    """Return [n] float64: a part of each instant, NaN where it is missing.

    Raises:
        DataError: `schema.type`.
    """
    local, is_date = _local(column, name, zone)
    if is_date and part in OF_THE_CLOCK:
        raise DataError("schema.type", f"column {shown(name)} holds dates, which have no {part}", hint="leave the part out")
    fields = local.dt
    if part == "minute_of_day":
        values = fields.hour * 60 + fields.minute
    elif part == "week":
        values = fields.isocalendar().week
    elif part == "is_weekend":
        # A missing instant has no day of the week.
        values = (fields.day_of_week >= SATURDAY).where(local.notna())
    else:
        values = getattr(fields, "day" if part == "day_of_month" else part)
    found: NDArray[np.float64] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def _local(column: pd.Series[Any], name: str, zone: str) -> tuple[pd.Series[Any], bool]:
    """Return the instants on the clock of a zone, without the zone; and whether they are dates. One without a zone counts as UTC.

    What is after the year 9999 on a clock that changes, such as `9999-12-31T23:59:59Z` in Berlin, has no parts and counts as missing.
    """
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        aware = column.dt.tz_localize("UTC") if column.dt.tz is None else column
        try:
            return aware.dt.tz_convert(zone).dt.tz_localize(None), False
        except (OverflowError, NotImplementedError):
            return aware.where(aware <= _last_instant(zone)).dt.tz_convert(zone).dt.tz_localize(None), False
    if is_text(column) and pd.api.types.infer_dtype(column, skipna=True) in ("date", "empty"):
        return pd.to_datetime(column), True
    hint = "declare the column as timestamp or date, or derive one in prepare.derive; for scoring, parse it with pandas.to_datetime"
    raise DataError(
        "schema.type", f"column {shown(name)} holds {column.dtype}, the transform datetime takes timestamps and dates", hint=hint
    )


def _last_instant(zone: str) -> datetime:
    """Return the last instant of the year 9999 on the clock of a zone, and in UTC."""
    last = datetime.max.replace(tzinfo=UTC)
    return last - max(timedelta(), ZoneInfo(zone).utcoffset(last.replace(tzinfo=None)) or timedelta())
