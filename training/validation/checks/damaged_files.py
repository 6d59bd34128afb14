"""Which file of a snapshot cannot be decoded: partitions are stored byte for byte, so their pages are first read by validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.snapshot.parquet_parts import CHUNK_ROWS
from training.errors import DataError, first_line
from training.runtime.exhausted_resources import machine_limit
from training.sql.expressions import literal
from training.validation.snapshot_view import TableView


@contextmanager
def naming_damage(views: Sequence[TableView]) -> Iterator[None]:
    """Name the file where reading the tables' files fails because of what is in one.

    Raises:
        DataError: `format.parquet`. An error that has another reason is raised as it is.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as err:
        found = None if machine_limit(err) else _first_damaged(views)
        if found is None:
            raise
        part, why = found
        message = f"{part} cannot be read as Parquet: {why}"
        raise DataError("format.parquet", message, hint="write the file of this name or day again, texts as UTF-8") from err


def _first_damaged(views: Sequence[TableView]) -> tuple[str, str] | None:
    """Return the first part that cannot be decoded, and why not."""
    for view in views:
        for part, path in zip(view.facts["parts"], view.source.paths(), strict=True):
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    for batch in file.iter_batches(CHUNK_ROWS, use_threads=False):
                        batch.validate(full=True)
                # Statistics and footers that Arrow does not look at.
                rows = f"read_parquet({literal(str(path))}, hive_partitioning = false)"
                view.connection.sql(f"SELECT max(COLUMNS(*)) FROM {rows}").to_arrow_table()  # noqa: S608 - a quoted path
            except (duckdb.InvalidInputException, duckdb.ConversionException, pa.ArrowException, OSError) as err:
                return None if machine_limit(err) else (part, first_line(err))
    return None
