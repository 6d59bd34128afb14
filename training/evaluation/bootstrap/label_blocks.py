"""How many blocks of time a split has for an interval, before there is a model: by how its labels depend on each other."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from training.evaluation.bootstrap.blocks import block_interval
from training.evaluation.bootstrap.influence import Influence
from training.evaluation.record import Blocks
from training.evaluation.rows import LabelledRows


def label_blocks(rows: LabelledRows, *, confidence: float, least: timedelta) -> Blocks | None:
    """Return the blocks that the mean label would be judged by; None of rows without a time, or of fewer than two units.

    The gain of a model depends on time less than the labels do, as a rule: there may be more blocks, hardly fewer.

    Args:
        least: the shortest block.
    """
    if rows.origins is None or rows.num_units < 2:
        return None
    units = np.arange(rows.num_rows) if rows.groups is None else rows.groups
    means = np.bincount(units, weights=rows.labels) / np.bincount(units)
    influence = Influence(rows=rows.groups, num_units=rows.num_units, values=means - means.mean())
    return block_interval(influence, rows.origins, rows.groups, gain=0.0, confidence=confidence, least_seconds=least.total_seconds())
