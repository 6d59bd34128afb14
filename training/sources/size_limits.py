"""The largest table that is read: a share of the memory, checked before a file is decoded.

A small Parquet file can hold very many rows: 80 million equal integers take 3 MB. Its footer says how many there are, so the check
reads only the texts of columns with a dictionary, without decoding them. The stages after ingest hold a table several times (Arrow,
pandas, the model's input).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.errors import DataError
from training.installation import Variable
from training.runtime.available_memory import memory_limit_bytes
from training.runtime.stage_memory import size_of

TABLE_MEMORY: Final = Variable(
    name="NIGHTSHIFT_TABLE_MEMORY",
    kind="size",
    default="a quarter of the memory",
    meaning="size limit of a decoded table: `16GiB` (docs/data.md)",
)
DEFAULT_SHARE: Final = 0.25
"""Of the machine's or the control group's memory, where the variable is not set."""
VARIABLE_WIDTH_BYTES: Final = 16
"""Least that a value without a fixed width counts for: its offset and a short text."""
OFFSET_BYTES: Final = 4
DELTA: Final = "DELTA_BYTE_ARRAY"
REPEATING: Final = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY", DELTA})
"""Encodings that store a repeated text, or its beginning, once."""
BATCH_ROWS: Final = 64 * 1024


def table_limit_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return the largest size of one table, decoded, in bytes.

    Raises:
        SpecError: `resources.memory`, the variable is set to something that is not a size.
    """
    return size_of(TABLE_MEMORY, int(DEFAULT_SHARE * memory_limit_bytes()), environ)


def check_size(size_bytes: int, limit_bytes: int, *, what: str, rows: int | None = None) -> None:
    """Raise DataError `source.too_large` where a file or a table is larger than the limit.

    Args:
        size_bytes: decoded, or of the file where that is not known yet.
        what: the file or table, for messages.
        rows: where they are known.
    """
    if size_bytes <= limit_bytes:
        return
    counted = "" if rows is None else f"{rows:,} rows, "
    raise DataError(
        "source.too_large",
        f"{what}: {counted}about {_gib(size_bytes)} in memory, limit {_gib(limit_bytes)}",
        hint=f"shorten data.source.window, ignore columns, or raise {TABLE_MEMORY.name} (default: a quarter of the memory)",
        details={"size_bytes": size_bytes, "limit_bytes": limit_bytes},
    )


def decoded_bytes(file: pq.ParquetFile, columns: Collection[str], *, path: Path, limit_bytes: int) -> int:
    """Return about how many bytes columns of a Parquet file have once they are decoded.

    Exact for types of a fixed width, by the footer alone. Texts count as stored without compression, and at least
    `VARIABLE_WIDTH_BYTES` each. Encodings that store a repeated text once are counted value by value, in batches: one text of
    50,000 characters in 2 million rows takes 5 KB in the file and 100 GB in memory. Counting stops once the total exceeds the limit.

    Args:
        path: of the file, which is opened a second time where texts are counted.
        limit_bytes: the largest size that matters to the caller.

    Raises:
        pa.ArrowException, OSError: a page is damaged.
    """
    metadata, schema = file.metadata, file.schema_arrow
    total = 0
    texts = []
    for name in columns:
        width = _width_bytes(schema.field(name).type)
        total += metadata.num_rows * (width or VARIABLE_WIDTH_BYTES)
        texts += [] if width else [name]
    for name in texts:
        if total > limit_bytes:
            break
        # The least that each value counts for is part of the total already.
        least = metadata.num_rows * VARIABLE_WIDTH_BYTES
        total += max(0, _text_bytes(path, metadata, name, limit_bytes - total + least) - least)
    return int(total)


def _text_bytes(path: Path, metadata: pq.FileMetaData, name: str, limit_bytes: int) -> int:
    """Return the size of a column without a fixed width, or the first running total above the limit."""
    total = 0
    # A name may have dots, as those of columns in columns do.
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    alone = [number for number, path in enumerate(paths) if path == name]
    numbers = alone or [number for number, path in enumerate(paths) if path.startswith(f"{name}.")]
    for group in range(metadata.num_row_groups):
        # Reading fails where the metadata of a chunk is damaged; looking at it would end the process.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BATCH_ROWS) as file:
            next(file.iter_batches(1, row_groups=[group], columns=[name]), None)
        chunks = [metadata.row_group(group).column(number) for number in numbers]
        stored = sum(chunk.total_uncompressed_size for chunk in chunks)
        encodings = {encoding for chunk in chunks for encoding in chunk.encodings}
        is_text = chunks[0].path_in_schema == name and chunks[0].physical_type == "BYTE_ARRAY"
        if not is_text or not encodings & REPEATING:
            total += stored
            continue
        is_delta = DELTA in encodings
        # Batches of a dictionary are as small as they are stored; of other encodings a batch may have the size of the limit.
        rows = min(BATCH_ROWS, max(1, limit_bytes // max(stored, 1))) if is_delta else BATCH_ROWS
        with pq.ParquetFile(path, read_dictionary=None if is_delta else [name]) as file:
            for batch in file.iter_batches(rows, row_groups=[group], columns=[name]):
                total += OFFSET_BYTES * len(batch) + _value_bytes(batch.column(name))
                if total > limit_bytes:
                    return total
    return total


def _value_bytes(values: pa.Array) -> int:
    lengths = pc.binary_length(values.dictionary).take(values.indices) if pa.types.is_dictionary(values.type) else pc.binary_length(values)
    return int(pc.sum(lengths).as_py() or 0)


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
