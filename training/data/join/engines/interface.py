"""The interface of the engine that joins a snapshot's tables for prepare.

An engine reads tables, joins them, checks and orders the rows, gives single columns and batches of all of them, and fits transforms.
Which split a row belongs to, the number of its class, its cells in a shard, and the bytes of every file are decided outside
(`training.data.split`, `.features`, `.dataset`): so the same snapshot makes the same dataset on any engine.
A further engine is one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.contract import JoinedTable, MainTable
from training.data.join.derived import DerivedColumn
from training.data.join.windows import WindowColumn

BATCH_ROWS: Final = 65_536
"""Rows of a batch, and of a row group of the files that are written from it."""

Progress = Callable[[int, int, str], None]
"""Called with what is done, what there is to do, and the unit."""


class Frame(Protocol):
    """Joined rows in the order of (event time, key), at the engine's place; the last column is `label`."""

    @property
    def num_rows(self) -> int: ...

    @property
    def schema(self) -> pa.Schema: ...

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of all rows."""
        ...

    def column_batches(self, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield one column of all rows, some of them at a time."""
        ...

    @property
    def nullable(self) -> Mapping[str, str]:
        """The columns of integers and booleans that have a null in any row, with their type in pandas (`frames.nullable_columns`)."""
        ...

    def batches(self) -> Iterator[pa.Table]:
        """Yield all columns of `BATCH_ROWS` rows at a time, fewer only in the last batch, one chunk per column."""
        ...

    def filtered(self, kept: NDArray[np.bool_]) -> Frame:
        """Return the rows for which `kept`, [n], is true."""
        ...

    def with_label(self, label: NDArray[np.float64]) -> Frame:
        """Return the rows with other labels, [n]."""
        ...


class Engine(Protocol):
    """Where the tables of a snapshot become one frame."""

    def join(self, main: MainTable, features: Sequence[JoinedTable], windows: Sequence[WindowColumn] = (), *, as_of: datetime) -> Frame:
        """Return the joined rows with a `label` (float64, or text: the name of a class).

        Args:
            main: rows whose label is not known at `as_of` are left out.
            features: in the order of their columns in the frame.
            windows: the columns after those, in their order; `training.data.join.windows` computes them of rows that the engine has sorted.
            as_of: the instant whose past may be seen.

        Raises:
            DataError: `schema.missing`, `schema.clash`, `join.duplicate_key`, `data.format` (a file cannot be read, or tables cannot be
                joined), `label.range` (a label of the frame is beyond 32 bits);
                what `training.data.join.contract.RowChecks` finds: `leakage.time`, `data.nulls` (a label), `data.duplicate_key`.
        """
        ...

    def fit(
        self, frame: Frame, training: NDArray[np.bool_], *, derived: Sequence[DerivedColumn], features: Sequence[FeaturePlan]
    ) -> FittedTransforms:
        """Return transforms fitted on the rows for which `training`, [n], is true.

        Raises:
            DataError: as `FittedTransforms.fit`.
        """
        ...
