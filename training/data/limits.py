"""The largest table that is read: a share of the memory, checked before a file is decoded.

A small Parquet file can hold very many rows: 80 million equal integers take 3 MB. Its footer says how many there are, so the check
needs no reading. The stages after ingest hold a table several times (Arrow, pandas, the model's input).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import PydanticCustomError

from training.errors import DataError, Problem, SpecError
from training.memory import memory_limit_bytes
from training.spec.values import parse_size, told

VARIABLE: Final = "NIGHTSHIFT_TABLE_MEMORY"
DEFAULT_SHARE: Final = 0.25
"""Of the machine's or the control group's memory, where the variable is not set."""
VARIABLE_WIDTH_BYTES: Final = 16
"""Least that a value without a fixed width counts for: its offset and a short text."""


def table_limit_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return the largest size of one table, decoded, in bytes.

    Raises:
        SpecError: `resources.memory`, the variable is set to something that is not a size.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return int(DEFAULT_SHARE * memory_limit_bytes())
    try:
        return parse_size(text)
    except PydanticCustomError as err:
        hint = "write a number and a unit: 512MiB, 16GiB"
        problem = Problem(code="resources.memory", field=VARIABLE, message=f"{told(text)} is not a size: {err.message()}", hint=hint)
        raise SpecError("environment", [problem]) from err


def check_size(size_bytes: int, limit_bytes: int, *, what: str, rows: int | None = None) -> None:
    """Raise DataError `source.too_large` where a file or a table is larger than the limit.

    Args:
        size_bytes: decoded, or of the file where that is not known yet.
        what: the file or table, as messages name it.
        rows: where they are known.
    """
    if size_bytes <= limit_bytes:
        return
    counted = "" if rows is None else f"{rows:,} rows, "
    raise DataError(
        "source.too_large",
        f"{what}: {counted}about {_gib(size_bytes)} in memory, limit {_gib(limit_bytes)}",
        hint=f"shorten data.source.window, ignore columns, or raise {VARIABLE} (default: a quarter of the memory)",
        details={"size_bytes": size_bytes, "limit_bytes": limit_bytes},
    )


def decoded_bytes(file: pq.ParquetFile, columns: Collection[str]) -> int:
    """Return about how many bytes columns of a Parquet file have once they are decoded, by its footer alone.

    Exact for types of a fixed width. Texts count as stored without compression, and at least `VARIABLE_WIDTH_BYTES` each: a text
    that a dictionary holds once for many rows takes more than that.
    """
    metadata, schema = file.metadata, file.schema_arrow
    stored: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            name = chunk.path_in_schema.partition(".")[0]
            stored[name] = stored.get(name, 0) + chunk.total_uncompressed_size
    total = 0
    for name in columns:
        width = _width_bytes(schema.field(name).type)
        total += metadata.num_rows * width if width else max(metadata.num_rows * VARIABLE_WIDTH_BYTES, stored.get(name, 0))
    return total


def _width_bytes(kind: pa.DataType) -> float:
    """Return the bytes of one value; 0 for types without a fixed width."""
    if pa.types.is_dictionary(kind):
        return 0
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return 0


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.2f} GiB"
