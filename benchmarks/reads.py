"""CPU and queries of what the pages and commands read, after a long history of many models.

    PYTHONPATH=.:plugins python -m benchmarks.reads [--models 300] [--nights 300]

In process: the REST API's application over Airflow's tables and the ledger, both on SQLite. Each figure stands beside the one after a
twentieth of the nights: the ratio says whether it grows with history.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SHORT: Final = 20
"""As many times fewer nights has the short history."""
REPEATS: Final = 5

Figures = dict[str, tuple[float, int]]
"""What is read to CPU ms and queries."""


def main() -> None:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--models", type=int, default=300)
    found.add_argument("--nights", type=int, default=300)
    found.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = found.parse_args()
    if options.one:
        measure(options.models, options.nights)
    else:
        show(options, *(one(options.models, nights) for nights in (options.nights // SHORT, options.nights)))


def show(options: argparse.Namespace, short: Figures, long: Figures) -> None:
    """Print the table."""
    print(f"{options.models} models, {options.nights} nights; CPU ms (queries), least of {REPEATS}")
    print(f"| what | ms (queries) | after 1/{SHORT} | ratio |\n| --- | --- | --- | --- |")
    for what, (ms, queries) in long.items():
        print(f"| {what} | {ms:.1f} ({queries}) | {short[what][0]:.1f} ({short[what][1]}) | {ms / short[what][0]:.2f} |")


def one(num_models: int, num_nights: int) -> Figures:
    """Measure in a process and an installation of its own."""
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        own = {"NIGHTSHIFT_HOME": folder, "AIRFLOW_HOME": f"{folder}/airflow", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        own |= {"NIGHTSHIFT_API_RATE": "0", "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL", "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
        command = [sys.executable, "-m", "benchmarks.reads", "--one", "--models", str(num_models), "--nights", str(num_nights)]
        printed = subprocess.run(command, env={**os.environ, **own}, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows = [line.split("\t") for line in printed.splitlines() if line.count("\t") == 2]
        return {what: (float(ms), int(queries)) for what, ms, queries in rows}


def measure(num_models: int, num_nights: int) -> None:
    """Print a line for each read: what, CPU ms, queries."""
    from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.utils.db import initdb
    from fastapi.testclient import TestClient
    from sqlalchemy import Engine, event

    from nightshift.api.application import app
    from tests.long_histories import pipeline_names, write_histories, write_runs
    from training.database import connect

    initdb()
    create_auth_manager()
    names = pipeline_names(num_models)
    write_histories(connect(), num_models=num_models, num_nights=num_nights)
    write_runs(names, num_nights=num_nights)
    client = TestClient(app)
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role="viewer"))
    queries: list[str] = []
    event.listen(Engine, "before_cursor_execute", lambda *given: queries.append(given[2]))

    def get(path: str) -> Any:
        answer = client.get(f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()

    def all_pages(path: str) -> None:
        page = get(path)
        while page["next"]:
            page = get(f"{path}&cursor={page['next']}")

    def status() -> None:
        all_pages("/models?limit=100")
        all_pages("/pipelines?limit=100&with=last_run")

    middle = names[num_models // 2]
    reads: dict[str, Callable[[], object]] = {
        "GET /models": lambda: get("/models"),
        "GET /models/{model}/decisions": lambda: get(f"/models/{middle}/decisions"),
        "GET /models/{model}": lambda: get(f"/models/{middle}"),
        "GET /models/{model}/versions/{version}": lambda: get(f"/models/{middle}/versions/1.7.0"),
        "GET /pipelines": lambda: get("/pipelines"),
        "GET /runs": lambda: get("/runs"),
        "GET /datasets": lambda: get("/datasets"),
        "GET /datasets/{pipeline}/versions": lambda: get(f"/datasets/{middle}/versions"),
        "requests of nightshift status": status,
    }
    for what, read in reads.items():
        read()
        found = []
        for _ in range(REPEATS):
            queries.clear()
            started_at = time.process_time()
            read()
            found.append(time.process_time() - started_at)
        print(f"{what}\t{1000 * min(found):.2f}\t{len(queries)}")


if __name__ == "__main__":
    main()
