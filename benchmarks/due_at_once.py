"""Many small pipelines that are due at the same moment on one machine, in turns for two checkouts, on real installations.

    git worktree add ../base COMMIT
    PYTHONPATH=.:plugins python -m benchmarks.due_at_once --base ../base [--pipelines 12] [--rounds 1] [--slots cpu:4,train:2] [--kills]

A pipeline is docs/examples/cancelled_orders with the last twenty days of its orders (about 600 rows) and a model of its own. In each round
each checkout gets a new installation, with Airflow and MLflow; all DAGs are parsed before the runs are made, and all are unpaused by one
request. Times are those of Airflow's database, from that request on; CPU seconds are of all processes of the installation until the last
run has ended. `training busy` is the share of the training slots that were in use, over the time in which a training waited for one: a
task has its slot from when it is queued, before its process has started.
Without `--base` this checkout alone is measured. `--slots` sets NIGHTSHIFT_SLOTS for this checkout.

With `--kills` the scheduler is killed after a quarter of the decisions, MLflow after the half, and every process of the installation,
which is then started again, after three quarters. `decisions` must then be those of the runs, and `repeated` 0: tries that ended while
nothing was killed, of tasks that were tried again. The CPU seconds are those since the last start.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.night import commit_of, environment_of

if TYPE_CHECKING:
    from tests.integration.installation import Installation

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE: Final = "cancelled_orders"
AS_OF: Final = "2026-03-17T02:00:00+00:00"
PREFIX: Final = f"{EXAMPLE}_"
"""Of the pipelines' names."""
TASKS: Final = """SELECT dag_id, task_id, state, scheduled_dttm, queued_dttm, start_date, end_date FROM task_instance
WHERE run_id = 'night' AND queued_dttm NOT NULL AND end_date NOT NULL"""
EARLIER_TRIES: Final = """SELECT dag_id, task_id, state, scheduled_dttm, queued_dttm, start_date, end_date FROM task_instance_history
WHERE run_id = 'night' AND queued_dttm NOT NULL AND start_date NOT NULL AND end_date NOT NULL"""
NIGHT_SECONDS: Final = 7200.0
KILLED_SHARES: Final = (("scheduler", 0.25), ("mlflow", 0.5), ("everything", 0.75))
"""What `--kills` kills, and after which share of the decisions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task instance; instants in seconds since the epoch."""

    dag_id: str
    task_id: str
    state: str
    scheduled_at: float
    queued_at: float
    """From then on it has its slot."""
    started_at: float
    ended_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """What one installation did with its runs; seconds since they became due."""

    total_seconds: float
    first_decision_seconds: float
    ingests_before_first_decision: int
    training_slots_busy: float
    """From 0 to 1."""
    cpu_seconds: float
    succeeded: int
    decisions: int
    """In the ledger."""
    repeated: int
    """Tries before a task's last one, in which nothing was killed."""
    load: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base", type=Path, help="checkout to compare with")
    parser.add_argument("--pipelines", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slots", help="NIGHTSHIFT_SLOTS of this checkout")
    parser.add_argument("--kills", action="store_true", help="kill the scheduler, MLflow and everything on the way")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(measure(options.pipelines, kills=options.kills))))
        return
    checkouts = {**({"base": options.base.resolve()} if options.base else {}), "this": ROOT}
    found: dict[str, list[Night]] = {name: [] for name in checkouts}
    for name, checkout in checkouts.items():
        print(f"{name}: {commit_of(checkout)}")
    for number in range(options.rounds):
        for name in list(checkouts)[:: 1 if number % 2 == 0 else -1]:
            more = {"NIGHTSHIFT_SLOTS": options.slots} if options.slots and name == "this" else {}
            found[name].append(in_checkout(checkouts[name], options.pipelines, more, kills=options.kills))
            print(f"round {number + 1}, {name}: {found[name][-1]}", flush=True)
    report(found)


def in_checkout(checkout: Path, num_pipelines: int, more: Mapping[str, str], *, kills: bool) -> Night:
    """Measure a night with the code of a checkout, by a process that imports nothing else."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", "--pipelines", str(num_pipelines), *(["--kills"] if kills else [])]
    # The benchmark is this one; what it imports besides is the checkout's.
    environment = environment_of(checkout, more)
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return Night(**json.loads(done.stdout.splitlines()[-1]))


def measure(num_pipelines: int, *, kills: bool) -> Night:
    """Start an installation, make the runs, wait for their end."""
    from tests.integration.installation import Installation

    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        installation = Installation.prepare(Path(folder))
        names = [add_pipeline(installation, f"{PREFIX}{number:03}") for number in range(num_pipelines)]
        try:
            installation.services("start")
            return run_all(installation, names, kills=kills)
        finally:
            installation.stop()


def add_pipeline(installation: Installation, name: str) -> str:
    """Add a pipeline over the last days of the example's orders, without a schedule."""
    example = ROOT / "docs" / "examples" / EXAMPLE
    text = (example / f"{EXAMPLE}.yaml").read_text(encoding="utf-8")
    for old, new in (
        (f"name: {EXAMPLE}", f"name: {name}"),
        ('schedule: "0 3 * * *"\n', ""),
        ("window: 40d", "window: 20d"),
        (f"promote: {{model: {EXAMPLE},", f"promote: {{model: {name},"),
    ):
        if old not in text:
            raise SystemExit(f"{EXAMPLE}.yaml has no {old!r}")
        text = text.replace(old, new)
    (installation.dags / "pipelines" / f"{name}.yaml").write_text(text, encoding="utf-8")
    shutil.copy(installation.dags / "search_ranking.py", installation.dags / f"{name}.py")
    suite = installation.home / "expectations" / EXAMPLE / "orders.json"
    suite.parent.mkdir(exist_ok=True)
    shutil.copy(example / "orders.json", suite)
    return name


