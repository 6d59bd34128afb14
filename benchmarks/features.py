"""What a point-in-time join and a 7-day window cost beside pandas, polars and DuckDB by hand (F1).

    PYTHONPATH=. python benchmarks/features.py [--rows 5000000] [--rounds 5] [--threads 1]

Orders of 50,000 users over 60 days, in no order, and a fifth as many facts about users. Each case makes one Parquet file with the newest
fact of each order's user, and the mean value of the user's orders of the seven days before. Each case runs in a process of its own, in
turns; seconds are counted from after its imports. polars is left out where it is not installed.

nightshift   `DuckDBEngine.join`, with what it does besides: keys and facts are checked, the frame is in the order of (time, key)
floor        reads both tables, and writes the orders
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.join.contract import JoinedTable, MainTable
from training.data.join.engines.duckdb import DuckDBEngine
from training.data.join.windows import WindowColumn
from training.sql import expressions

CASES = ("floor", "nightshift", "duckdb", "polars", "pandas")
START = datetime(2026, 1, 1, tzinfo=UTC)
DAYS, USERS = 60, 50_000
WEEK = timedelta(days=7)
INSTANT = pa.timestamp("us", tz="UTC")


def write(folder: Path, rows: int) -> None:
    """Write orders.parquet and facts.parquet; no two facts of a user have one time."""
    rng = np.random.default_rng(0)
    start_us, length_us = round(START.timestamp() * 1e6), DAYS * 86_400_000_000
    orders = {
        "id": np.arange(rows),
        "user": rng.integers(0, USERS, rows),
        "at": pa.array(start_us + rng.integers(0, length_us, rows)).cast(INSTANT),
        "value": rng.lognormal(3, 1, rows),
        "label": np.zeros(rows, dtype=np.float32),
    }
    pq.write_table(pa.table(orders), folder / "orders.parquet")
    num, step_us = rows // 5, length_us // (rows // 5)
    told = rng.permutation(start_us + np.arange(num) * step_us + rng.integers(0, step_us, num))
    columns = {"user": rng.integers(0, USERS, num), "told": pa.array(told).cast(INSTANT), "score": rng.normal(size=num)}
    pq.write_table(pa.table(columns), folder / "facts.parquet")


def floor(folder: Path, threads: int) -> float:
    facts = pq.read_table(folder / "facts.parquet")
    orders = pq.read_table(folder / "orders.parquet")
    pq.write_table(orders, folder / "made.parquet", compression="lz4")
    return float(facts.num_rows)


def nightshift(folder: Path, threads: int) -> float:
    # The default of a parameter is bound when the function is made.
    expressions.hardened.__kwdefaults__["threads"] = threads
    main = MainTable(
        name="orders",
        paths=[folder / "orders.parquet"],
        columns={name: name for name in ("id", "user", "at", "value", "label")},
        event_time="at",
        key=["id"],
        decision_lead=timedelta(),
        label_column="label",
    )
    facts = JoinedTable(name="facts", paths=[folder / "facts.parquet"], on={"user": "user"}, columns={"score": "score"}, event_time="told")
    week = WindowColumn(name="week", kind="rolling", function="mean", table="orders", by={"user": "user"}, column="value", time=WEEK)
    frame = DuckDBEngine(folder, lambda _done, _total, _unit: None).join(main, [facts], [week], as_of=START + timedelta(days=DAYS))
    return checksum(frame.column("week").to_numpy())


def by_hand(folder: Path, threads: int) -> float:
    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    query = """
        COPY (
            SELECT o.*, f.score, avg(value) OVER (
                PARTITION BY o.user ORDER BY o.at
                RANGE BETWEEN INTERVAL 7 DAYS PRECEDING AND INTERVAL 1 MICROSECOND PRECEDING) AS week
            FROM read_parquet('{folder}/orders.parquet') o ASOF LEFT JOIN read_parquet('{folder}/facts.parquet') f
            ON o.user = f.user AND o.at >= f.told
        ) TO '{folder}/made.parquet' (FORMAT parquet, COMPRESSION lz4)
    """
    connection.execute(query.format(folder=folder))
    return checksum(pq.read_table(folder / "made.parquet", columns=["week"])["week"].to_numpy())


def polars(folder: Path, threads: int) -> float:
    pl = importlib.import_module("polars")

    orders = pl.read_parquet(folder / "orders.parquet").sort("user", "at")
    facts = pl.read_parquet(folder / "facts.parquet").sort("user", "told")
    joined = orders.join_asof(facts, left_on="at", right_on="told", by="user", check_sortedness=False)
    made = joined.with_columns(pl.col("value").rolling_mean_by("at", window_size="7d", closed="left").over("user").alias("week"))
    made.write_parquet(folder / "made.parquet", compression="lz4")
    return checksum(made["week"].to_numpy())


def pandas(folder: Path, threads: int) -> float:
    pd = importlib.import_module("pandas")

    orders = pd.read_parquet(folder / "orders.parquet").sort_values("at")
    facts = pd.read_parquet(folder / "facts.parquet").sort_values("told")
    joined = pd.merge_asof(orders, facts, left_on="at", right_on="told", by="user").sort_values(["user", "at"])
    week = joined.groupby("user").rolling("7D", on="at", closed="left")["value"].mean()
    joined["week"] = week.to_numpy()
    joined.to_parquet(folder / "made.parquet", compression="lz4")
    return checksum(joined["week"].to_numpy())


def checksum(values: Any) -> float:
    """Return the mean of what is there: cases must agree to nine digits."""
    return float(np.nanmean(values.astype(np.float64)))


WORK: dict[str, Callable[[Path, int], float]] = {
    "floor": floor, "nightshift": nightshift, "duckdb": by_hand, "polars": polars, "pandas": pandas,
}  # fmt: skip


def measure(case: str, folder: Path, threads: int) -> None:
    """Run a case in this process; print its seconds, its memory in MB and its checksum, as JSON."""
    pa.set_cpu_count(threads)
    if case in ("polars", "pandas"):
        importlib.import_module(case)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    found = WORK[case](folder, threads)
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb, "found": found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        return measure(given.case, given.folder, given.threads)
    cases = [case for case in CASES if case not in ("polars", "pandas") or importlib.util.find_spec(case)]
    runs: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    limits = {name: str(given.threads) for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS")}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.rows)
        for _ in range(given.rounds):
            for case in cases:
                command = [sys.executable, __file__, "--case", case, "--folder", folder, "--threads", str(given.threads)]
                output = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **limits}).stdout
                runs[case].append(json.loads(output.splitlines()[-1]))
    print(f"{given.rows:,} orders, {given.threads} threads, {given.rounds} rounds, load {os.getloadavg()[0]:.0f}; medians")
    cpu = {case: statistics.median(run["cpu_s"] for run in found) for case, found in runs.items()}
    for case, found in runs.items():
        wall_s, peak_mb = (statistics.median(run[key] for run in found) for key in ("wall_s", "peak_mb"))
        ratios = ", ".join(f"{cpu[case] / cpu[other]:.2f} of {other}" for other in cases if other != case)
        print(f"{case:10} {cpu[case]:6.2f} s of CPU ({ratios}), {wall_s:.2f} s, {peak_mb:.0f} MB, mean {found[0]['found']:.9g}", flush=True)
    return None


if __name__ == "__main__":
    main()
