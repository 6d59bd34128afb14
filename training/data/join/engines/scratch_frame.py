"""A frame in memory or, above a size, in a file on local disk, and fitting on it batch by batch: for engines of one machine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from training.data.dataset.frames import nullable_columns, pandas_column, pandas_rows
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.contract import LABEL
from training.data.join.derived import DerivedColumn, raw_types
from training.data.join.engines.interface import BATCH_ROWS, Frame
from training.runtime.stage_memory import engine_memory_bytes

MEMORY_BYTES: Final = 64 * 2**20
"""A larger frame goes to disk. A smaller one is not written, and not decoded again for every column."""


def write_rows(path: Path, schema: pa.Schema, batches: Iterator[pa.Table]) -> int:
    """Write batches to a scratch file; return the number of rows."""
    num_rows = 0
    # As they are in memory, so that reading decodes nothing. Only texts are much smaller when compressed.
    has_texts = any(pa.types.is_string(field.type) for field in schema)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if has_texts else None, use_threads=False)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in batches:
            writer.write_table(batch, max_chunksize=BATCH_ROWS)
            num_rows += batch.num_rows
    return num_rows


def read_rows(path: Path, schema: pa.Schema, names: Sequence[str] | None) -> Iterator[pa.Table]:
    """Yield the batches of a scratch file; of the others of its columns nothing is read.

    Args:
        names: columns; None: all.
    """
    fields = None if names is None else [schema.get_field_index(name) for name in names]
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    # Not mapped: pages of a mapped file would count as this process's memory.
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file, options=options) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


@dataclass(frozen=True, kw_only=True)
class ScratchFrame:
    """The rows of one file, or those of them that `kept` names, with the labels of the file or others."""

    path: Path
    schema: pa.Schema
    num_rows: int
    rows: pa.Table | None = None
    """What the file would have; None: the file has it."""
    kept: NDArray[np.bool_] | None = None
    """[rows of the file]; None: all."""
    label: NDArray[np.float64] | None = None
    """[n] instead of the file's."""

    @classmethod
    def of_batches(cls, path: Path, schema: pa.Schema, batches: Iterator[pa.Table]) -> Self:
        """Return the frame of all batches: in memory, or in the file if it has more than `MEMORY_BYTES`.

        Args:
            path: of the file, which is made only for a larger frame.
        """
        first: list[pa.Table] = []
        num_bytes = 0
        for batch in batches:
            first.append(batch)
            num_bytes += batch.nbytes
            if num_bytes > MEMORY_BYTES:
                return cls(path=path, schema=schema, num_rows=write_rows(path, schema, itertools.chain(_drained(first), batches)))
        rows = pa.concat_tables(first) if first else schema.empty_table()
        return cls(path=path, schema=schema, num_rows=rows.num_rows, rows=rows)

    def column(self, name: str) -> pa.ChunkedArray:
        if name == LABEL and self.label is not None:
            return pa.chunked_array([self.label])
        if self.rows is not None:
            values = self.rows.column(name)
        else:
            values = pa.chunked_array([c for rows in self._read([name]) for c in rows.column(name).chunks], self.schema.field(name).type)
        return values if self.kept is None else values.filter(pa.array(self.kept))

    def column_batches(self, name: str) -> Iterator[pa.ChunkedArray]:
        if name == LABEL and self.label is not None:
            for first in range(0, self.num_rows, BATCH_ROWS):
                yield pa.chunked_array([self.label[first : first + BATCH_ROWS]])
            return
        for rows in self._kept_batches([name]):
            yield rows.column(name)

    @functools.cached_property
    def nullable(self) -> dict[str, str]:
        return nullable_columns(self)

    def filtered(self, kept: NDArray[np.bool_]) -> ScratchFrame:
        if self.kept is not None:
            all_kept = self.kept.copy()
            all_kept[self.kept] = kept
        else:
            all_kept = kept
        label = None if self.label is None else self.label[kept]
        return replace(self, kept=all_kept, label=label, num_rows=int(kept.sum()))

    def with_label(self, label: NDArray[np.float64]) -> ScratchFrame:
        place = self.schema.get_field_index(LABEL)
        return replace(self, label=label, schema=self.schema.set(place, pa.field(LABEL, pa.float64())))

    def batches(self) -> Iterator[pa.Table]:
        done = 0
        for batch in rebatched(self._kept_batches(None)):
            if self.label is not None:
                label = pa.array(self.label[done : done + batch.num_rows])
                batch = batch.set_column(batch.column_names.index(LABEL), LABEL, label)
            done += batch.num_rows
            yield batch

    def _kept_batches(self, names: list[str] | None) -> Iterator[pa.Table]:
        start = 0
        for rows in self._read(names):
            stop = start + rows.num_rows
            yield rows if self.kept is None else rows.filter(pa.array(self.kept[start:stop]))
            start = stop

    def _read(self, names: list[str] | None) -> Iterator[pa.Table]:
        if self.rows is not None:
            rows = self.rows if names is None else self.rows.select(names)
            yield from (rows.slice(start, BATCH_ROWS) for start in range(0, rows.num_rows, BATCH_ROWS))
            return
        yield from read_rows(self.path, self.schema, names)


def _drained(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables in order; the list keeps none that was yielded."""
    while tables:
        yield tables.pop(0)


def rebatched(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows as batches of `BATCH_ROWS`, fewer only in the last, one chunk per column; nothing for no rows."""
    waiting: list[pa.Table] = []
    num_waiting = 0
    for table in tables:
        waiting.append(table)
        num_waiting += table.num_rows
        while num_waiting >= BATCH_ROWS:
            rows = pa.concat_tables(waiting)
            yield rows.slice(0, BATCH_ROWS).combine_chunks()
            waiting, num_waiting = [rows.slice(BATCH_ROWS)], num_waiting - BATCH_ROWS
    if num_waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def fit_by_batch(
    frame: Frame, training: NDArray[np.bool_], folder: Path, *, derived: Sequence[DerivedColumn], features: Sequence[FeaturePlan]
) -> FittedTransforms:
    """Return transforms fitted in one pass over the frame.

    Args:
        folder: on local disk; takes values that a fit has too many of for the memory.
        training, derived, features: as `Engine.fit`.
    """
    raw_names = [name for name in frame.schema.names if name != LABEL]
    plan = FittedTransforms.planned(raw_names, derived=derived, features=features, types=raw_types(frame.schema))
    return plan.fitted(features, _training_columns(frame, training, plan), folder, engine_memory_bytes())


def _training_columns(frame: Frame, training: NDArray[np.bool_], plan: FittedTransforms) -> Iterator[dict[str, pd.Series[Any]]]:
    """Yield the raw and derived columns of the training rows."""
    made = list(plan.derived_features)
    first = 0
    for batch in frame.batches():
        kept = training[first : first + batch.num_rows]
        first += batch.num_rows
        if not kept.any():
            continue
        rows = pandas_rows(batch if kept.all() else batch.filter(pa.array(kept)), frame.nullable)
        columns: dict[str, pd.Series[Any]] = {str(name): rows[name] for name in rows.columns}
        if made:
            found = plan.derive(rows)
            columns |= {name: pandas_column(name, found[name]) for name in made}
        yield columns
