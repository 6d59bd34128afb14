"""A part of a source becomes one file of a snapshot: unchanged, or read, computed, cut to visible rows, and written to a new file."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.errors import DataError, NightshiftError, UnavailableError, first_line, shown
from training.runtime.exhausted_resources import machine_limit
from training.sanitizing import masked
from training.sources.arrow_schema import check_named, declared_columns, require, schema_of, type_name
from training.sources.content import other_content
from training.sources.derived_columns import derive
from training.sources.generated_columns import generated_column, instant_scalar
from training.sources.interface import ArrowStream, PartContent, SourceWindow
from training.sources.local_times import Microseconds
from training.sources.row_filters import selected
from training.sources.rows_outside import RowsOutside
from training.sources.size_limits import check_size, decoded_bytes
from training.sources.stored_types import EncodingCounts, check_int96, conformed, index_columns, is_changed, nested_remedy, remedy
from training.sources.table_contract import TableContract
from training.sources.text_columns import with_typed_texts
from training.sql.arrow_types import ARROW_TYPES

ROW_GROUP_ROWS: Final = 128 * 1024
COMPRESSION: Final = "zstd"
FOOTER_END_BYTES: Final = 8
"""Of a Parquet file: the footer's length, and the magic number."""
SIGNATURE_BYTES: Final = 28
"""Nonce and tag of AES-GCM."""


@dataclass(frozen=True, slots=True)
class LabelTimes:
    """Event times of the rows of the window, in microseconds since 1970: [n] with a label that is known, [m] without."""

    known_us: Microseconds
    unknown_us: Microseconds


@dataclass(frozen=True, slots=True)
class TablePart:
    """One Parquet file on local disk: `schema` is column name to type name."""

    path: Path
    rows: int
    schema: dict[str, str]
    decoded_bytes: int
    """In memory: what later stages hold of it, at least once."""
    label_times: LabelTimes | None = None
    """Of the main table's rows, where it says when labels are known."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Rows of the window that `where` and `sample` left out."""


def part_as_is(contract: TableContract, path: Path, *, source: str, limit_bytes: int, counts: EncodingCounts) -> TablePart | None:
    """Return a Parquet file's rows and schema, from its footer; None: a column is stored in another type than it is read in.

    Args:
        limit_bytes: the largest size of the rows, decoded; a larger one is not measured to its end.

    Raises:
        DataError: `data.empty`, `format.parquet`, `schema.names`.
    """
    with _open_parquet(path, source=source) as file:
        found, num_rows = file.schema_arrow, file.metadata.num_rows
        schema = schema_of(found, source=source)
        check_named(schema, (), source=source)
        if is_changed(found, num_rows, contract.columns, int96_columns(file)):
            return None
        declared = [name for name in contract.columns if name in schema]
        size_bytes = _decoded_bytes(file, declared, path, limit_bytes, source=source)
        for name in declared:
            kind = contract.columns[name].type
            if schema[name] == kind and found.field(name).type != ARROW_TYPES[kind]:
                counts.add(name, str(found.field(name).type), kind, num_rows)
        for name in _without_index(contract, found, num_rows, counts):
            del schema[name]
        return TablePart(path, num_rows, schema, size_bytes)


def part_of_rows(
    contract: TableContract,
    rows: pa.Table,
    window: SourceWindow,
    written: Path,
    *,
    source: str,
    outside: RowsOutside | None = None,
    kept: Callable[[pa.Table], pa.Array] | None = None,
) -> TablePart:
    """Add a part's derived columns, keep the rows of the window, sort them, and write them to a file.

    The bytes written depend on the rows, the contract and the window alone.

    Args:
        rows: of `read_rows`.
        written: path of the file to write.
        source: what to call the part in messages.
        outside: is given the times of all rows; None: they are not counted.
        kept: returns the numbers of the rows that are the newest of their key, sorted; None: all.

    Raises:
        DataError: of `derive`, `of_window`, `selected` and `with_known_label`.
    """
    every = derive(contract, rows, source=source)
    every = every if kept is None else every.take(kept(every))
    table = of_window(contract, every, window, source=source)
    if outside is not None:
        outside.add(_microseconds(every, contract), window)
    table, left_out = selected(contract, table, source=source)
    table, unknown_us = with_known_label(contract, table, window, source=source)
    times = None if unknown_us is None else LabelTimes(_microseconds(table, contract), unknown_us)
    order = [name for name in dict.fromkeys((contract.event_time, *contract.key)) if name in table.column_names]
    if order:
        table = table.sort_by([(name, "ascending") for name in order])
    pq.write_table(
        table.replace_schema_metadata(None),
        written,
        compression=COMPRESSION,
        row_group_size=ROW_GROUP_ROWS,
        write_page_checksum=True,
        version="2.6",
    )
    return TablePart(written, table.num_rows, schema_of(table.schema, source=source), table.nbytes, times, left_out)


