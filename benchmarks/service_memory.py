"""Memory of each service over many nights in a row: the curve that docs/performance.md has.

    PYTHONPATH=.:plugins python benchmarks/service_memory.py [--new 10] [--again 2] [--home FOLDER]

It starts an installation of its own. Each night is run by the command of `make run`: as a new night, and again, fully reused.
After each run it prints the proportional set size (PSS) by component and kind of process, in MiB, once no task runs.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import psutil

from devstack.processes import MARK, marked_by_home
from tests.integration.installation import Installation

PIPELINE = "nightly"
FIRST_NIGHT = date(2026, 1, 6)
MIB = 2**20
SETTLE_SECONDS = 3.0
WORKER = re.compile("LocalExecutor|ForkPoolWorker|multiprocessing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--new", type=int, default=10, help="nights")
    parser.add_argument("--again", type=int, default=2, help="how often each is run again, reused")
    parser.add_argument("--home", type=Path, default=None, help="a new folder that is kept; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        installation = Installation.prepare(options.home or Path(folder))
        installation.add_pipeline(PIPELINE)
        try:
            installation.services("start")
            time.sleep(10)  # the start's own work is over
            started_at = time.monotonic()
            report(installation, "idle", started_at)
            for number in range(options.new):
                night = (FIRST_NIGHT + timedelta(days=number)).isoformat()
                for kind in ("new", *["again"] * options.again):
                    run_at = time.monotonic()
                    installation.services("run", PIPELINE, f"--night={night}")
                    seconds = time.monotonic() - run_at
                    time.sleep(SETTLE_SECONDS)
                    report(installation, f"{number + 1} {kind} {seconds:.1f} s", started_at)
        finally:
            installation.stop()


def report(installation: Installation, what: str, started_at: float) -> None:
    """Print one line: minutes since the start, the sum, and each kind of process with its number."""
    memory, count = Counter[str](), Counter[str]()
    for identity in marked_by_home(installation.home):
        try:
            process = psutil.Process(identity.pid)
            kind = kind_of(process)
            memory[kind] += process.memory_full_info().pss
            count[kind] += 1
        except psutil.Error:
            continue
    parts = ", ".join(f"{kind} x{count[kind]} {memory[kind] / MIB:.0f}" for kind in sorted(memory))
    print(f"{(time.monotonic() - started_at) / 60:5.1f} min | {what} | {memory.total() / MIB:.0f} | {parts}", flush=True)


def kind_of(process: psutil.Process) -> str:
    """Return the component of a process; the executor's workers, and what else a component forks, apart from its first process."""
    component = process.environ()[MARK].split(":", 1)[0]
    parent = process.parent()
    is_child = parent is not None and parent.environ().get(MARK, "") == process.environ()[MARK]
    if not is_child:
        return component
    return f"{component} worker" if WORKER.search(" ".join(process.cmdline())) else f"{component} child"


if __name__ == "__main__":
    main()
