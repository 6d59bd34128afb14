"""Which rows a dataset has, and which split each goes to: from the joined frame and `data.split`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.groups import column_numbers, kept_numbers
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.join.engines.interface import Frame
from training.data.snapshot.label_delay import META_KEY, SplitRule, split_bounds, split_lines
from training.data.split.by_time import SplitBounds, is_before, split_rows
from training.data.split.kinds import divide
from training.spec import PipelineSpec
from training.spec.scalar_types import duration_text
from training.store import Manifest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DividedRows:
    """The rows that a dataset has; each is in one split."""

    frame: Frame
    groups: NDArray[np.int32] | None
    """[n] dense numbers of `data.group`; None where the spec has none."""
    rows: Mapping[str, NDArray[np.int64]]
    """Split to the numbers of its rows, ascending."""


def bounds_of(spec: PipelineSpec, snapshot: Manifest) -> SplitBounds:
    """Return the bounds of the splits; what the snapshot says of labels that are not known yet decides where they end.

    Raises:
        DataError: `split.window`, nothing is left to train on.
    """
    start, end = (datetime.fromisoformat(snapshot.meta["window"][name]) for name in ("start", "end"))
    unknown = snapshot.meta.get(META_KEY)
    for line in [] if unknown is None else split_lines(unknown):
        logger.info("%s", line)
    return split_bounds(SplitRule.of(spec), start, end, unknown)


def divide_rows(spec: PipelineSpec, frame: Frame, bounds: SplitBounds, arrays: ScratchArrays) -> DividedRows:
    """Return the rows that are in a split: without those after the test split's end, and without those in a gap.

    Args:
        frame: joined rows, in the order of their event times.
        arrays: makes the arrays.

    Raises:
        DataError: as `split_rows` and `divide`.
    """
    event_time, group = spec.data.source.event_time, spec.data.group
    times = arrays.column(frame, event_time, "datetime64[us]")
    groups = None if group is None else column_numbers(frame, group, arrays)
    kept = is_before(times, bounds.end, groups=groups)
    if not kept.all():
        logger.info("%s rows after the test split's end at %s left out", f"{int((~kept).sum()):,}", bounds.end.isoformat())
        frame, groups = _kept(frame, groups, kept, arrays)
        times = arrays.column(frame, event_time, "datetime64[us]")
    if not bounds.is_by_time:
        return DividedRows(frame=frame, groups=groups, rows=divide(spec, frame, bounds, groups, times, arrays))
    rows = split_rows(times, bounds, groups=groups, numbers_of=arrays.numbers_of)
    gap = spec.data.split.gap
    if gap is None:
        return DividedRows(frame=frame, groups=groups, rows=rows)
    of_split = np.full(frame.num_rows, -1, dtype=np.int8)
    for number, part in enumerate(rows.values()):
        of_split[part] = number
    kept = of_split >= 0
    logger.info("%s rows in the gaps of %s before validation and test left out", f"{int((~kept).sum()):,}", duration_text(gap))
    frame, groups = _kept(frame, groups, kept, arrays)
    of_split = of_split[kept]
    return DividedRows(frame=frame, groups=groups, rows={name: arrays.numbers_of(of_split == number) for number, name in enumerate(rows)})


def _kept(
    frame: Frame, groups: NDArray[np.int32] | None, kept: NDArray[np.bool_], arrays: ScratchArrays
) -> tuple[Frame, NDArray[np.int32] | None]:
    # Groups are numbered again: their numbers are dense.
    return frame.filtered(kept), None if groups is None else kept_numbers(groups, kept, arrays)
