"""Seconds until MLflow and Airflow are ready, and their memory and CPU when idle: first start, second start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from devstack.processes import MARK, marked_by_home

ROOT = Path(__file__).resolve().parent.parent
PORTS = {"NIGHTSHIFT_AIRFLOW_PORT": "28180", "NIGHTSHIFT_MLFLOW_PORT": "28150"}
IDLE_SECONDS = 60.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
        environment = {**os.environ, **PORTS, "NIGHTSHIFT_HOME": folder, "PYTHONPATH": path}

        def services(command: str) -> str:
            arguments = [sys.executable, "-m", "devstack", command]
            return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout

        for start in ("first", "second"):
            started_at = time.monotonic()
            services("start")
            print(f"{start} start: {time.monotonic() - started_at:.1f} s to ready")
            if start == "second":
                time.sleep(10)  # idle means that the start's own work is over
                print(services("status"))
                before = cpu_seconds(Path(folder))
                time.sleep(IDLE_SECONDS)
                used = cpu_seconds(Path(folder)) - before
                shares = ", ".join(f"{name} {100 * seconds / IDLE_SECONDS:.1f} %" for name, seconds in sorted(used.items()))
                print(f"idle, of a core over {IDLE_SECONDS:.0f} s at load {os.getloadavg()[0]:.1f}: {shares}")
            services("stop")


def cpu_seconds(home: Path) -> Counter[str]:
    """Return the CPU seconds of each component: its living processes, and their ended children."""
    found = Counter[str]()
    for identity in marked_by_home(home):
        try:
            process = psutil.Process(identity.pid)
            times = process.cpu_times()
            component = process.environ()[MARK].split(":", 1)[0]
        except psutil.Error:
            continue
        found[component] += times.user + times.system + times.children_user + times.children_system
    return found


if __name__ == "__main__":
    main()
