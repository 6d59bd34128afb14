"""Many small files of a table are read as one, with the same rows, and the dataset has the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.data.snapshot import parquet_parts as small_files
from training.data.snapshot.parquet_parts import merged

TYPES = {"id": "int64", "word": "string"}


def test_only_many_files_that_are_small_are_merged_and_rows_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(9)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"word": [None, f"w{number}"], "id": [2 * number, 2 * number + 1]}), path)
    assert merged(paths, TYPES, tmp_path, "rows") == paths
    monkeypatch.setattr(small_files, "KEPT_FOOTERS", 8)

    (one,) = merged(paths, TYPES, tmp_path, "rows")

    found = pq.read_table(one)
    assert found["id"].to_pylist() == list(range(18))
    assert found["word"].to_pylist() == [word for number in range(9) for word in (None, f"w{number}")]
    monkeypatch.setattr(small_files, "MERGED_BYTES", 10)
    assert merged(paths, TYPES, tmp_path, "rows") == paths


@pytest.mark.slow
def test_dataset_of_merged_files_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = EvaluateBench(tmp_path, "binary")
    monkeypatch.setattr(small_files, "KEPT_FOOTERS", 0)
    joined: list[list[str]] = []

    def spied(*arguments: Any) -> list[Path]:
        found = merged(*arguments)
        joined.append([path.parent.name for path in found])
        return found

    monkeypatch.setattr("training.data.join.plan.merged", spied)

    again = bench.prepare(work="merged")

    assert joined == [["_merged"]]
    assert bench.store.manifests.get(again).files == bench.store.manifests.get(bench.dataset_uri).files
