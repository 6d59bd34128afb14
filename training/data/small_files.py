"""Many small files of a table as one: DuckDB keeps some KB of each file of a query, and opening one takes longer than reading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.data.validation.snapshot_view import KEPT_FOOTERS, MERGED_BYTES, MERGED_FOLDER, ParquetParts
from training.sources.tables import ARROW_TYPES


def merged(paths: Sequence[Path], types: Mapping[str, str], folder: Path, table: str) -> list[Path]:
    """Return the paths, or that of one file with their rows in their order, where they are many and small.

    Args:
        paths: of a table's Parquet files.
        types: of the columns that all of them have, by the YAML's names.
        folder: the new file is below it.
        table: names the new file.
    """
    if len(paths) <= KEPT_FOOTERS or sum(path.stat().st_size for path in paths) > len(paths) * MERGED_BYTES:
        return list(paths)
    path = folder / MERGED_FOLDER / f"{table}.parquet"
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in types.items()])
    with pq.ParquetWriter(path, schema, compression="lz4", write_statistics=False) as writer:
        for rows in ParquetParts(paths).chunks(types):
            writer.write_table(rows)
    return [path]
