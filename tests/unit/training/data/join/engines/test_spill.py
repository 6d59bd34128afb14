"""What does not fit a query's memory limit goes to scratch, is told, and changes no byte."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.join.contract import MainTable
from training.data.join.engines import duckdb as engine_module
from training.data.join.engines.duckdb import DuckDBEngine
from training.data.join.engines.spill import SpilledBytes
from training.errors import DataError, UnavailableError

ROWS = 1_200_000
LIMIT_BYTES = 56 * 2**20


def joined(folder: Path, rows: pa.Table) -> pa.Table:
    folder.mkdir()
    path = folder / "rows.parquet"
    pq.write_table(rows, path, row_group_size=1 << 14)
    main = MainTable(
        name="rows",
        paths=[path],
        columns={name: name for name in ("id", "at", "text", "label")},
        event_time="at",
        key=["id"],
        decision_lead=timedelta(),
        label_column="label",
    )
    frame = DuckDBEngine(folder, lambda _done, _total, _unit: None).join(main, [], as_of=datetime(2026, 1, 1, tzinfo=UTC))
    return pa.concat_tables(frame.batches())


def test_a_join_that_spills_says_so_and_has_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(1)
    numbers = rng.permutation(ROWS)
    times = pa.array(rng.integers(0, 10**12, ROWS)).cast(pa.timestamp("us", tz="UTC"))
    texts = pa.array([f"{number:032d}" for number in numbers.tolist()])
    rows = pa.table({"id": numbers, "at": times, "text": texts, "label": rng.integers(0, 2, ROWS).astype(np.float32)})
    caplog.set_level(logging.INFO)
    expected = joined(tmp_path / "fits", rows)
    assert "spilled" not in caplog.text

    monkeypatch.setattr(engine_module, "engine_memory_bytes", lambda: LIMIT_BYTES)
    found = joined(tmp_path / "spills", rows)

    assert found.equals(expected)
    assert "MiB spilled to scratch: the query's memory limit is 56 MiB" in caplog.text


def test_a_join_that_its_memory_cannot_hold_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "engine_memory_bytes", lambda: 2**20)
    rows = pa.table({"id": np.arange(ROWS), "at": pa.array(np.arange(ROWS)).cast(pa.timestamp("us", tz="UTC")), "label": np.ones(ROWS)})

    with pytest.raises(DataError) as refused:
        joined(tmp_path / "rows", rows.append_column("text", pa.array(["x"] * ROWS)))

    assert refused.value.code == "engine.memory"
    assert "of rows needs more than its memory limit of 1 MiB" in refused.value.message
    assert "NIGHTSHIFT_STAGE_MEMORY" in refused.value.hint


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ('Could not write file ".spill/x": No space left on device', "storage.full"),
        ('Cannot open file "x": Too many open files', "process.open_files"),
    ],
)
def test_a_join_that_the_machine_refuses_is_no_fault_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, code: str
) -> None:
    def refuse(*_arguments: object) -> None:
        raise duckdb.IOException(f"IO Error: {reason}")

    monkeypatch.setattr(DuckDBEngine, "_joined", refuse)
    rows = pa.table({"id": np.arange(3), "at": pa.array(np.arange(3)).cast(pa.timestamp("us", tz="UTC")), "label": np.ones(3)})
    with pytest.raises(UnavailableError) as refused:
        joined(tmp_path / "rows", rows)
    assert refused.value.code == code


def test_the_largest_size_of_the_folder_counts(tmp_path: Path) -> None:
    spill = SpilledBytes(tmp_path)
    spill.look()
    assert spill.most == 0
    (tmp_path / "one").write_bytes(b"x" * 100)
    assert list(spill.watched(iter("abc"))) == ["a", "b", "c"]
    (tmp_path / "one").unlink()
    spill.look()
    assert spill.most == 100


def test_a_label_beyond_32_bits_is_refused_with_its_row(tmp_path: Path) -> None:
    times = pa.array([3, 1, 2], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.table({"id": [7, 8, 9], "at": times, "text": ["a", "b", "c"], "label": [1e39, 1.0, -1e300]})
    with pytest.raises(DataError, match=r"label 'label': 2 rows are beyond .* 32 bits, the first is -1e\+300 of id='?9'?") as caught:
        joined(tmp_path / "rows", rows)
    assert caught.value.code == "label.range"
