"""The join and the fit of `prepare` on 1 to 16 cores: what a machine with a card has idle while it prepares data.

They need DuckDB, which is carried, and PyArrow and pandas (59 MB of wheels), which the machine must have: else the line says what lacks.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

NEEDED: Final = ("duckdb", "pyarrow", "pandas")
CORES: Final = (1, 2, 4, 8, 16)
ITEMS: Final = 50_000
EVENTS: Final = """
COPY (SELECT i AS id, hash(i) % {items} AS item, hash(i, 1) % 1000 / 10.0 AS price, hash(i, 2) % 2 AS clicked,
      TIMESTAMPTZ '2026-01-01 00:00:00Z' + to_seconds(i * {seconds}) AS at FROM range({rows}) t(i)) TO '{path}'
"""
FACTS: Final = """
COPY (SELECT i % {items} AS item, hash(i, 3) % 500 / 100.0 AS rating, i % 97 AS kind,
      TIMESTAMPTZ '2025-12-31 00:00:00Z' + to_days(CAST(i // {items} AS INTEGER)) AS at FROM range({items} * 20) t(i)) TO '{path}'
"""
"""Of each item, a fact a day for 20 days."""


def measure(device: str) -> Iterator[dict[str, Any]]:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        yield {"skipped": f"not installed: {', '.join(missing)}"}
        return
    rows = 4_000_000 if device == "cuda" else 20_000
    available = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), rows)
        yield {"rows": rows, "cores": len(available)}
        for count in (number for number in CORES if number <= len(available)):
            os.sched_setaffinity(0, available[:count])
            yield {f"on {count} cores": prepared(Path(name), rows, count)}


def write(folder: Path, rows: int) -> None:
    import duckdb

    seconds = 20 * 86_400 / rows
    duckdb.sql(EVENTS.format(items=ITEMS, rows=rows, seconds=seconds, path=folder / "events.parquet"))
    duckdb.sql(FACTS.format(items=ITEMS, path=folder / "facts.parquet"))


def prepared(folder: Path, rows: int, threads: int) -> dict[str, float]:
    """Return the seconds of the join and of the fit, by the engine that `prepare` uses, with so many threads."""
    from training.data.features.encoders import EncoderSettings
    from training.data.features.transforms import FeaturePlan
    from training.data.join.contract import JoinedTable, MainTable
    from training.data.join.engines import duckdb as engines
    from training.sql.expressions import hardened

    main = MainTable(
        name="events",
        paths=[folder / "events.parquet"],
        columns={name: name for name in ("id", "item", "price", "clicked", "at")},
        event_time="at",
        key=["id"],
        decision_lead=timedelta(),
        label_column="clicked",
    )
    facts = JoinedTable(
        name="facts", paths=[folder / "facts.parquet"], on={"item": "item"}, columns={"rating": "rating", "kind": "kind"}, event_time="at"
    )
    # The product's stages share their machine, so they take one number of threads everywhere.
    vars(engines)["hardened"] = functools.partial(hardened, threads=threads)
    plans = [
        FeaturePlan(name="price", settings=EncoderSettings(kind="standard")),
        FeaturePlan(name="rating", settings=EncoderSettings(kind="standard", fill="mean")),
        FeaturePlan(name="item", settings=EncoderSettings(kind="category")),
    ]
    engine = engines.DuckDBEngine(folder, lambda *_: None)
    started_at = time.perf_counter()
    frame = engine.join(main, [facts], as_of=datetime(2027, 1, 1, tzinfo=UTC))
    joined_at = time.perf_counter()
    engine.fit(frame, np.ones(frame.num_rows, dtype=bool), derived=[], features=plans)
    ended_at = time.perf_counter()
    if frame.num_rows != rows:
        raise RuntimeError(f"{rows} events were joined to {frame.num_rows} rows")
    return {
        "join_seconds": joined_at - started_at,
        "fit_seconds": ended_at - joined_at,
        "join_rows_per_second": rows / (joined_at - started_at),
    }
