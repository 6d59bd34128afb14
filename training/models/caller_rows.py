"""Rows as callers of a registered model have them, as a frame of the dataset has them: what has one reading is read, the rest refused.

A missing value is None, NaN, NaT, NA or a null, in a column of any type. Order, index and further columns do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from training.data.dataset.frames import pandas_column
from training.data.join.derived import as_declared
from training.errors import DataError, shown
from training.sql.arrow_types import ARROW_TYPES

OF_FRAMES: Final[Mapping[str, str]] = {
    **{name: name for name in ARROW_TYPES if name.startswith("int")},
    "float": "float32",
    "double": "float64",
    "boolean": "bool",
    "string": "str",
    "timestamp": "datetime64[us, UTC]",
}
"""The types that pandas has for columns without a missing value."""
FLOATS: Final = ("float", "double")
NUMBERS_HINT: Final = "give numbers; pandas.to_numeric reads texts"
HINTS: Final[Mapping[str, str]] = {
    "boolean": "give true and false, or 1 and 0",
    "string": "give texts; pandas.read_csv reads digits as text with dtype={NAME: 'str'}",
    "date": "give days, such as 2026-03-01",
    "timestamp": "give instants with their offset, such as 2026-03-01T10:00:00+01:00; "
    "pandas.to_datetime(…, utc=True) reads the clock of UTC, and with unit='s' epoch numbers",
}
MIDNIGHT: Final = r"[T ]00:00(:00(\.0+)?)?(Z|[+-]\d\d(:?\d\d)?)?$"
ZEROS_OF_NANOSECONDS: Final = r"(\.\d{6})0+"


class _Column(NamedTuple):
    """One column of a caller's rows."""

    name: str
    kind: str
    """The declared type."""
    values: pa.Array

    def refused(self, why: str, row: int | None = None) -> DataError:
        """Return the error that names a row, counted from 1, and its value; None: the first that is not missing."""
        place = next(n for n, known in enumerate(self.values.is_valid().to_pylist()) if known) if row is None else row
        message = f"column {shown(self.name)} takes {self.kind}; row {place + 1} has {shown(self.values[place].as_py())}: {why}"
        return DataError("schema.type", message, hint=HINTS.get(self.kind, NUMBERS_HINT).replace("NAME", repr(self.name)))

    def cast(self, values: pa.Array, why: str) -> pa.Array:
        """Return values in the declared type, each of which must be one."""
        try:
            return values.cast(ARROW_TYPES[self.kind])
        except pa.ArrowInvalid:
            row = next(n for n in range(len(values)) if not _is_castable(values.slice(n, 1), ARROW_TYPES[self.kind]))
            raise self.refused(why, row) from None


def typed_rows(rows: Any, inputs: Mapping[str, str], source_names: Mapping[str, str] = MappingProxyType({})) -> pd.DataFrame:
    """Return the columns of `inputs`, [n] rows in their order with their index, as a dataset's frame has them.

    Args:
        rows: a pandas frame or an Arrow table; or as JSON has them: a list of records, one record, or columns by name.
        inputs: columns to their types as the YAML declares them (`int64`, `int64, nullable`); a nullable one may be absent.
        source_names: what the source calls some of these columns; a caller may do so too.

    Raises:
        DataError: `schema.missing`, a column, or the names of all; `schema.names`; `schema.type`; `transform.precision`.
    """
    frame = _frame(rows, {*inputs, *source_names.values()})
    of_source = {source: name for name, source in source_names.items() if name not in frame.columns and source not in inputs}
    frame = frame.rename(columns=of_source) if of_source.keys() & set(frame.columns) else frame
    alike = {str(column).casefold(): column for column in frame.columns if column not in inputs}
    if other := [name for name in inputs if name not in frame.columns and name.casefold() in alike]:
        message = f"the rows have {shown(alike[other[0].casefold()])}, and no {_listed(other[:1], inputs)}"
        raise DataError("schema.missing", message, hint=f"did you mean {shown(other[0])}?")
    if frame.shape != (0, 0) and (missing := _missing(frame, inputs)):
        if not any(isinstance(name, str) for name in frame.columns):
            message = f"the rows have no names of columns, as arrays have none; the model takes {_listed(inputs, inputs)}"
            raise DataError("schema.missing", message, hint="give a pandas frame, or a list of records")
        raise DataError("schema.missing", f"the rows lack {_listed(missing, inputs)}", hint="the model scores by them")
    columns = {name: _typed(frame, name, declared.partition(",")[0]) for name, declared in inputs.items()}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame))).set_axis(frame.index, axis="index")


def _missing(frame: pd.DataFrame, inputs: Mapping[str, str]) -> list[str]:
    """Return the columns that the rows lack: those that are needed, or all where there is none of them."""
    absent = [name for name in inputs if name not in frame.columns]
    return absent if len(absent) == len(inputs) else [name for name in absent if not inputs[name].endswith("nullable")]


def _frame(rows: Any, names: Collection[str]) -> pd.DataFrame:
    """Return the rows as a frame, whatever holds them; `names` are those that columns may have."""
    if isinstance(rows, pa.Table):
        frame: pd.DataFrame = rows.to_pandas(types_mapper=pd.ArrowDtype)
        return frame
    if isinstance(rows, Mapping):
        if not any(pd.api.types.is_list_like(value) for value in rows.values()):
            return pd.DataFrame([rows])
        if all(isinstance(value, Mapping) for value in rows.values()) and not rows.keys() & set(names):
            return pd.DataFrame(list(rows.values()), index=list(rows))
    return rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)


