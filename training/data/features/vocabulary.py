"""The different values of a column: a number for each, how many rows have it, and which are the most frequent."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.data.dataset.frames import FIRST_INEXACT
from training.data.features.encoders import exact, inexact, is_text
from training.errors import DataError, shown
from training.sql.expressions import hardened, literal

QUERY_BYTES: Final = 2**30
HELD_VALUES: Final = 1 << 18
"""So many different values without a limit are in memory; more are one run on disk."""


class ValueRuns:
    """Files of values and how many rows have them; a value may be in several."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        """Begin without files.

        Args:
            folder: on local disk.
            memory_bytes: of the query that counts the values of all files.
        """
        self._folder, self._memory_bytes = folder, memory_bytes
        self.paths: list[Path] = []

    def write(self, values: pa.Array, counts: NDArray[np.int64]) -> None:
        """Write a file."""
        if not self.paths:
            self._folder = Path(tempfile.mkdtemp(prefix="values-", dir=self._folder))
        path = self._folder / f"{len(self.paths):05d}.parquet"
        pq.write_table(pa.table({"value": values, "rows": counts}), path, compression="lz4", use_dictionary=False)
        self.paths.append(path)

    def most_frequent(self, top: int, *, as_floats: bool) -> list[Any]:
        """Return as many values, the most frequent first, of equally frequent ones the smaller; the files are gone afterwards.

        Args:
            as_floats: not all runs of numbers may have them so.
        """
        value = "CAST(value AS DOUBLE)" if as_floats else "value"
        runs = " UNION ALL ".join(f"SELECT {value} AS value, rows FROM read_parquet({literal(str(path))})" for path in self.paths)  # noqa: S608
        query = f"SELECT value, sum(rows) AS total FROM ({runs}) GROUP BY 1 ORDER BY total DESC, value ASC LIMIT {top}"  # noqa: S608
        with hardened([self._folder], memory_limit=f"{self._memory_bytes}B") as connection:
            found = [value for value, _rows in connection.sql(query).fetchall()]
        shutil.rmtree(self._folder)
        return found


class ValueNumbers:
    """A number for each different value of a column, in the order of appearance, and how many rows have it."""

    def __init__(self, name: str, limit: int | None, folder: Path | None = None, memory_bytes: int = QUERY_BYTES) -> None:
        """Begin without values.

        Args:
            name: of the column.
            limit: of different values, above which rows are no longer counted; None: there is none, and only `most_frequent` is asked.
            folder: takes values without a limit that are too many for the memory; None: they stay there.
            memory_bytes: of the query that counts them.
        """
        self._name, self._limit = name, limit
        self._runs = None if limit is not None or folder is None else ValueRuns(folder, memory_bytes)
        self._strange: Any = None
        self._num_infinite, self._num_inexact, self._inexact = 0, 0, 0.0
        self._number_of: dict[Any, int] = {}
        self.counts = np.zeros(0, dtype=np.int64)
        """[different values] rows."""
        self.num_rows = 0
        """Missing ones included."""
        self._has_fractions = False

    @property
    def values(self) -> list[Any]:
        """The different values by their number."""
        return list(self._number_of)

    @property
    def is_above_limit(self) -> bool:
        return self._limit is not None and len(self._number_of) > self._limit

    def add(self, column: pd.Series[Any]) -> NDArray[np.int64]:
        """Count the next rows; return the number of each one's value, [n], -1 for a missing one.

        Raises:
            DataError: `schema.type`, the column holds neither numbers nor texts.
        """
        self.num_rows += len(column)
        raw: Any = column
        if not is_text(column):
            raw = exact(column, self._name)
        codes, values = pd.factorize(raw)
        if not isinstance(raw, pd.Series) and raw.dtype.kind == "f":
            self._look_at_floats(values, np.bincount(codes + 1, minlength=len(values) + 1)[1:])
        found = np.empty(len(values) + 1, dtype=np.int64)
        found[-1] = -1
        if not self.is_above_limit:
            number_of = self._number_of
            found[:-1] = [number_of.setdefault(value, len(number_of)) for value in values.tolist()]
            self.counts = np.concatenate([self.counts, np.zeros(len(number_of) - len(self.counts), dtype=np.int64)])
            self.counts += np.bincount(found[codes] + 1, minlength=len(self.counts) + 1)[1:]
        numbers = found[codes]
        if self._runs is not None and len(self._number_of) > HELD_VALUES:
            self._write_run(self._runs)
        return numbers

    def check(self) -> None:
        """Raise what is wrong with the values of all rows.

        Raises:
            DataError: `cardinality`; `schema.type`; `data.nonfinite`; `transform.precision`, two different integers from 2**53 may have
                become one float64.
        """
        if self.is_above_limit:
            raise DataError(
                "cardinality",
                f"feature {shown(self._name)}: more than {self._limit:,} different values, at most {self._limit:,} are allowed",
                hint="keep the most frequent ones (top), use the transform hash, or raise max_categories",
            )
        self._look()
        if self._strange is not None:
            message = f"feature {shown(self._name)}: its values are neither texts nor numbers, such as {self._strange}"
            raise DataError("schema.type", message, hint="derive a text or a number in prepare.derive, or use the transform datetime")
        if self._num_infinite:
            raise infinite(self._name, self._num_infinite, self.num_rows)
        if self._num_inexact:
            raise inexact(self._name, self._num_inexact, self._inexact)

    def by_frequency(self) -> NDArray[np.int64]:
        """Return the numbers of the values, the most frequent first, of equally frequent ones the smaller."""
        # Arrow compares texts by their bytes in UTF-8, which is the order of their characters.
        rows = pa.table({"value": self._array(), "rows": self.counts})
        return np.asarray(pc.sort_indices(rows, sort_keys=[("rows", "descending"), ("value", "ascending")]), dtype=np.int64)

    def listed(self, order: NDArray[np.int64]) -> list[Any]:
        """Return the values of these numbers as JSON has them."""
        values = self.values
        return [_plain(values[number]) for number in order.tolist()]

    def most_frequent(self, top: int) -> list[Any]:
        """Return as many values in the order of `by_frequency`, as JSON has them; the values are gone afterwards."""
        if self._runs is None or not self._runs.paths:
            return self.listed(self.by_frequency()[:top])
        self._write_run(self._runs)
        return [_plain(value) for value in self._runs.most_frequent(top, as_floats=self._is_double)]

    def _array(self) -> pa.Array:
        values = list(self._number_of)
        if self._is_double:
            return pa.array(map(float, values), pa.float64())
        # Integers of which one is missing are floats in pandas, in some batches or all.
        return pa.array(values if values and isinstance(values[0], str) else map(int, values))

    def _write_run(self, runs: ValueRuns) -> None:
        self._look()
        # What is refused needs no file, and has no type there.
        if self._strange is None and self._number_of:
            runs.write(self._array(), self.counts)
        self._number_of, self.counts = {}, np.zeros(0, dtype=np.int64)

    @property
    def _is_double(self) -> bool:
        """Whether some values are no integers of 64 bits; those that are refused may be anything."""
        return self._has_fractions or bool(self._num_infinite or self._num_inexact)

    def _look_at_floats(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Add what is wrong with floats.

        Args:
            values: [values], different ones.
            counts: [values] rows of each.
        """
        is_finite = np.isfinite(values)
        self._num_infinite += int(counts[~is_finite].sum())
        self._has_fractions |= bool((values[is_finite] != np.floor(values[is_finite])).any())
        large = np.flatnonzero(is_finite & (np.abs(values) >= FIRST_INEXACT))
        if len(large):
            self._inexact = self._inexact if self._num_inexact else float(values[large[0]])
            self._num_inexact += int(counts[large].sum())

    def _look(self) -> None:
        """Note a value in memory that is neither a text nor a number."""
        if self._strange is None:
            self._strange = next((value for value in self._number_of if not isinstance(value, str | int | float)), None)


def infinite(name: str, num_infinite: int, num_rows: int) -> DataError:
    """Return the error of a feature with infinite values."""
    message = f"feature {shown(name)}: {num_infinite} of {num_rows} training values are infinite"
    return DataError("data.nonfinite", message, hint="remove or replace them at the source, or leave their rows out (data.source.where)")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return int(value) if float(value).is_integer() else float(value)
