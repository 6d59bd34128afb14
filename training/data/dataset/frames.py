"""Rows of Arrow as pandas, batch by batch as they would be in one piece.

A pandas column of integers has another type where a value is missing (float64), and one of booleans too (object). What reads batches
must see one type, whether or not the batch at hand is one with a missing value: expressions and transforms go by it. Integers that float64
lacks are kept: a column that has both those and a missing value is of pandas' type Int64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    # `ingest` reads a constant of this module, and no frame.
    import pandas as pd

FIRST_INEXACT: Final = 1 << 53
"""Below it float64 has every integer; at it, the next one has become equal."""
EXACT: Final = "Int64"


class ArrowColumns(Protocol):
    """Rows whose columns can be read one at a time."""

    @property
    def schema(self) -> pa.Schema: ...

    def column_batches(self, name: str) -> Iterator[pa.ChunkedArray]: ...


def nullable_columns(rows: ArrowColumns) -> dict[str, str]:
    """Return the columns of integers and booleans that have a null in any row, each with the type that pandas has for them."""
    found = {name: nullable_type(rows.schema.field(name).type, rows.column_batches(name)) for name in names_of_changing_types(rows.schema)}
    return {name: kind for name, kind in found.items() if kind is not None}


def names_of_changing_types(schema: pa.Schema) -> list[str]:
    """Return the columns whose type in pandas is another one where a value is missing."""
    return [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)]


def nullable_type(kind: pa.DataType, batches: Iterable[pa.ChunkedArray]) -> str | None:
    """Return the type in pandas of a column of integers or booleans with a null in some row; None: it has none.

    Args:
        batches: all rows of the column.
    """
    narrow = narrow_type(kind)
    has_null = has_large = False
    for values in batches:
        has_null |= values.null_count > 0
        if narrow is not None:
            if has_null:
                return narrow
            continue
        has_large = has_large or is_inexact(*pc.min_max(values).as_py().values())
        if has_null and has_large:
            return EXACT
    return "float64" if has_null else None


def narrow_type(kind: pa.DataType) -> str | None:
    """Return the type in pandas of booleans, or integers of fewer than 64 bits, with a null; None: it depends on the values."""
    if pa.types.is_boolean(kind):
        return "object"
    return "float64" if kind.bit_width < 64 else None


def is_inexact(least: int | None, largest: int | None) -> bool:
    """Return whether float64 lacks integers near one of these."""
    return any(value is not None and abs(value) >= FIRST_INEXACT for value in (least, largest))


def pandas_rows(batch: pa.Table, nullable: Mapping[str, str]) -> pd.DataFrame:
    """Return a batch as pandas.

    Args:
        nullable: what `nullable_columns` returned for all rows.
    """
    frame: pd.DataFrame = batch.to_pandas()
    for name in sorted(nullable.keys() & set(batch.column_names)):
        wide: Any = nullable[name]
        if wide == EXACT:
            frame[name] = _exact(batch[name])
        elif not batch[name].null_count:
            frame[name] = frame[name].astype(wide)
    return frame


def pandas_column(name: str, values: pa.ChunkedArray) -> pd.Series[Any]:
    """Return a whole column as it would be in a frame."""
    kind = values.type
    if pa.types.is_integer(kind) and values.null_count and nullable_type(kind, [values]) == EXACT:
        return _exact(values).rename(name)
    column: pd.Series[Any] = pa.table({name: values}).to_pandas()[name]
    return column


def _exact(values: pa.ChunkedArray) -> pd.Series[Any]:
    import pandas as pd

    found: pd.Series[Any] = values.cast(pa.int64()).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return found