def run_all(installation: Installation, names: Sequence[str], *, kills: bool) -> Night:
    """Make a run of each pipeline, unpause all of them at once, and wait until every run has ended."""
    from benchmarks.reused_night import cpu_seconds

    api = installation.api
    installation.until(
        lambda: api.get("/dags", dag_id_pattern=PREFIX)["total_entries"] == len(names), "the DAGs", timeout_seconds=120 + len(names)
    )
    for name in names:
        api.post(f"/dags/{name}/dagRuns", {"logical_date": None, "conf": {"as_of": AS_OF}, "dag_run_id": "night"})
    cpu_before, due_at = cpu_seconds(installation), time.time()
    api.patch(f"/dags?dag_id_pattern={PREFIX}&limit=1000", {"is_paused": False})
    database = installation.home / "airflow" / "airflow.db"
    deadline = time.monotonic() + NIGHT_SECONDS
    victims, killed_at = list(KILLED_SHARES) if kills else [], []
    while states(database).count("running") + states(database).count("queued"):
        if time.monotonic() > deadline:
            raise SystemExit(f"not done within {NIGHT_SECONDS:.0f} s")
        if victims and len(decided(tasks(database, TASKS))) >= victims[0][1] * len(names):
            killed_at.append(time.time())
            kill(installation, victims.pop(0)[0])
        # Each look is a read of the database that is measured.
        time.sleep(2)
    used = cpu_seconds(installation) - (0 if kills else cpu_before)
    return Night(
        **times(list(tasks(database, TASKS)), due_at),
        cpu_seconds=used,
        succeeded=states(database).count("success"),
        decisions=sum(len(installation.ledger.history(name)) for name in names),
        repeated=sum(
            not any(task.started_at <= instant <= task.ended_at for instant in killed_at) for task in tasks(database, EARLIER_TRIES)
        ),
        load=os.getloadavg()[0],
    )


def kill(installation: Installation, victim: str) -> None:
    """Kill a component, which its supervisor starts again, or every process of the installation, and start it again."""
    from devstack.processes import marked_by_home

    print(f"{time.strftime('%X')} kills {victim}", file=sys.stderr, flush=True)
    if victim != "everything":
        installation.kill(victim)
        return
    while left := marked_by_home(installation.home):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    installation.services("start")


def states(database: Path) -> list[str]:
    """Return the state of each run."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM dag_run WHERE run_id = 'night'")]


def tasks(database: Path, query: str) -> Iterator[Task]:
    """Yield the tries of the night that have ended."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        for row in connection.execute(query):
            instants = [datetime.fromisoformat(f"{text}+00:00").timestamp() for text in row[3:]]
            names = ("scheduled_at", "queued_at", "started_at", "ended_at")
            yield Task(dag_id=row[0], task_id=row[1], state=row[2], **dict(zip(names, instants, strict=True)))


def decided(found: Iterable[Task]) -> list[float]:
    """Return when the decisions were made."""
    return [task.ended_at for task in found if task.task_id == "promote" and task.state == "success"]


def times(found: Sequence[Task], due_at: float) -> dict[str, Any]:
    """Return the figures of a night that follow from the times of its tasks, as keywords of `Night`."""
    ends = decided(found)
    return {
        "total_seconds": max(ends) - due_at,
        "first_decision_seconds": min(ends) - due_at,
        "ingests_before_first_decision": sum(task.task_id == "ingest" and task.started_at < min(ends) for task in found),
        "training_slots_busy": busy_share([task for task in found if task.task_id == "train"]),
    }


def busy_share(trainings: Sequence[Task]) -> float:
    """Return the share of the training slots (the most in use at a time) in use while a training waited for one; 1 if none ever did."""
    instants = sorted({instant for task in trainings for instant in (task.scheduled_at, task.queued_at, task.ended_at)})
    waited, busy, most = 0.0, 0.0, 1
    for begin, end in itertools.pairwise(instants):
        held = sum(task.queued_at <= begin < task.ended_at for task in trainings)
        most = max(most, held)
        if any(task.scheduled_at <= begin < task.queued_at for task in trainings):
            waited += end - begin
            busy += held * (end - begin)
    return busy / (waited * most) if waited else 1.0


def report(found: Mapping[str, Sequence[Night]]) -> None:
    """Print the medians."""
    print("\n| checkout | total s | first decision s | ingests before it | training busy | CPU s | succeeded | decisions | repeated |")
    print("| --- " * 9 + "|")
    for name, nights in found.items():
        columns = [statistics.median(column) for column in zip(*(list(asdict(night).values())[:8] for night in nights), strict=True)]
        total, first, ingests, busy, cpu, succeeded, decisions, repeated = columns
        counts = " | ".join(f"{count:.0f}" for count in (succeeded, decisions, repeated))
        print(f"| {name} | {total:.0f} | {first:.0f} | {ingests:.0f} | {busy:.0%} | {cpu:.0f} | {counts} |")


if __name__ == "__main__":
    main()
