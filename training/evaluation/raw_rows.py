"""Some rows of a dataset as it has them: read in batches, column by column, or few at a time, never all columns of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.data.dataset.reader import DatasetReader
from training.data.features.classes import Classes, align_scores
from training.data.join.contract import LABEL
from training.data.join.engines.interface import BATCH_ROWS
from training.models.predictor import Predictor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

SCORED_ROWS: Final = BATCH_ROWS
"""Rows of a batch: a multiple of those that a torch family scores at a time, so that scores do not depend on the batches."""


MAX_FIRST_BITS: Final = 24
"""Of a hash, that a table of 16 MiB has a place for."""
SPARE_BITS: Final = 5
"""More places than hashes: one in 32 to 64 of the others has a first part that is known."""


class Columns(Protocol):
    """Rows whose columns are read one at a time; a pandas frame is one."""

    def __getitem__(self, name: str, /) -> pd.Series[Any]: ...


class RawRows:
    """Rows of a dataset by their numbers, without the label."""

    def __init__(self, reader: DatasetReader, numbers: Ints) -> None:
        """Take the numbers of the rows among all rows, ascending."""
        self._reader, self.numbers = reader, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return [name for name in self._reader.schema.names if name != LABEL]

    def at(self, places: Ints) -> RawRows:
        """Return some of the rows: their places among these, ascending."""
        return RawRows(self._reader, self.numbers[places])

    def __getitem__(self, name: str) -> pd.Series[Any]:
        """Return one column, [n]."""
        column: pd.Series[Any] = self.frame([name])[name]
        return column

    def frame(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return these rows, some columns or all, at once: for few rows, or a single column."""
        return self._reader.rows_numbered(self.numbers, self._known(self.names if columns is None else columns))

    def batches(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield these rows, `SCORED_ROWS` at a time, with those of the columns that there are."""
        return self._reader.batches(self.numbers, self._known(columns), batch_rows=SCORED_ROWS)

    def hashes(self, columns: Sequence[str]) -> Iterator[Hashes]:
        """Yield for each batch one hash per row of the values of `columns` together."""
        return (hashes_of(batch) for batch in self.batches(columns))

    def scores(self, predictor: Predictor, classes: Classes | None, scored: Callable[[int], None] | None = None) -> Floats:
        """Return a model's scores of these rows in the order of a dataset's classes, [n] or [n, classes]; of the rows one batch is read.

        Args:
            classes: of the dataset (`training.data.features.classes.align_scores`).
            scored: called after each batch with its number of rows.

        Raises:
            DataError: the model needs a column that the dataset lacks, or its classes are of another kind.
        """
        found: Floats | None = None
        first = 0
        for batch in self.batches(predictor.inputs):
            scores = align_scores(predictor.score(batch), predictor.classes, classes)
            if found is None:
                found = np.empty((len(self), *scores.shape[1:]), dtype=scores.dtype)
            found[first : first + len(scores)] = scores
            first += len(scores)
            if scored is not None:
                scored(len(scores))
        if found is None:
            return align_scores(predictor.score(self.frame(predictor.inputs)), predictor.classes, classes)
        return found

    def _known(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that there are; the first column where there is none of them: the rows are counted by it."""
        names = self.names
        known = [name for name in columns if name in names]
        return known or names[:1]


def hashes_of(frame: pd.DataFrame) -> Hashes:
    """Return [n] one hash per row of all columns' values together; it does not depend on the other rows."""
    return np.asarray(pd.util.hash_pandas_object(frame, index=False).to_numpy(), dtype=np.uint64)


def found_in(parts: Iterable[Hashes], known: Hashes) -> NDArray[np.bool_]:
    """Return whether each hash of `known`, sorted and each once, is in one of the parts, [known]."""
    is_there = np.zeros(len(known), dtype=np.bool_)
    # The known ones are few: their first bits tell of most others that they are not among them, and a search decides the rest.
    shift = np.uint64(64 - min(MAX_FIRST_BITS, len(known).bit_length() + SPARE_BITS))
    begins = np.zeros(1 << (64 - int(shift)), dtype=np.bool_)
    begins[known >> shift] = True
    for hashes in parts if len(known) else ():
        candidates = hashes[begins[hashes >> shift]]
        places = np.minimum(np.searchsorted(known, candidates), len(known) - 1)
        is_there[places[known[places] == candidates]] = True
    return is_there
