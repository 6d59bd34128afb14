"""Seconds until MLflow and Airflow are ready, and their memory when idle: first start, second start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORTS = {"NIGHTSHIFT_AIRFLOW_PORT": "28180", "NIGHTSHIFT_MLFLOW_PORT": "28150"}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
        environment = {**os.environ, **PORTS, "NIGHTSHIFT_HOME": folder, "PYTHONPATH": path}

        def services(command: str) -> str:
            arguments = [sys.executable, "-m", "nightshift.services", command]
            return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout

        for start in ("first", "second"):
            started_at = time.monotonic()
            services("start")
            print(f"{start} start: {time.monotonic() - started_at:.1f} s to ready")
            if start == "second":
                time.sleep(10)  # idle means that the start's own work is over
                print(services("status"))
            services("stop")


if __name__ == "__main__":
    main()