def _typed(frame: pd.DataFrame, name: str, kind: str) -> Any:
    """Return one column without its index."""
    if name not in frame.columns:
        return pandas_column(name, pa.chunked_array([pa.nulls(len(frame), ARROW_TYPES[kind])]))
    found = frame[name]
    if isinstance(found, pd.DataFrame):
        raise DataError("schema.names", f"the rows have {found.shape[1]} columns {shown(name)}", hint="give one")
    if kind in OF_FRAMES and found.dtype == OF_FRAMES[kind]:
        return found.array
    values = _arrow(found, name, kind)
    if values.null_count == len(values):
        converted = pa.nulls(len(values), ARROW_TYPES[kind])
    else:
        converted = READERS.get(kind, _number)(_Column(name, kind, values))
    return pandas_column(name, pa.chunked_array([converted]))


def _arrow(found: pd.Series[Any], name: str, kind: str) -> pa.Array:
    """Return a column as Arrow has it, without dictionaries and NaN.

    Raises:
        DataError: `schema.type`, its values are of several types, or of none that a column may have.
    """
    if isinstance(found.dtype, pd.DatetimeTZDtype):
        # pyarrow's own way is deprecated in pandas. A day is that of the column's own clock.
        if kind != "date":
            return pa.array(found.dt.tz_convert(None), from_pandas=True).cast(pa.timestamp(found.dtype.unit, tz="UTC"))
        found = found.dt.tz_localize(None)
    try:
        values = pa.array(found, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        types = sorted({type(value).__name__ for value in found.dropna()})
        message = f"column {shown(name)} takes {kind}; these rows have values of {', '.join(types)}"
        raise DataError("schema.type", message, hint=HINTS.get(kind, NUMBERS_HINT).replace("NAME", repr(name))) from None
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), None, values)
    # Arrow reads those without an offset in UTC beside others.
    if found.dtype == object and pa.types.is_timestamp(values.type) and any(value.tzinfo is None for value in found.dropna()):
        return values.cast(pa.timestamp(values.type.unit))
    return values


def _number(column: _Column) -> pa.Array:
    values = column.values
    if pa.types.is_decimal(values.type):
        # Arrow's own conversion to floats does not give the nearest one.
        exact = values.to_pylist()
        if column.kind in FLOATS:
            return _float(column, pa.array([None if value is None else float(value) for value in exact], pa.float64()))
        if (row := next((n for n, value in enumerate(exact) if value is not None and value % 1), None)) is not None:
            raise column.refused("it is no whole number", row)
        values = pa.array([None if value is None else int(value) for value in exact])
    elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise column.refused("it is no number")
    return _float(column, values) if column.kind in FLOATS else as_declared(values, column.kind, column.name)


def _float(column: _Column, values: pa.Array) -> pa.Array:
    """Return fractions as the nearest float, and integers as they are."""
    found = values.cast(ARROW_TYPES[column.kind], safe=False)
    if pa.types.is_integer(values.type):
        if _is_castable(values, found.type):
            return found
        # Arrow takes none above the first that the type lacks.
        pairs = enumerate(zip(values.to_pylist(), found.to_pylist(), strict=True))
        if (row := next((n for n, (whole, near) in pairs if whole != near), None)) is not None:
            raise column.refused(f"{column.kind} lacks this integer; give {found[row].as_py():.0f} for the nearest", row)
        return found
    is_too_large = pc.fill_null(pc.and_(pc.is_inf(found), pc.is_finite(column.values)), False)
    if (row := is_too_large.index(True).as_py()) >= 0:
        raise column.refused(f"it is too large for {column.kind}", row)
    return found


def _boolean(column: _Column) -> pa.Array:
    values = column.values
    if pa.types.is_boolean(values.type):
        return values
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise column.refused("it is no truth value")
    is_other = pc.fill_null(pc.and_(pc.not_equal(values, 0), pc.not_equal(values, 1)), False)
    if (row := is_other.index(True).as_py()) >= 0:
        raise column.refused("a number that is neither 0 nor 1", row)
    return values.cast(pa.bool_())


def _text(column: _Column) -> pa.Array:
    if not _is_text(column.values):
        raise column.refused("it is no text")
    return column.values.cast(pa.string())


def _day(column: _Column) -> pa.Array:
    values = column.values
    if _is_text(values):
        return column.cast(pc.replace_substring_regex(values, MIDNIGHT, ""), "it is no day of ISO 8601")
    if pa.types.is_date(values.type):
        return values.cast(pa.date32())
    if not pa.types.is_timestamp(values.type):
        raise column.refused("it is no day")
    local = values if values.type.tz is None else pc.local_timestamp(values)
    days = local.cast(pa.date32())
    is_other = pc.fill_null(pc.not_equal(days.cast(local.type), local), False)
    if (row := is_other.index(True).as_py()) >= 0:
        raise column.refused("it has a time of day", row)
    return days


def _instant(column: _Column) -> pa.Array:
    values = column.values
    if _is_text(values):
        shortened = pc.replace_substring_regex(values, ZEROS_OF_NANOSECONDS, r"\1")
        return column.cast(shortened, "it is no instant of ISO 8601 with an offset, to the microsecond")
    if not pa.types.is_timestamp(values.type):
        raise column.refused("it is no instant" if pa.types.is_date(values.type) else "a number has no unit and no zone")
    if values.type.tz is None:
        raise column.refused("it has no offset from UTC")
    return column.cast(values, "it is no whole microsecond; dt.floor('us') rounds")


READERS: Final[Mapping[str, Callable[[_Column], pa.Array]]] = {"boolean": _boolean, "string": _text, "date": _day, "timestamp": _instant}


def _is_text(values: pa.Array) -> bool:
    kind = values.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_castable(value: pa.Array, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _listed(names: Iterable[str], inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{shown(name)} ({inputs[name]})" for name in names)
