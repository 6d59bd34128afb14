"""The rows of a dataset, read part by part: whole columns, the rows of a split, or chosen rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.data.dataset.frames import names_of_changing_types, narrow_type, nullable_type, pandas_column, pandas_rows
from training.data.dataset.manifest import FramePart, columns_of, parts_of
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.join.engines.interface import BATCH_ROWS
from training.store import Manifest, Store


class DatasetReader:
    """The rows of a dataset on local disk: whole columns, or the rows of a split, read part by part."""

    def __init__(self, store: Store, dataset: Manifest, folder: Path) -> None:
        """Fetch the parts and their row numbers to `folder`, digests checked.

        Raises:
            DataError: an object is missing or altered; `dataset.newer`.
        """
        self.parts = parts_of(dataset)
        self._nulls = {column.name: column.nulls for column in columns_of(dataset)}
        self._types: dict[str, str | None] = {}
        names = [name for part in self.parts for name in (part.name, *part.number_files.values())]
        self._folder = store.manifests.fetch(dataset, folder, names)

    @property
    def num_rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @cached_property
    def schema(self) -> pa.Schema:
        return pq.read_schema(self._folder / self.parts[0].name)

    def nullable(self, names: Sequence[str]) -> dict[str, str]:
        """Return what `nullable_columns` does for some columns. Of 64-bit integers with a null, all rows are read, once."""
        changing = set(names_of_changing_types(self.schema))
        for name in changing.intersection(names) - self._types.keys():
            kind = self.schema.field(name).type
            if not self._nulls[name] or narrow_type(kind) is not None:
                self._types[name] = narrow_type(kind) if self._nulls[name] else None
            else:
                self._types[name] = nullable_type(kind, self.column_batches(name))
        found = {name: self._types.get(name) for name in names}
        return {name: kind for name, kind in found.items() if kind is not None}

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of all rows."""
        return pa.chunked_array([chunk for part in self.parts for chunk in self._read(part, [name]).column(name).chunks])

    def column_batches(self, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield one column of all rows, those of one row group at a time."""
        for part in self.parts:
            with pq.ParquetFile(self._folder / part.name) as file:
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group, columns=[name]).column(name)

    def __getitem__(self, name: str) -> pd.Series[float]:
        """Return one column of all rows, as it would be in a frame of them."""
        return pandas_column(name, self.column(name))

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Return some columns of all rows."""
        return pd.DataFrame({name: self[name] for name in names})

    def numbers(self, split: str, arrays: ScratchArrays | None = None) -> NDArray[np.int64]:
        """Return the numbers of a split's rows among all rows, ascending.

        Args:
            arrays: makes the result; None: it is in memory.
        """
        num_rows = sum(part.splits.get(split, 0) for part in self.parts)
        found: NDArray[np.int64] = np.empty(num_rows, dtype=np.int64) if arrays is None else arrays.empty(num_rows, np.int64)
        done, first = 0, 0
        for part in self.parts:
            numbers = self._numbers(part, split)
            found[done : done + len(numbers)] = numbers + first
            done += len(numbers)
            first += part.rows
        return found

    def rows(self, split: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the rows of a split, all columns or some; parts without such rows are not read."""
        return self._frame(
            (self._read(part, columns).take(pa.array(self._numbers(part, split))) for part in self.parts if part.splits.get(split)), columns
        )

    def rows_numbered(self, numbers: NDArray[np.int64], columns: Sequence[str]) -> pd.DataFrame:
        """Return rows by their numbers, ascending, some columns."""
        return self._frame(self._taken(numbers, columns), columns)

    def batches(self, numbers: NDArray[np.int64], columns: Sequence[str], *, batch_rows: int = BATCH_ROWS) -> Iterator[pd.DataFrame]:
        """Yield rows by their numbers, ascending, some columns: `batch_rows` at a time, fewer only in the last batch.

        Column types do not depend on the batch. In memory are one row group of a part and fewer than two batches.
        """
        return (pandas_rows(rows, self.nullable(columns)) for rows in self.tables(numbers, columns, batch_rows=batch_rows))

    def tables(self, numbers: NDArray[np.int64], columns: Sequence[str], *, batch_rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
        """Yield what `batches` does as tables."""
        held: list[pa.Table] = []
        for taken in self._taken(numbers, columns):
            held.append(taken)
            while sum(table.num_rows for table in held) >= batch_rows:
                rows = pa.concat_tables(held)
                held = [rows.slice(batch_rows)]
                yield rows.slice(0, batch_rows)
        if any(table.num_rows for table in held):
            yield pa.concat_tables(held)

    def numbers_since(self, event_time: str, since: datetime) -> NDArray[np.int64]:
        """Return the numbers of the rows whose event time is not before `since`, ascending."""
        edge = pa.scalar(since, self.schema.field(event_time).type)
        found, first = [np.empty(0, dtype=np.int64)], 0
        for times in self.column_batches(event_time):
            found.append(np.flatnonzero(pc.greater_equal(times, edge).to_numpy()) + first)
            first += len(times)
        return np.concatenate(found)

    def _taken(self, numbers: NDArray[np.int64], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield rows by their numbers, those of one row group at a time."""
        first = 0
        for part in self.parts:
            start, stop = np.searchsorted(numbers, [first, first + part.rows])
            if stop > start:
                yield from self._taken_of_part(part, numbers[start:stop] - first, columns)
            first += part.rows

    def _taken_of_part(self, part: FramePart, numbers: NDArray[np.int64], columns: Sequence[str]) -> Iterator[pa.Table]:
        with pq.ParquetFile(self._folder / part.name) as file:
            first = 0
            for group in range(file.num_row_groups):
                num_rows = file.metadata.row_group(group).num_rows
                start, stop = np.searchsorted(numbers, [first, first + num_rows])
                if stop > start:
                    rows = file.read_row_group(group, columns=list(columns))
                    yield rows if stop - start == num_rows else rows.take(pa.array(numbers[start:stop] - first))
                first += num_rows

    def _frame(self, tables: Iterator[pa.Table], columns: Sequence[str] | None) -> pd.DataFrame:
        found = list(tables) or [self.schema.empty_table().select(list(columns or self.schema.names))]
        return pandas_rows(pa.concat_tables(found), self.nullable(columns or self.schema.names))

    def _numbers(self, part: FramePart, split: str) -> NDArray[np.int64]:
        if split not in part.number_files:
            return np.empty(0, dtype=np.int64)
        numbers: NDArray[np.int64] = np.load(self._folder / part.number_files[split], allow_pickle=False)
        return numbers

    def _read(self, part: FramePart, columns: Sequence[str] | None) -> pa.Table:
        with pq.ParquetFile(self._folder / part.name) as file:
            return file.read(columns=None if columns is None else list(columns))
