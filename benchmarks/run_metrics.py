"""What live metrics cost: a metric call of a training, and the copy of one run's points into a table that has those of many runs.

    PYTHONPATH=. python benchmarks/run_metrics.py [--runs 2000] [--points 500]

On a store in a folder and SQLite. Ratios compare the full table with an empty one; five copies each, medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine, insert

from benchmarks.gpu.trainings import context_of
from training.database import connect
from training.database.run_metrics import copy_points
from training.database.schema import RunMetricRow
from training.engine.tracking.tracker import Tracker
from training.store import Bucket
from training.store.metric_journal import JournalWriter, MetricJournal

REPEATS = 5
CALLS = 20_000


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fill(engine: Engine, runs: int, points: int) -> None:
    at = datetime(2026, 2, 1, tzinfo=UTC)
    for run in range(runs):
        fixed = {"run_id": f"ranking:night-{run:06d}", "attempt": 1, "metric_name": "train_loss", "value": 0.5, "logged_at": at}
        with engine.begin() as connection:
            connection.execute(insert(RunMetricRow), [{**fixed, "number": number + 2, "step": number} for number in range(points)])


def copy_seconds(engine: Engine, bucket: Bucket, label: str, points: int) -> float:
    found = []
    for repeat in range(REPEATS):
        run_id = f"{label}-{repeat}"
        JournalWriter(MetricJournal(bucket, "ranking", run_id), "a1").append([("train_loss", 0.5, step, 1) for step in range(points)])
        found.append(seconds_of(lambda run_id=run_id: copy_points(engine, bucket, "ranking", run_id)))  # type: ignore[misc]
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--points", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bucket, path = Bucket((Path(folder) / "store").as_uri()), Path(folder) / "nightshift.db"
        engine = connect(f"sqlite:///{path}")
        os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
        tracker = Tracker(context_of(Path(folder) / "calls", "a1"), tags={}, parameters={})
        called = seconds_of(lambda: deque((tracker.log(step, train_loss=0.5, lr=0.1) for step in range(CALLS)), maxlen=0))
        tracker.close()
        print(f"a call with two metrics: {called / CALLS * 1e6:.2f} us")
        empty = copy_seconds(engine, bucket, "empty", options.points)
        fill(engine, options.runs, options.points)
        full = copy_seconds(engine, bucket, "full", options.points)
        size = path.stat().st_size / 1e6
        print(f"copy of {options.points} points: {empty * 1e3:.1f} ms into an empty table, {full * 1e3:.1f} ms into {options.runs} runs")
        print(f"ratio {full / empty:.2f}; {size:.0f} MB, {size * 1e6 / (options.runs * options.points):.0f} bytes a point")


if __name__ == "__main__":
    main()
