"""Groups have the numbers of one pass over all rows, whether they fit the memory or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.scratch_frames import frame_of
from training.data.dataset import groups, scratch_arrays
from training.data.dataset.groups import column_numbers, group_numbers, kept_numbers
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.features.target_encoding import fold_numbers, frame_fold_numbers
from training.data.join.engines import scratch_frame


@pytest.fixture
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScratchArrays:
    monkeypatch.setattr(scratch_arrays, "MEMORY_BYTES", 0)
    monkeypatch.setattr(scratch_arrays, "SLICE_ROWS", 7)
    monkeypatch.setattr(scratch_frame, "BATCH_ROWS", 50)
    monkeypatch.setattr(groups, "IN_MEMORY_ROWS", 1)
    return ScratchArrays(tmp_path)


def values_of(kind: str) -> list[Any]:
    numbers = np.random.default_rng(5).integers(0, 120, 500).tolist()
    texts = [f"gr\u00f6\U0001f600 {number}" for number in numbers]
    floats = [float("nan") if number == 3 else -0.0 if number % 2 else 0.0 for number in numbers]
    return {"int": [number + 2**60 for number in numbers], "text": texts, "float": floats}[kind]


@pytest.mark.parametrize("kind", ["int", "text", "float"])
def test_numbers_beyond_memory_are_those_of_an_array(arrays: ScratchArrays, kind: str) -> None:
    values = pa.chunked_array([pa.array(values_of(kind))])
    found = column_numbers(frame_of({"g": values}), "g", arrays)
    assert isinstance(found, np.memmap)
    assert found.dtype == np.int32
    assert found.tolist() == group_numbers(values.to_numpy()).tolist()


def test_numbers_of_some_rows_are_dense_again(arrays: ScratchArrays) -> None:
    all_groups = group_numbers(np.array(values_of("int")))
    kept = np.random.default_rng(6).random(len(all_groups)) < 0.3
    assert kept_numbers(all_groups, kept, arrays).tolist() == group_numbers(all_groups[kept]).tolist()


def test_folds_read_in_batches_are_those_of_whole_columns(arrays: ScratchArrays) -> None:
    columns = {name: pa.chunked_array([pa.array(values_of(name))]) for name in ("int", "text")}
    training = np.random.default_rng(7).random(500) < 0.6
    found = frame_fold_numbers(frame_of(columns), ["int", "text"], training, arrays)
    assert found.tolist() == fold_numbers(list(columns.values()), training).tolist()
