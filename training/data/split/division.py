"""Which rows a dataset has, and which split each goes to: from the joined frame and `data.split`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.groups import column_numbers, kept_numbers
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.join.engines.interface import Frame
from training.data.snapshot.label_delay import META_KEY, SplitRule, split_bounds, split_lines
from training.data.split.by_time import NO_SPLIT, SPLITS, SplitBounds, check_sizes, decisive_times, is_before, time_parts
from training.data.split.kinds import check_groups, kind_parts
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
        DataError: `split.outside`, a row is outside of the window; `data.too_small`, a split has too few rows; `split.value`, the split's
            column has a value that names no split; `split.group_divided`, rows of one `data.group` are in two splits.
    """
    event_time, group = spec.data.source.event_time, spec.data.group
    times = arrays.column(frame, event_time, "datetime64[us]")
    groups = None if group is None else column_numbers(frame, group, arrays)
    kept = is_before(times, bounds.end, groups=groups)
    if not kept.all():
        logger.info("%s rows after the test split's end at %s left out", f"{int((~kept).sum()):,}", bounds.end.isoformat())
        frame, groups = _kept(frame, groups, kept, arrays)
        times = arrays.column(frame, event_time, "datetime64[us]")
    decisive_us, num_rows, split = decisive_times(times, bounds, groups), frame.num_rows, spec.data.split
    found = time_parts(decisive_us, bounds) if bounds.is_by_time else kind_parts(spec, frame, arrays)
    parts = arrays.filled(found, num_rows, np.int8)
    if groups is not None and not bounds.is_by_time:
        check_groups(parts, groups, by=split.by, group=str(group))
    kept = parts != NO_SPLIT
    if not kept.all():
        gap = duration_text(split.gap or timedelta())
        logger.info("%s rows in the gaps of %s before validation and test left out", f"{int((~kept).sum()):,}", gap)
        frame, groups = _kept(frame, groups, kept, arrays)
        parts = arrays.selected(parts, kept)
    rows = {name: arrays.numbers_of(parts == number) for number, name in enumerate(SPLITS)}
    remedy = "shorten data.split" if bounds.is_by_time else "raise the shares of data.split"
    hint = f"{remedy}, or lengthen data.source.window"
    if bounds.is_by_time and not len(rows["test"]):
        hint = f"no row is of {bounds.test.isoformat()} or later: lengthen data.split.test, or bring newer rows"
    check_sizes(rows, num_rows, hint=hint)
    return DividedRows(frame=frame, groups=groups, rows=rows)


def _kept(
    frame: Frame, groups: NDArray[np.int32] | None, kept: NDArray[np.bool_], arrays: ScratchArrays
) -> tuple[Frame, NDArray[np.int32] | None]:
    # Groups are numbered again: their numbers are dense.
    return frame.filtered(kept), None if groups is None else kept_numbers(groups, kept, arrays)
