"""The YAML's types of columns, in Arrow's words; `training.sql.expressions` has them in DuckDB's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""A timestamp is an instant: microseconds, in UTC."""
