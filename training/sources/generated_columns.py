"""Columns that ingest writes, because the file lacks them: the number of a row, the begin of its partition, a value that a folder names."""

from __future__ import annotations

import struct
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from training.contracts import microseconds_of
from training.errors import DataError, shown
from training.sources.arrow_schema import type_name
from training.sources.listing import path_below
from training.sources.table_contract import TableContract
from training.spec.schedule.partitions import bounds_of, values_at
from training.sql.arrow_types import ARROW_TYPES


def generated_column(name: str, num_rows: int, contract: TableContract, source: str, partition: str | None) -> pa.Array:
    """Return a generated column of a part's rows.

    Args:
        source: URI of the part.
        partition: its name; None: it is in none.

    Raises:
        DataError: `partition.value`, no folder says the value, or it is of another type.
    """
    column = contract.columns[name]
    if column.generated == "row_number":
        # By its bytes: `pa.array` would import pandas.
        return pa.Array.from_buffers(pa.int64(), num_rows, [None, pa.py_buffer(np.arange(num_rows, dtype=np.int64))])
    if column.generated == "partition_value":
        return _value_of_path(column.name_at_source(name), ARROW_TYPES[column.type], num_rows, contract, source)
    if partition is None:
        return pa.nulls(num_rows, ARROW_TYPES["timestamp"])
    return pa.repeat(instant_scalar(bounds_of(partition, ZoneInfo(contract.timezone))[0]), num_rows)


def _value_of_path(name: str, kind: pa.DataType, num_rows: int, contract: TableContract, source: str) -> pa.Array:
    values = values_at(contract.partition, path_below(contract.place, source))
    if name not in values:
        hint = f"the path of each file needs a folder {name}=VALUE below uri, or partition the placeholder {{{name}}}"
        raise DataError("partition.value", f"{source}: no folder says the value of {shown(name)}", hint=hint)
    text = values[name]
    if text is None:
        return pa.nulls(num_rows, kind)
    data = text.encode()
    offsets = pa.py_buffer(struct.pack("<ii", 0, len(data)))
    try:
        value = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)]).cast(kind)
    except pa.ArrowInvalid as err:
        message = f"{source}: the folder says {shown(text)} for {shown(name)}, which is declared as {type_name(kind)}"
        raise DataError("partition.value", message, hint="correct the type in the YAML, or the folder") from err
    return pa.repeat(value[0], num_rows)


def instant_scalar(moment: datetime) -> pa.Scalar:
    """Return an instant as Arrow's. Made of bytes: PyArrow imports pandas to convert a Python value, 0.25 s of CPU."""
    data = pa.py_buffer(struct.pack("<q", microseconds_of(moment)))
    return pa.Array.from_buffers(ARROW_TYPES["timestamp"], 1, [None, data])[0]
