"""Frames of columns that a test has in one piece."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from training.data.join.engines.scratch_frame import ScratchFrame


def frame_of(columns: dict[str, pa.ChunkedArray]) -> ScratchFrame:
    """Return the rows in memory, read `BATCH_ROWS` at a time."""
    rows = pa.table(columns)
    return ScratchFrame(path=Path("none"), schema=rows.schema, num_rows=rows.num_rows, rows=rows)