def read_rows(
    contract: TableContract,
    content: PartContent,
    *,
    source: str,
    limit_bytes: int,
    partition: str | None = None,
    counts: EncodingCounts | None = None,
) -> pa.Table:
    """Return the declared columns that a part has, by their names in the YAML, in the contract's order, with the generated ones.

    Columns that are missing, or of a type that cannot be read as the declared one, are left for validation to report, unless something
    here needs them.

    Args:
        limit_bytes: the largest size of the rows, decoded.
        partition: name of the part's; None: it is in none.
        counts: of the table; None: nothing is counted.

    Raises:
        DataError: of `declared_columns`, `conformed` and `with_typed_texts`; `data.empty`, `format.parquet`; `partition.value`;
            `source.failed`, the rows cannot be read; `source.too_large`, of a Parquet file by its footer and dictionaries, before a row
            is decoded.
        UnavailableError: `source.unavailable`, the connection of a stream broke.
    """
    there, counts = contract.at_source(), counts or EncodingCounts()
    if isinstance(content.rows, Path):
        table = _read_parquet(there, content.rows, counts, source=source, limit_bytes=limit_bytes)
    else:
        table = _collected(content.rows, source=source, limit_bytes=limit_bytes)
        table = table.select(_present(there, table.schema, table.num_rows, counts, source=source))
        table = conformed(table, there.columns, source=source, counts=counts)
    names = {found: name for name, found in contract.source_names.items()}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    table = with_typed_texts(contract, table, source=source)
    for name, column in contract.columns.items():
        if column.generated is not None:
            table = table.append_column(name, generated_column(name, table.num_rows, contract, source, partition))
    return table.select([name for name in contract.columns if name in table.column_names])


def _read_parquet(contract: TableContract, path: Path, counts: EncodingCounts, *, source: str, limit_bytes: int) -> pa.Table:
    with _open_parquet(path, source=source) as file:
        if not file.schema_arrow.names and not file.metadata.num_rows:
            return pa.schema([(name, ARROW_TYPES[column.type]) for name, column in contract.columns.items()]).empty_table()
        present = _present(contract, file.schema_arrow, file.metadata.num_rows, counts, source=source)
        size_bytes = _decoded_bytes(file, present, path, limit_bytes, source=source)
        check_size(size_bytes, limit_bytes, what=source, rows=file.metadata.num_rows)
        try:
            rows, int96 = file.read(columns=present).select(present), int96_columns(file)
            check_int96(path, sorted(int96.intersection(present)), source=source)
        except (pa.ArrowException, OSError) as err:
            raise _not_parquet(source, err) from err
        return conformed(rows, contract.columns, source=source, counts=counts, int96=int96)


def _present(contract: TableContract, schema: pa.Schema, num_rows: int, counts: EncodingCounts, *, source: str) -> list[str]:
    """Return the declared columns of a part, in the contract's order."""
    types = schema_of(schema, source=source)
    for name, kind in types.items():
        if name not in contract.columns and name not in contract.ignore and (hint := nested_remedy(kind, name)):
            message = f"{source}: column {shown(name)}, which table {shown(contract.name)} does not declare, is nested: {kind}"
            raise DataError("schema.unexpected", message, hint=hint)
    index = _without_index(contract, schema, num_rows, counts)
    return declared_columns(contract, [name for name in types if name not in index], source=source)


def _without_index(contract: TableContract, schema: pa.Schema, num_rows: int, counts: EncodingCounts) -> set[str]:
    """Return the columns of pandas' index, which are counted, and not read unless the YAML names them."""
    index = index_columns(schema, {*contract.columns, *contract.ignore})
    for name in index:
        counts.add(name, "index of pandas", "no column", num_rows)
    return index


def int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    """Return the columns with instants in Spark's INT96, which says of no zone."""
    columns = (file.metadata.schema.column(number) for number in range(file.metadata.num_columns))
    return frozenset(column.path for column in columns if column.physical_type == "INT96")


