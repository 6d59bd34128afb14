"""Writes a dataset's frame as parts of bounded size, from batches."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.data.dataset.manifest import FrameColumn, FramePart
from training.data.join.engines.interface import BATCH_ROWS

PART_BYTES: Final = 64 * 2**20
"""Of a part's rows in memory, about; a part has at least one row."""
TEXT_BYTES: Final = 32
"""What a value without a fixed width counts for."""


def part_rows(schema: pa.Schema) -> int:
    """Return how many rows a part has, by its columns' types alone: whole batches, or of wide rows a part of one, up to `PART_BYTES`."""
    width = sum(_width_bytes(field.type) for field in schema)
    rows = int(PART_BYTES / width)
    # A power of two, as a batch has: no small part is left between two batches.
    return rows // BATCH_ROWS * BATCH_ROWS if rows >= BATCH_ROWS else 1 << (max(1, rows).bit_length() - 1)


class FrameWriter:
    """Batches in, parts out. The edges of the parts follow from the schema alone: equal rows make equal files."""

    def __init__(self, folder: Path, schema: pa.Schema, rows: Mapping[str, NDArray[np.int64]]) -> None:
        """Begin the first part.

        Args:
            folder: on local disk; the files are made below it.
            schema: of every batch.
            rows: of each split, numbers of the frame's rows, ascending.
        """
        self._folder, self._schema, self._rows = folder, schema, rows
        self._limit = part_rows(schema)
        self._writer: pq.ParquetWriter | None = None
        self._first, self._num_rows = 0, 0
        self._nulls: Counter[str] = Counter()
        self.parts: list[FramePart] = []
        self.files: dict[str, Path | bytes] = {}
        """By name in the manifest, of the parts that are finished."""

    def write(self, batch: pa.Table) -> None:
        """Add the next rows, a batch of an engine's frame."""
        while batch.num_rows:
            rows = self._limit - self._num_rows
            self._add(batch.slice(0, rows))
            batch = batch.slice(rows)

    def _add(self, batch: pa.Table) -> None:
        if self._writer is None:
            path = self._folder / self._part().name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)
        self._writer.write_table(batch, row_group_size=BATCH_ROWS)
        self._nulls.update({name: batch[name].null_count for name in batch.column_names})
        self._num_rows += batch.num_rows
        if self._num_rows >= self._limit:
            self.finish()

    def finish(self) -> None:
        """Finish the part that is open."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        part = self._part()
        self.files[part.name] = self._folder / part.name
        self.files |= {name: _npy(self._numbers(split)) for split, name in part.number_files.items()}
        self.parts.append(part)
        self._first, self._num_rows = self._first + self._num_rows, 0

    @property
    def columns(self) -> list[FrameColumn]:
        """The columns, with the nulls of all rows."""
        return [FrameColumn(name=field.name, type=str(field.type), nulls=self._nulls[field.name]) for field in self._schema]

    def _part(self) -> FramePart:
        counts = {split: len(self._numbers(split)) for split in self._rows}
        return FramePart.numbered(len(self.parts), rows=self._num_rows, splits={split: count for split, count in counts.items() if count})

    def _numbers(self, split: str) -> NDArray[np.int64]:
        """Return the numbers of the part's rows that belong to a split, counted from its first row."""
        numbers = self._rows[split]
        start, stop = np.searchsorted(numbers, [self._first, self._first + self._num_rows])
        return numbers[start:stop] - self._first


def _npy(rows: NDArray[np.int64]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, rows, allow_pickle=False)
    return stream.getvalue()


def _width_bytes(kind: pa.DataType) -> float:
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return TEXT_BYTES
