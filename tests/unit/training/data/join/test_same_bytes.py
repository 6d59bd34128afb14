"""A frame and its fitted transforms have the same bytes on one thread or two, in memory or on disk, in any order of files and rows."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan
from training.data.join.contract import JoinedTable, MainTable
from training.data.join.engines import duckdb as engine_module
from training.data.join.engines.duckdb import DuckDBEngine
from training.data.join.engines.interface import BATCH_ROWS
from training.sql.expressions import hardened

CASES = 50
LONG_CASES = 450
START_US = 1_767_225_600_000_000
SPAN_US = 20 * 86_400_000_000
KINDS = ("number", "standard", "log", "bucket")


@dataclass(frozen=True)
class Pair:
    """A spec and its tables."""

    main: MainTable
    features: tuple[JoinedTable, ...]
    tables: dict[str, pa.Table]
    plans: tuple[FeaturePlan, ...]


def instants(rng: np.random.Generator, num: int) -> pa.Array:
    return pa.array(START_US + rng.integers(0, SPAN_US, num)).cast(pa.timestamp("us", tz="UTC"))


def numbers(rng: np.random.Generator, num: int) -> pa.Array:
    """Return doubles whose sum depends on the order of adding, with nulls."""
    values = np.abs(rng.normal(size=num)) * 10.0 ** rng.integers(-12, 12, num)
    return pa.array(values, mask=rng.random(num) < 0.1)


def pair_of(seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    num, num_facts, num_keys = int(rng.integers(40, 3000)), int(rng.integers(1, 800)), int(rng.integers(1, 60))
    names = [f"x{number}" for number in range(int(rng.integers(1, 4)))]
    tables = {
        "rows": pa.table(
            {
                "id": rng.permutation(num),
                "at": instants(rng, num),
                "k": pa.array(rng.integers(0, num_keys, num), mask=rng.random(num) < 0.05),
                "word": pa.array(rng.choice(["a", "b", "é", ""], num).tolist(), pa.string()),
                **{name: numbers(rng, num) for name in names},
                "y": rng.integers(0, 2, num).astype(np.float32),
            }
        )
    }
    main = MainTable(
        name="rows",
        paths=[],
        columns={name: name for name in tables["rows"].column_names},
        event_time="at",
        key=["id"],
        decision_lead=timedelta(hours=int(rng.integers(0, 30))),
        label_column="y",
    )
    features = []
    if rng.random() < 0.7:
        moments = START_US + rng.choice(SPAN_US // 1000, num_facts, replace=False) * 1000
        facts = {"key": rng.integers(0, num_keys, num_facts), "seen": pa.array(moments).cast(pa.timestamp("us", tz="UTC"))}
        tables["facts"] = pa.table({**facts, "value": numbers(rng, num_facts)})
        age = timedelta(days=int(rng.integers(1, 9))) if rng.random() < 0.5 else None
        lag = timedelta(minutes=int(rng.integers(0, 90)))
        features.append(
            JoinedTable(
                name="facts", paths=[], on={"k": "key"}, columns={"value": "fact"}, event_time="seen", available_after=lag, max_age=age
            )
        )
        names.append("fact")
    if rng.random() < 0.5:
        tables["places"] = pa.table({"key": rng.permutation(num_keys), "size": numbers(rng, num_keys)})
        features.append(JoinedTable(name="places", paths=[], on={"k": "key"}, columns={"size": "size"}))
        names.append("size")
    plans = [FeaturePlan(name=name, settings=EncoderSettings(kind=str(rng.choice(KINDS)))) for name in names]
    plans += [FeaturePlan(name=name, settings=EncoderSettings(kind="category")) for name in ("word", "k")]
    return Pair(main, tuple(features), tables, tuple(plans))


def written(folder: Path, table: pa.Table, rng: np.random.Generator | None) -> list[Path]:
    """Write a table as one file, or in any order of rows and as several files, themselves in any order."""
    if rng is not None:
        table = table.take(pa.array(rng.permutation(table.num_rows)))
    edges = [0, table.num_rows] if rng is None else [0, *sorted(rng.integers(0, table.num_rows + 1, 3).tolist()), table.num_rows]
    paths = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        paths.append(folder / f"{number}.parquet")
        pq.write_table(table.slice(start, stop - start), paths[-1], row_group_size=512)
    return paths if rng is None else [paths[number] for number in rng.permutation(len(paths))]


def digest_of(folder: Path, pair: Pair, order: np.random.Generator | None = None) -> str:
    folder.mkdir()
    paths: dict[str, Sequence[Path]] = {}
    for name, table in pair.tables.items():
        (folder / name).mkdir()
        paths[name] = written(folder / name, table, order)
    main = replace(pair.main, paths=paths["rows"])
    features = [replace(table, paths=paths[table.name]) for table in pair.features]
    engine = DuckDBEngine(folder, lambda _done, _total, _unit: None)
    frame = engine.join(main, features, as_of=datetime(2026, 3, 1, tzinfo=UTC))
    training = np.arange(frame.num_rows) < frame.num_rows * 0.8
    transforms = engine.fit(frame, training, derived=[], features=pair.plans)
    found = hashlib.sha256(transforms.to_json())
    for batch in frame.batches():
        sink = pa.BufferOutputStream()
        # As a part of the dataset is written.
        with pq.ParquetWriter(sink, frame.schema, compression="zstd", write_page_checksum=True) as writer:
            writer.write_table(batch, row_group_size=BATCH_ROWS)
        found.update(sink.getvalue())
        found.update(transforms.apply(batch.to_pandas(), serving=False).cells.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("seed", [*range(CASES), *(pytest.param(CASES + n, marks=pytest.mark.long) for n in range(LONG_CASES))])
def test_the_same_tables_give_the_same_bytes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of(seed)

    def run(name: str, *, threads: int, on_disk: bool, order: np.random.Generator | None = None) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "hardened", functools.partial(hardened, threads=threads))
            if on_disk:
                patch.setattr("training.data.join.engines.scratch_frame.MEMORY_BYTES", 0)
            return digest_of(tmp_path / name, pair, order)

    expected = run("one", threads=1, on_disk=False)

    assert run("two", threads=2, on_disk=False) == expected
    assert run("disk", threads=2, on_disk=True) == expected
    assert run("order", threads=2, on_disk=False, order=np.random.default_rng(seed)) == expected


def test_other_tables_give_other_bytes(tmp_path: Path) -> None:
    pair = pair_of(0)
    rows: Any = pair.tables["rows"]
    other = replace(pair, tables={**pair.tables, "rows": rows.slice(1)})

    assert digest_of(tmp_path / "one", pair) != digest_of(tmp_path / "other", other)
