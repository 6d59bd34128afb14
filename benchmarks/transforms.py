"""What standardising a column and hashing a key cost beside pandas, polars and DuckDB by hand (F1's other operations).

    PYTHONPATH=. python benchmarks/transforms.py [--rows 5000000] [--rounds 3]

A column in memory becomes a float32 column (fitted on itself) or a column of 65,536 buckets, with one thread. Nightshift does what
`prepare` does: a mean that no order of rows changes, a hash that every machine and version has, values that are missing. The ones by
hand do none of that. polars is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms

KEYS, BUCKETS = 50_000, 1 << 16


def nightshift(kind: str) -> Callable[[pd.DataFrame], Any]:
    plan = FeaturePlan(name="x", settings=EncoderSettings(kind=kind, buckets=BUCKETS if kind == "hash" else None))

    def work(frame: pd.DataFrame) -> Any:
        return FittedTransforms.fit(frame, derived=[], features=[plan]).apply(frame, serving=False).cells

    return work


def by_pandas(kind: str) -> Callable[[pd.DataFrame], Any]:
    def standard(frame: pd.DataFrame) -> Any:
        return ((frame["x"] - frame["x"].mean()) / frame["x"].std()).astype("float32")

    def hashed(frame: pd.DataFrame) -> Any:
        return (pd.util.hash_pandas_object(frame["x"], index=False) % BUCKETS).astype("int32")

    return hashed if kind == "hash" else standard


def by_polars(kind: str) -> Callable[[pd.DataFrame], Any]:
    pl = importlib.import_module("polars")
    x = pl.col("x")
    made = (x.hash() % BUCKETS).cast(pl.Int32) if kind == "hash" else ((x - x.mean()) / x.std()).cast(pl.Float32)
    return lambda frame: pl.from_arrow(pa.table({"x": frame["x"].to_numpy()})).select(made).to_numpy()


def by_duckdb(kind: str) -> Callable[[pd.DataFrame], Any]:
    hashed = f"SELECT CAST(hash(x) % {BUCKETS} AS INTEGER) AS y FROM rows"  # noqa: S608 - a number of our own
    standard = "SELECT CAST((x - (SELECT avg(x) FROM rows)) / (SELECT stddev_pop(x) FROM rows) AS FLOAT) AS y FROM rows"

    def work(frame: pd.DataFrame) -> Any:
        connection = duckdb.connect()
        connection.execute("SET threads = 1")
        connection.register("rows", pa.table({"x": frame["x"].to_numpy()}))
        return connection.sql(hashed if kind == "hash" else standard).to_arrow_table()["y"].to_numpy()

    return work


CASES = {"nightshift": nightshift, "pandas": by_pandas, "polars": by_polars, "duckdb": by_duckdb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    # Before polars is imported, which reads it then.
    os.environ["POLARS_MAX_THREADS"] = "1"
    pa.set_cpu_count(1)
    rng = np.random.default_rng(0)
    frames = {
        "standard": pd.DataFrame({"x": rng.lognormal(3, 1, given.rows)}),
        "hash": pd.DataFrame({"x": rng.integers(0, KEYS, given.rows)}),
    }
    print(f"{given.rows:,} rows, {given.rounds} rounds, load {os.getloadavg()[0]:.0f}; median s of CPU")
    for kind, frame in frames.items():
        cases = {name: make(kind) for name, make in CASES.items() if name != "polars" or importlib.util.find_spec("polars")}
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(given.rounds):
            for name, work in cases.items():
                before = time.process_time()
                work(frame)
                seconds[name].append(time.process_time() - before)
        print(f"{kind:9} " + ", ".join(f"{name} {statistics.median(found):.3f}" for name, found in seconds.items()), flush=True)


if __name__ == "__main__":
    main()
