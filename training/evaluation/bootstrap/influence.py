"""What each unit (row, or group) adds to the difference of two models' metrics, so that sums over any blocks of units are known.

The influence of a unit is the derivative of the gain by its weight, times the number of units; its mean is 0 (the infinitesimal
jackknife, Jaeckel, 1972). Means are their own influence, functions of means and F1 are linearised, areas have DeLong's components
(`metrics.auc`), quantiles the sign of the error over the density at the quantile (Serfling, 1980, section 2.5; bandwidth of Hall and
Sheather, 1988). A metric of the spec's own is computed again without each block (the delete-a-block jackknife, Künsch, 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

MAX_OWN_PARTS: Final = 64
"""Blocks of which a metric of the spec's own is computed again without each."""
MAX_PARTS: Final = 2_048
"""Parts of the time axis that sums are formed for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Influence:
    """Units with what each adds to the gain, or a way to compute it for parts of them."""

    rows: Codes | None
    """[n] number of each row's unit; None where the rows are the units, -1 for rows of groups without a value."""
    num_units: int
    values: Floats | None = None
    """[units], of mean 0."""
    without: Callable[[NDArray[np.bool_]], float] | None = None
    """Kept rows, [n], to the gain less that of all rows: where there are no values by unit."""

    @property
    def max_parts(self) -> int:
        """Return how many parts `sums` is affordable for."""
        return MAX_OWN_PARTS if self.values is None else MAX_PARTS

    @property
    def squares(self) -> float | None:
        """Return the sum of the squared values, None where they are not known by unit."""
        return None if self.values is None else float(self.values @ self.values)

    def first_of(self, by_row: NDArray[np.int64]) -> Codes:
        """Return the smallest number of each unit's rows, [units], of numbers by row, [n]."""
        if self.rows is None:
            return by_row
        found = np.full(self.num_units, np.iinfo(np.int64).max)
        known = self.rows >= 0
        np.minimum.at(found, self.rows[known], by_row[known])
        return found

    def sums(self, parts: Codes, num_parts: int) -> Floats:
        """Return the sum of the values of each part, [num_parts], of parts by unit, [units]."""
        if self.values is not None:
            return np.bincount(parts, weights=self.values, minlength=num_parts).astype(np.float64)
        if self.without is None:
            raise ValueError("an influence has values or a way to compute them")
        of_row = parts if self.rows is None else parts[self.rows]
        counts = np.bincount(parts, minlength=num_parts)
        found = np.zeros(num_parts)
        for part in np.flatnonzero(counts):
            # Of a mean, leaving out a part of c units with the sum S moves it by -S / (n - c).
            found[part] = -self.without(of_row != part) * (self.num_units - counts[part])
        return found
