"""Rows of Arrow as pandas, batch by batch as they would be in one piece.

A pandas column of integers has another type where a value is missing (float64), and one of booleans too (object). What reads batches
must see one type, whether or not the batch at hand is one with a missing value: expressions and transforms go by it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa


class Columns(Protocol):
    """Rows whose columns can be read one at a time."""

    @property
    def schema(self) -> pa.Schema: ...

    def column(self, name: str) -> pa.ChunkedArray: ...


def nullable_columns(rows: Columns) -> frozenset[str]:
    """Return the columns of integers and booleans that have a null in any row."""
    return frozenset(name for name in names_of_changing_types(rows.schema) if rows.column(name).null_count)


def names_of_changing_types(schema: pa.Schema) -> list[str]:
    """Return the columns whose type in pandas is another one where a value is missing."""
    return [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)]


def pandas_rows(batch: pa.Table, nullable: Collection[str]) -> pd.DataFrame:
    """Return a batch as pandas.

    Args:
        nullable: what `nullable_columns` returned for all rows.
    """
    frame: pd.DataFrame = batch.to_pandas()
    for name in sorted(set(nullable) & set(batch.column_names)):
        if not batch[name].null_count:
            wide = object if pa.types.is_boolean(batch.schema.field(name).type) else np.float64
            frame[name] = frame[name].astype(wide)
    return frame


def pandas_column(name: str, values: pa.ChunkedArray) -> pd.Series[Any]:
    """Return a whole column as it would be in a frame."""
    column: pd.Series[Any] = pa.table({name: values}).to_pandas()[name]
    return column
