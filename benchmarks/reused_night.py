"""Seconds of a fully reused night against a DAG of eight Python functions without a body, on the same running installation, in turns.

    PYTHONPATH=.:plugins python benchmarks/reused_night.py [--rounds 5]

It starts an installation of its own, with Airflow and MLflow, and trains one small night first. A run's time is from its start to its
end, as Airflow's database has them. Tasks of the peer are Python functions without a body: EmptyOperator would be ended by the
scheduler without a process, and is printed as well. CPU seconds are those of all processes of the installation during the run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import psutil

from devstack.processes import marked_by_home
from tests.integration.installation import Installation

PIPELINE = "reused"
PEERS = {
    "eight_functions": """
from airflow.sdk import DAG, chain, task
with DAG("eight_functions", schedule=None, catchup=False):
    def nothing(): pass
    chain(*[task(task_id=f"t{number}")(nothing)() for number in range(8)])
""",
    "eight_empty": """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, chain
with DAG("eight_empty", schedule=None, catchup=False):
    chain(*[EmptyOperator(task_id=f"t{number}") for number in range(8)])
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        installation = Installation.prepare(Path(folder))
        for name, text in PEERS.items():
            (installation.dags / f"{name}.py").write_text(f'"""Peer: an Airflow DAG."""\n{text}', encoding="utf-8")
        installation.add_pipeline(PIPELINE)
        try:
            installation.services("start")
            conf = {PIPELINE: {"as_of": "2026-01-31T02:00:00+00:00"}}
            measure_run(installation, PIPELINE, conf[PIPELINE])
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in (PIPELINE, *PEERS)}
            for _ in range(options.rounds):
                for name, runs in found.items():
                    runs.append(measure_run(installation, name, conf.get(name, {})))
        finally:
            installation.stop()
    report(found)


def measure_run(installation: Installation, dag_id: str, conf: Mapping[str, str]) -> tuple[float, float]:
    """Trigger a run and wait for its end; return its seconds, and the CPU seconds of the installation meanwhile."""
    before = cpu_seconds(installation)
    run_id = installation.trigger(dag_id, conf)
    if installation.wait(dag_id, run_id) != "success":
        raise SystemExit(installation.why(dag_id, run_id))
    used = cpu_seconds(installation) - before
    run = installation.api.get(f"/dags/{dag_id}/dagRuns/{run_id}")
    started_at, ended_at = (datetime.fromisoformat(run[name].replace("Z", "+00:00")) for name in ("start_date", "end_date"))
    return (ended_at - started_at).total_seconds(), used


def cpu_seconds(installation: Installation) -> float:
    """Return the CPU seconds of all living processes, and of their ended children."""
    total = 0.0
    for identity in marked_by_home(installation.home):
        try:
            times = psutil.Process(identity.pid).cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def report(found: Mapping[str, list[tuple[float, float]]]) -> None:
    """Print medians, and the ratio to the tasks that do nothing."""
    print(f"load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}, median of {len(found[PIPELINE])}\n")
    print("| run | s | CPU s | s, in runs of eight functions |\n| --- | --- | --- | --- |")
    peer = statistics.median(seconds for seconds, _ in found["eight_functions"])
    for name, runs in found.items():
        seconds, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {seconds / peer:.2f} |")


if __name__ == "__main__":
    main()