def _collected(rows: ArrowStream, *, source: str, limit_bytes: int) -> pa.Table:
    """Return the rows of a stream, which ends as soon as they are larger than the limit."""
    if isinstance(rows, pa.Table):
        return rows
    batches, size_bytes, num_rows = [], 0, 0
    try:
        # What a source's own reader raises would lose its type on the way through a stream of C.
        reader = rows if isinstance(rows, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(rows)
        for batch in reader:
            batches.append(batch)
            size_bytes, num_rows = size_bytes + batch.nbytes, num_rows + batch.num_rows
            check_size(size_bytes, limit_bytes, what=source, rows=num_rows)
        return pa.Table.from_batches(batches, reader.schema)
    except (NightshiftError, MemoryError):
        raise
    except (ConnectionError, TimeoutError) as err:
        raise UnavailableError("source.unavailable", masked(f"{source} cannot be read: {type(err).__name__}: {err}")) from err
    except Exception as err:
        hint = "the log has the stack of the source's own code"
        raise DataError("source.failed", masked(f"{source} cannot be read: {err}"), hint=hint) from err


def of_window(contract: TableContract, table: pa.Table, window: SourceWindow, *, source: str) -> pa.Table:
    """Return the rows of the window. A row whose time is null stays, for validation to report.

    Raises:
        DataError: `schema.missing` or `schema.type` where the times are not there, or are not instants.
    """
    bounds = [(contract.event_time, pc.greater_equal, window.start), (contract.event_time, pc.less, window.end)]
    if contract.event_time is not None and contract.available_after:
        bounds.append((contract.event_time, pc.less_equal, window.as_of - contract.available_after))
    for name, compare, bound in bounds:
        if name is not None and bound is not None:
            column = instants(table, name, source=source)
            table = table.filter(_with_null(compare(column, instant_scalar(bound)), as_value=True))
    return table


def with_known_label(
    contract: TableContract, table: pa.Table, window: SourceWindow, *, source: str
) -> tuple[pa.Table, Microseconds | None]:
    """Return the rows whose label is known, and the event times of the others (None without a `known_at`).

    Where `known_at` is declared nullable, null means not known yet; else such a row stays, for validation to report.

    Raises:
        DataError: of `of_window`.
    """
    if contract.known_at is None:
        return table, None
    declared = contract.columns.get(contract.known_at)
    column = instants(table, contract.known_at, source=source)
    is_known = pc.less_equal(column, instant_scalar(window.as_of))
    is_known = _with_null(is_known, as_value=declared is None or not declared.nullable)
    return table.filter(is_known), _microseconds(table.filter(pc.invert(is_known)), contract)


def _with_null(mask: pa.ChunkedArray, *, as_value: bool) -> pa.ChunkedArray:
    """Return the mask with this value where it is null; `fill_null` would convert a Python value."""
    return pc.or_kleene(mask, pc.is_null(mask)) if as_value else pc.and_kleene(mask, pc.is_valid(mask))


def instants(table: pa.Table, name: str, *, source: str) -> pa.ChunkedArray:
    """Return a column of instants by which rows are selected.

    Raises:
        DataError: `schema.missing`, `schema.type`.
    """
    require({name}, table, "rows are selected by it", source=source)
    column = table.column(name)
    if type_name(column.type) != "timestamp":
        raise DataError(
            "schema.type",
            f"{source}: column {shown(name)} is {column.type}, and rows are selected by it",
            hint=remedy(str(column.type), name) or "it must hold instants: microseconds, in UTC",
        )
    return column


def _microseconds(table: pa.Table, contract: TableContract) -> Microseconds:
    """Return the event times of the rows that have one."""
    if contract.event_time is None:
        return np.empty(0, dtype=np.int64)
    # Not by `to_numpy`, which imports pandas.
    return np.array(np.from_dlpack(table.column(contract.event_time).drop_null().cast(pa.int64()).combine_chunks()), dtype=np.int64)


def _open_parquet(path: Path, *, source: str) -> pq.ParquetFile:
    if path.stat().st_size == 0:
        raise DataError("data.empty", f"{source} has 0 bytes", hint="write the file again; a file of Parquet without rows has a footer")
    try:
        # Nanoseconds, the default, end in the year 2262.
        file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        # A name in a damaged footer need not be UTF-8.
        raise other_content(path, source=source, wanted="Parquet") or _not_parquet(source, err) from err
    if _is_signed(path, file.metadata):
        hint = "write the file without encryption: Nightshift has no keys"
        raise DataError("format.parquet", f"{source} cannot be read as Parquet: its columns are encrypted", hint=hint)
    return file


def _is_signed(path: Path, metadata: pq.FileMetaData) -> bool:
    """Return whether the footer is followed by a signature, as that of encrypted columns is where it is readable itself.

    Arrow has no other way to tell, and ends the process where the metadata of such a column is looked at.
    """
    with path.open("rb") as stream:
        stream.seek(-FOOTER_END_BYTES, os.SEEK_END)
        (length,) = struct.unpack("<i", stream.read(4))
    return bool(length == metadata.serialized_size + SIGNATURE_BYTES)


def _decoded_bytes(file: pq.ParquetFile, columns: list[str], path: Path, limit_bytes: int, *, source: str) -> int:
    try:
        return decoded_bytes(file, columns, path=path, limit_bytes=limit_bytes)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        raise _not_parquet(source, err) from err


def _not_parquet(source: str, err: Exception) -> NightshiftError:
    return machine_limit(err) or DataError(
        "format.parquet", f"{source} cannot be read as Parquet: {first_line(err)}", hint="write the file again"
    )
