"""Bootstrap resamples as weights: how often each unit was drawn. Seeded; the same seed gives the same resamples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = NDArray[np.float32]

NUM_RESAMPLES: Final = 1000
CELLS_PER_CHUNK: Final = 1 << 20
"""Weights held at a time: 4 MB, which a core's cache holds."""
MAX_DRAWN: Final = 1_000
"""Units up to which n are drawn with replacement; above, each unit's weight is a Poisson number of mean 1."""


def resampled_weights(num_units: int, seed: int, num_resamples: int = NUM_RESAMPLES) -> Iterator[Weights]:
    """Yield weights [some resamples, units] float32, whole numbers, `num_resamples` rows in all.

    Up to 1,000 units a row is the count of each unit among n draws with replacement. Above, weights are independent Poisson
    numbers (Hanley and MacGibbon, 2006), of which only the total differs, by one in the root of n: divide by it.
    """
    generator = np.random.Generator(np.random.SFC64(seed))
    rows = max(1, CELLS_PER_CHUNK // max(1, num_units))
    for start in range(0, num_resamples, rows):
        size = min(rows, num_resamples - start)
        yield _drawn(generator, num_units, size) if num_units <= MAX_DRAWN else _poisson(generator, num_units, size)


def resampled_means(components: Floats, seed: int) -> Floats:
    """Return the means of each resample, [resamples, components].

    Args:
        components: [units, components].
        seed: of the resamples.
    """
    centers = components.mean(axis=0)
    # Centered, so that 4 bytes are enough: what counts is the spread.
    found = resampled_parts(components - centers, np.zeros(1, dtype=np.int64), seed)
    means: Floats = found[:, 0] + centers
    return means


def resampled_parts(components: Floats, starts: NDArray[np.int64], seed: int) -> Floats:
    """Return what each part of the units adds to the means of each resample, [resamples, parts, components].

    Args:
        components: [units, components], a part's units next to one another.
        starts: [parts] where each begins.
        seed: of the resamples.
    """
    columns = np.ascontiguousarray(components.T, dtype=np.float32)[None]
    edges = [*starts.tolist(), len(components)]
    chunks = []
    for weights in resampled_weights(len(components), seed):
        # Dot products rather than one product of matrices: that would start threads, which cost more than they save here.
        sums = [np.vecdot(weights[:, None, start:stop], columns[:, :, start:stop]) for start, stop in itertools.pairwise(edges)]
        chunks.append(np.stack(sums, axis=1) / weights.sum(axis=1, dtype=np.float64)[:, None, None])
    return np.concatenate(chunks)


def resampled_counts(counts: NDArray[np.int64], seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield how many units of each kind the resamples have, [some resamples, kinds], where units of a kind are alike.

    Args:
        counts: [kinds] units of each kind; drawn are as many as there are.
    """
    generator = np.random.Generator(np.random.SFC64(seed))
    total = int(counts.sum())
    rows = max(1, CELLS_PER_CHUNK // max(1, len(counts)))
    for start in range(0, NUM_RESAMPLES, rows):
        yield generator.multinomial(total, counts / total, size=min(rows, NUM_RESAMPLES - start))


def _drawn(generator: np.random.Generator, num_units: int, size: int) -> Weights:
    drawn = generator.integers(0, num_units, size=(size, num_units))
    drawn += np.arange(size)[:, None] * num_units
    return np.bincount(drawn.ravel(), minlength=size * num_units).reshape(size, num_units).astype(np.float32)


def _poisson(generator: np.random.Generator, num_units: int, size: int) -> Weights:
    # Two random bytes a weight, looked up: a tenth of the time of drawing Poisson numbers.
    num_words = -(-size * num_units // 4)
    bits = generator.integers(0, 2**64, size=num_words, dtype=np.uint64).view(np.uint16)[: size * num_units]
    return np.take(_POISSON, bits, mode="clip").reshape(size, num_units)


def _poisson_table() -> Weights:
    """Return [65536] Poisson numbers of mean 1, each as often as it is likely, to one in 65,536."""
    likely = np.array([math.exp(-1) / math.factorial(number) for number in range(12)])
    thresholds = np.round(np.cumsum(likely) * 65_536)
    return np.searchsorted(thresholds, np.arange(65_536), side="right").astype(np.float32)


_POISSON: Final = _poisson_table()
