"""Arrays on disk have the values of those in memory, and their files are gone with them."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from training.data.dataset import scratch_arrays
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.join.engines.scratch_frame import ScratchFrame, write_rows


@pytest.fixture(params=[0, 2**20], ids=["on disk", "in memory"])
def scratch(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScratchArrays:
    monkeypatch.setattr(scratch_arrays, "MEMORY_BYTES", request.param)
    monkeypatch.setattr(scratch_arrays, "SLICE_ROWS", 7)
    folder = tmp_path / "scratch"
    folder.mkdir()
    return ScratchArrays(folder)


def test_numbers_of_a_mask_are_those_of_numpy(scratch: ScratchArrays, tmp_path: Path) -> None:
    for num_rows in (1, 6, 7, 8, 100):
        mask = np.random.default_rng(num_rows).random(num_rows) < 0.5
        assert np.array_equal(scratch.numbers_of(mask), np.flatnonzero(mask))
    assert len(scratch.numbers_of(np.zeros(9, dtype=bool))) == 0
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    # More than any disk has.
    with pytest.raises(OSError, match=r"No space left|too large|Invalid argument") as caught:
        ScratchArrays(tmp_path).empty(1 << 55, np.int64)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG, errno.EINVAL)
    assert list(tmp_path.iterdir()) == []


def test_a_column_has_the_values_of_the_kept_rows(scratch: ScratchArrays, tmp_path: Path) -> None:
    instants = pa.array(np.arange(100).astype("datetime64[us]")).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"at": instants, "label": pa.array(np.arange(100, dtype=np.float32))})
    path = tmp_path / "rows.arrow"
    frame = ScratchFrame(path=path, schema=table.schema, num_rows=write_rows(path, table.schema, iter([table[:30], table[30:]])))
    kept = np.arange(100) % 3 == 0

    assert np.array_equal(scratch.column(frame, "at", "datetime64[us]"), np.arange(100).astype("datetime64[us]"))
    assert scratch.column(frame.filtered(kept), "label", np.float32).tolist() == list(range(0, 100, 3))
    assert scratch.column(frame.with_label(np.ones(100, dtype=np.float32)), "label", np.float32).tolist() == [1.0] * 100
