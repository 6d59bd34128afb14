"""How much of a column is lost in cells of 32 bits, whose numbers have 24 bits: ids of ten digits, a meter's reading, epoch milliseconds.

What counts is the rounding error beside the differences between rows, not how many different values are left.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError, shown

logger = logging.getLogger(__name__)

WARNED_LOSS: Final = 1e-3
REFUSED_LOSS: Final = 1e-2
SAMPLED_VALUES: Final = 1 << 16
NORMAL_RANGE: Final = 1.349
"""Deviations between the quartiles of a normal distribution."""
FAR: Final = 10.0
"""Deviations from the median, beyond which a value (-999999999 for one that is missing) says nothing of the others' digits."""
FLOAT64_NOISE: Final = 1e-14
"""Relative: values that differ by less are one value, computed in two ways."""


class SampledValues:
    """Every nth of the values added, at most twice `SAMPLED_VALUES`: all of them where they are few."""

    def __init__(self) -> None:
        self.values = np.empty(0)
        """[n], float64: those that are kept."""
        self._count, self._step = 0, 1

    def add(self, values: NDArray[np.float64]) -> None:
        """Take the next values, finite, [n]."""
        self.values = np.concatenate([self.values, values[-self._count % self._step :: self._step]])
        self._count += len(values)
        while len(self.values) > 2 * SAMPLED_VALUES:
            self.values = self.values[::2]
            self._step *= 2


def rounding_loss(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the root mean square of float32's rounding errors over the deviation of the values, and the value with the largest error.

    The deviation is that of the middle half, else of all where more than half are equal. Values far from it are left out.

    Args:
        values: [n], n >= 1, finite.

    Returns:
        The loss, 0 where the values are all the same; the value.
    """
    values = values[np.abs(values) <= float(np.finfo(np.float32).max)]
    errors = np.abs(values.astype(np.float32) - values)
    if not errors.any():
        return 0.0, 0.0
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    noise = FLOAT64_NOISE * abs(middle)
    deviation = (high - low) / NORMAL_RANGE
    if deviation <= noise:
        deviation = float(values.std())
    if deviation <= noise:
        return 0.0, 0.0
    errors[np.abs(values - middle) > FAR * deviation] = 0.0
    return float(np.sqrt(np.mean(errors**2)) / deviation), float(values[np.argmax(errors)])


def check_digits(name: str, values: NDArray[np.float64], hint: str) -> None:
    """Warn where a feature's numbers lose digits in cells of 32 bits; refuse those that lose most of them.

    Args:
        values: [n] of training rows.
        hint: the remedy.

    Raises:
        DataError: `transform.rounding`.
    """
    loss, worst = rounding_loss(values)
    if loss <= WARNED_LOSS:
        return
    message = (
        f"feature {shown(name)}: cells of 32 bits round its values by {loss:.2g} of their deviation: "
        f"{worst:.17g} becomes {float(np.float32(worst)):.17g}"
    )
    if loss > REFUSED_LOSS:
        raise DataError("transform.rounding", message, hint=hint)
    logger.warning("%s (%s)", message, hint)


def warn_of_lost_digits(name: str, cells: NDArray[np.float64]) -> None:
    """Warn where a feature loses digits although its mean was subtracted; `cells` are [n] of training rows, before the rounding."""
    loss, _ = rounding_loss(cells)
    if loss > WARNED_LOSS:
        logger.warning(
            "feature %s: cells of 32 bits round it by %.2g of the deviation of most of its values, which is small beside that of all "
            "(make extreme values null in prepare.derive)",
            shown(name),
            loss,
        )
