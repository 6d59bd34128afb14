"""Parquet files of a table as `init` reads them: each column in one type of the YAML, with the keys that it needs.

What `ingest` would refuse is left out here by the same check. Files that ingest would write again are written to a scratch folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from training.errors import DataError, first_line
from training.sources.arrow_schema import schema_of, type_name
from training.sources.content import other_content
from training.sources.snapshot_files import int96_columns
from training.sources.stored_types import (
    EXACT_DOUBLE_DIGITS,
    EXACT_INTEGER_DIGITS,
    EncodingCounts,
    check_int96,
    conformed,
    index_columns,
    is_changed,
    nested_remedy,
)
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES

BATCH_ROWS: Final = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainParquet:
    """Files in which each column has the type that it is declared with."""

    headers: Mapping[Path, tuple[str, ...]]
    """Of each file, its columns in order."""
    originals: Mapping[Path, Path]
    """File to the one that the table has."""
    columns: Mapping[str, Column]
    left_out: Mapping[str, str]
    """Column to the reason."""


def plain_parquet(paths: Sequence[Path], folder: Path, *, zone: str) -> PlainParquet:
    """Return the files, or copies in the scratch folder of those that have columns in another encoding.

    Args:
        zone: of times that have none.

    Raises:
        DataError: `data.format`, `schema.names`.
    """
    headers: dict[Path, tuple[str, ...]] = {}
    originals: dict[Path, Path] = {}
    footers = {path.resolve(): _footer(path) for path in paths}
    # Without rows, a file may have no columns.
    footers = {path: footer for path, footer in footers.items() if footer.schema.names or footer.num_rows} or footers
    indexes = {path: index_columns(footer.schema, ()) for path, footer in footers.items()}
    left_out = {name: "it is the index of pandas" for names in indexes.values() for name in sorted(names)}
    columns: dict[str, Column] = {}
    for name in dict.fromkeys(name for footer in footers.values() for name in footer.schema.names):
        if name not in left_out:
            found = _column(name, footers, zone)
            columns |= {name: found} if isinstance(found, Column) else {}
            left_out |= {name: found} if isinstance(found, str) else {}
    for number, (path, footer) in enumerate(footers.items()):
        plain, names = path, tuple(name for name in footer.schema.names if name not in indexes[path])
        if indexes[path] or is_changed(footer.schema, footer.num_rows, columns, footer.int96):
            plain = (folder / f"plain-{number}.parquet").resolve()
            _write(path, names, columns, left_out, plain, footer.int96)
        headers[plain], originals[plain] = names, path
    kept = {name: column for name, column in columns.items() if name not in left_out}
    return PlainParquet(headers=headers, originals=originals, columns=kept, left_out=left_out)


@dataclass(frozen=True, slots=True)
class _Footer:
    schema: pa.Schema
    num_rows: int
    int96: frozenset[str]


def _footer(path: Path) -> _Footer:
    try:
        with pq.ParquetFile(path) as file:
            found = _Footer(file.schema_arrow, file.metadata.num_rows, int96_columns(file))
    except (pa.ArrowInvalid, OSError) as err:
        damaged = DataError("data.format", f"{path} is not a Parquet file: {first_line(err)}", hint="write the file again")
        raise other_content(path, source=str(path), wanted="Parquet") or damaged from err
    schema_of(found.schema, source=str(path))
    return found


def _column(name: str, footers: Mapping[Path, _Footer], zone: str) -> Column | str:
    """Return the declaration of a column, by its types in the files that have rows, or why there is none."""
    kinds = pa.types
    found = {
        path: footer.schema.field(name).type
        for path, footer in footers.items()
        if name in footer.schema.names and footer.num_rows and not kinds.is_null(footer.schema.field(name).type)
    }
    types = {kind.value_type if kinds.is_dictionary(kind) else kind for kind in found.values()}
    names = {type_name(kind) for kind in types}
    if not names:
        return "no cell has a value"
    if len(names) == 1 and names <= ARROW_TYPES.keys():
        return Column.model_validate({"type": names.pop()})
    if all(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) for kind in types):
        return _number(types)
    if all(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) for kind in types):
        return Column(type="string")
    if all(kinds.is_timestamp(kind) for kind in types):
        local = [path for path, kind in found.items() if kind.tz is None]
        if local and all(name in footers[path].int96 for path in local):
            return Column(type="timestamp", stored_as="int96_utc")
        return Column(type="timestamp", zone=zone if local else None)
    if len(names) == 1:
        reason = f"type {(kind := names.pop())} has no name in the YAML"
        return f"{reason}; {how}" if (how := nested_remedy(kind, name)) else reason
    (first, kind), (other, another) = next(
        (one, two) for one in found.items() for two in found.items() if type_name(one[1]) != type_name(two[1])
    )
    return f"it is of type {type_name(kind)} in {first.name} and {type_name(another)} in {other.name}"


def _number(types: set[pa.DataType]) -> Column:
    decimals = [kind for kind in types if pa.types.is_decimal(kind)]
    floats = [kind for kind in types if pa.types.is_floating(kind)]
    digits, scale = max((kind.precision for kind in decimals), default=0), max((kind.scale for kind in decimals), default=0)
    if not floats and not scale:
        return Column(type="int64", scale=0 if digits > EXACT_INTEGER_DIGITS else None)
    if len(floats) == len(types) and all(kind.bit_width <= pa.float32().bit_width for kind in types):
        return Column(type="float")
    return Column(type="double", stored_as="decimal" if digits > EXACT_DOUBLE_DIGITS else None)


def _write(
    path: Path, names: Sequence[str], columns: Mapping[str, Column], left_out: dict[str, str], plain: Path, int96: frozenset[str]
) -> None:
    """Write the rows in the types of `columns`; a column with a value that is not of its type is left out from then on."""
    schema = pa.schema([(name, ARROW_TYPES[columns[name].type] if name in columns else pa.null()) for name in names])
    for name in sorted(int96 & columns.keys() - left_out.keys()):
        try:
            check_int96(path, [name], source=str(path))
        except DataError as err:
            left_out[name] = err.message
    with (
        pq.ParquetFile(path, coerce_int96_timestamp_unit="us", pre_buffer=False) as file,
        pq.ParquetWriter(plain, schema, compression="lz4") as writer,
    ):
        for batch in file.iter_batches(BATCH_ROWS, columns=[name for name in names if name not in left_out]):
            cells = []
            for field in schema:
                cell = pa.chunked_array([pa.nulls(len(batch), field.type)])
                if field.name not in left_out:
                    alone = pa.Table.from_batches([batch]).select([field.name])
                    try:
                        cell = conformed(alone, columns, source=str(path), counts=EncodingCounts(), int96=int96).column(0)
                    except DataError as err:
                        left_out[field.name] = err.message
                cells.append(cell)
            writer.write_table(pa.table(cells, schema=schema))
