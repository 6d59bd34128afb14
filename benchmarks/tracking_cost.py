"""What tracking costs a real training (R116: at most 5 % of the throughput).

    PYTHONPATH=.:plugins python -m benchmarks.tracking_cost [--rounds 3] [--epochs 600]

The ranker of search_ranking on a small shop, one process, in turns with and without tracking. With it, metrics go to an MLflow server on
SQLite and to the journal that live readers read; without it, every call is a no-op, as on ranks other than 0. CPU is that of the
training's process alone, from before its first step to its end: MLflow's client is imported in it, once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.out_of_core import mlflow_server
from tests.training_bench import Bench


class Follower:
    """A stage's context as a rank other than 0 has it, for what tracks."""

    rank = 1

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def train(folder: Path, epochs: int, name: str) -> dict[str, float]:
    """Train once in this process; return its seconds and the points that it logged."""
    from training.engine.tracking import tracker as tracking

    points = 0
    if name.startswith("off"):
        begin = tracking.Tracker.__init__
        tracking.Tracker.__init__ = lambda self, context, **named: begin(self, Follower(context), **named)  # type: ignore[method-assign, arg-type]
    else:
        log = tracking.Tracker.log

        def counted(self: tracking.Tracker, step: int, **metrics: float) -> None:
            nonlocal points
            points += len(metrics)
            log(self, step, **metrics)

        tracking.Tracker.log = counted  # type: ignore[method-assign]
    bench = Bench(folder, epochs=epochs)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    code = bench.train(name)
    result = bench.work_folder("train", name).result()
    after, wall_seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - began
    if code or result is None:
        raise SystemExit(f"the training ended with {code}")
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "cpu_seconds": cpu_seconds,
        "wall_seconds": wall_seconds,
        "points": points,
        "rows_per_second": float(result.scalars["rows_per_second"] or 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        with tempfile.TemporaryDirectory() as folder:
            print("RESULT " + json.dumps(train(Path(folder), options.epochs, options.child)))
        return
    found: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder, mlflow_server(Path(folder)) as uri:
        for number in range(options.rounds):
            for name in ("off", "on") if number % 2 == 0 else ("on", "off"):
                command = [sys.executable, "-m", "benchmarks.tracking_cost", "--epochs", str(options.epochs), "--child", f"{name}{number}"]
                variables = {**os.environ, "MLFLOW_TRACKING_URI": uri}
                ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
                line = next(line for line in ended.stdout.splitlines() if line.startswith("RESULT "))
                found[name].append(json.loads(line.removeprefix("RESULT ")))
                print(name, found[name][-1], flush=True)
    cpu, wall = (
        {name: statistics.median(one[key] for one in runs) for name, runs in found.items()} for key in ("cpu_seconds", "wall_seconds")
    )
    print(f"CPU s: {cpu['off']:.2f} without, {cpu['on']:.2f} with tracking, ratio {cpu['on'] / cpu['off']:.3f}")
    rows = {name: statistics.median(one["rows_per_second"] for one in runs) for name, runs in found.items()}
    print(
        f"rows per second: {rows['off']:.0f} without, {rows['on']:.0f} with tracking, {1 - rows['on'] / rows['off']:.1%} of the throughput"
    )
    print(f"wall s: {wall['off']:.2f} without, {wall['on']:.2f} with tracking, ratio {wall['on'] / wall['off']:.3f}")


if __name__ == "__main__":
    main()
