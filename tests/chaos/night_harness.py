"""Runs whole nights by `make run`'s own command, disturbs each of them, and writes down what was done and what became of it.

    python -m tests.chaos.night_harness --home DIR --nights 30 --seed 1 --records FILE

One installation serves all nights. Each night is one of two days with `--force`: all of its work is done again, and its weights must
have the digest that an undisturbed night of the same day had before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import psutil

from devstack.environment import airflow_home
from devstack.processes import MARK
from devstack.supervisor_state import read_state
from tests.chaos.disturbances import MOMENTS, STARTING, TRAINING, Action, Disturbance, ProcessRow, Role, disturbed_nights, roles_of
from tests.integration.installation import ROOT, Installation
from training.errors import NightshiftError

PIPELINE: Final = "disturbed"
DAYS: Final = ("2026-01-26", "2026-02-01")
EPOCHS: Final = 6
NIGHT_SECONDS: Final = 1200.0
"""A night that has not ended after so long counts as stuck; nothing is judged by its time otherwise."""
POLL_SECONDS: Final = 0.1
SIGNALS: Final = {Action.KILL: signal.SIGKILL, Action.TERM: signal.SIGTERM}
SAME, OTHER, FAILED, STUCK = "same weights", "other weights", "command failed", "stuck"
ENDED_TASK: Final = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
STAGE_ROLES: Final = (Role.STAGE, Role.LAUNCHER, Role.RANK)


class StuckError(Exception):
    """A night did not end in time."""


@dataclass(kw_only=True)
class NightRecord:
    """One night, as a line of the records file."""

    started_at: str
    seed: int
    number: int
    day: str
    disturbances: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    """State by run id; a night is one run."""
    exit_codes: list[int] = field(default_factory=list)
    """Of `make run`: one, and one more for each time that the command itself was ended by a disturbance."""
    tries: dict[str, int] = field(default_factory=dict)
    """Tries of the tasks that needed more than one."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by the supervisor that lives at the end, by component."""
    seconds: float = 0.0
    weights_digest: str = ""
    expected_digest: str = ""
    outcome: str = ""
    why: str = ""


def prepare(home: Path) -> Installation:
    """Make an installation with one small pipeline that trains by torchrun with two ranks."""
    made = Installation.prepare(home)
    made.add_pipeline(PIPELINE)
    path = made.dags / "pipelines" / f"{PIPELINE}.yaml"
    text = path.read_text(encoding="utf-8")
    for old, new in (
        ("processes_per_node: 1", "processes_per_node: 2"),
        ("epochs: 1", f"epochs: {EPOCHS}"),
        # 1,344 steps: on an idle machine, a moment within them is still in time.
        ("batch_size: 4096", "batch_size: 32"),
        ("learning_rate: 2e-2", "learning_rate: 1e-4"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return made


class Harness:
    """Nights on one installation."""

    def __init__(self, installation: Installation, seed: int, records_path: Path) -> None:
        self.installation = installation
        self.seed = seed
        self.records_path = records_path
        self.output_path = installation.home / "make-run.log"
        self.expected: dict[str, str] = {}

    def reference(self, day: str) -> str:
        """Return the digest of the weights of an undisturbed night of that day."""
        if day not in self.expected:
            record = self._night(0, day, ())
            assert record.outcome == SAME, record.why
            (run_id,) = record.runs
            # Weights of an earlier epoch would not show what a disturbance did to the later ones.
            assert self.installation.result(PIPELINE, run_id, "train").scalars["best_epoch"] == EPOCHS
            self.expected[day] = record.weights_digest
        return self.expected[day]

    def night(self, number: int, disturbances: tuple[Disturbance, ...]) -> NightRecord:
        """Run one disturbed night and append its record."""
        day = DAYS[number % len(DAYS)]
        self.reference(day)
        if disturbances and disturbances[0].moment == STARTING:
            self.installation.services("stop")
        record = self._night(number, day, disturbances)
        with self.records_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        if record.outcome in (FAILED, STUCK):
            self.installation.services("stop")
        return record

    def _night(self, number: int, day: str, disturbances: tuple[Disturbance, ...]) -> NightRecord:
        record = NightRecord(started_at=datetime.now(UTC).isoformat(timespec="seconds"), seed=self.seed, number=number, day=day)
        before = set(run_states(self.installation, day))
        started_at = time.monotonic()
        with self.output_path.open("wb") as output:
            night = _RunningNight(self.installation, day, before, output, deadline=started_at + NIGHT_SECONDS)
            try:
                record.disturbances = [night.disturb(one) for one in disturbances]
                night.finish()
            except StuckError as err:
                record.outcome, record.why = STUCK, str(err)
            finally:
                night.end()
        record.seconds, record.exit_codes = round(time.monotonic() - started_at, 1), night.exit_codes
        record.runs = {run: state for run, state in run_states(self.installation, day).items() if run not in before}
        if not record.outcome:
            self._judge(record)
        if record.outcome != SAME:
            record.why += "\n" + self.output_path.read_text(encoding="utf-8", errors="replace")[-3000:]
        return record

    def _judge(self, record: NightRecord) -> None:
        if record.exit_codes[-1] != 0 or list(record.runs.values()) != ["success"]:
            record.outcome = FAILED
            return
        run_id = next(iter(record.runs))
        tasks = self.installation.until(lambda: self.installation.tasks(PIPELINE, run_id), "the tasks")
        record.tries = {name: task["try_number"] for name, task in tasks.items() if task["try_number"] > 1}
        state = read_state(self.installation.home)
        record.restarts = {entry.name: entry.restarts for entry in state.components if entry.restarts} if state else {}
        result = self.installation.until(lambda: self.installation.result(PIPELINE, run_id, "train"), "the result")
        record.weights_digest = str(result.scalars["weights_digest"])
        record.expected_digest = self.expected.get(record.day, record.weights_digest)
        record.outcome = SAME if record.weights_digest == record.expected_digest else OTHER
        roles = roles_in(self.installation, None)
        left = {role.value: roles[role] for role in STAGE_ROLES if role in roles}
        if left:
            record.outcome, record.why = FAILED, f"processes left over: {left}"


class _RunningNight:
    """`make run` as a process, started again each time that a disturbance ended it."""

    def __init__(self, installation: Installation, day: str, before: set[str], output: IO[bytes], *, deadline: float) -> None:
        self._installation = installation
        self._day = day
        self._before = before
        self._output = output
        self._deadline = deadline
        self.exit_codes: list[int] = []
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "devstack", "run", PIPELINE, "--night", self._day, "--force"]
        return subprocess.Popen(
            command,
            env=self._installation.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def disturb(self, what: Disturbance) -> dict[str, Any]:
        """Wait for the moment, disturb, and return what was done; `pids` is empty if the night ended before the moment."""
        victims = self._until(lambda: self._victims(what))
        record: dict[str, Any] = {**asdict(what), "at": datetime.now(UTC).isoformat(timespec="seconds"), "pids": list(victims)}
        if victims:
            record["seen"] = self._situation()
            if what.action is Action.STOP:
                self._stop_and_continue(what, victims)
            else:
                send(SIGNALS[what.action], victims)
            if what.role in (Role.COMMAND, Role.ALL_AND_COMMAND) and what.action is not Action.STOP:
                self.exit_codes.append(self._process.wait())
                self._process = self._start()
        return record

    def finish(self) -> None:
        """Wait for the command's end."""
        self._until(lambda: [])
        self.exit_codes.append(self._process.wait())

    def end(self) -> None:
        """End the command if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _until(self, look: Callable[[], list[int]]) -> list[int]:
        while self._process.poll() is None:
            if found := look():
                return found
            if time.monotonic() > self._deadline:
                raise StuckError(f"not ended after {NIGHT_SECONDS:.0f} s: {self._situation()}")
            time.sleep(POLL_SECONDS)
        return []

    def _victims(self, what: Disturbance) -> list[int]:
        if not self._reached(what):
            return []
        pids = roles_in(self._installation, self._process.pid).get(what.role, [])
        return pids if what.role in (Role.ALL, Role.ALL_AND_COMMAND) else pids[-1:]

    def _reached(self, what: Disturbance) -> bool:
        if what.moment == STARTING:
            # The reader of an earlier night's state must not take it for this one's.
            return read_state(self._installation.home) is not None
        states = self._task_states()
        if what.moment == TRAINING:
            return states.get("train") in ENDED_TASK or self._steps_done() >= what.first_steps
        index = MOMENTS.index(what.moment)
        later = [task for task in MOMENTS[index:] if task != TRAINING]
        return states.get(what.moment) == "running" or any(states.get(task) in ENDED_TASK for task in later)

    def _situation(self) -> str:
        states = self._task_states()
        working = [f"{task} {state}" for task, state in states.items() if state and state not in ENDED_TASK]
        return ", ".join(working) or ("between tasks" if states else "no run yet")

    def _run_id(self) -> str | None:
        return next((run for run in run_states(self._installation, self._day) if run not in self._before), None)

    def _task_states(self) -> dict[str, str]:
        run_id = self._run_id()
        if run_id is None:
            return {}
        rows = query(self._installation, "SELECT task_id, state FROM task_instance WHERE dag_id = ? AND run_id = ?", PIPELINE, run_id)
        return dict(rows)

    def _steps_done(self) -> int:
        from tests.chaos.test_kills import steps_done

        run_id = self._run_id()
        with contextlib.suppress(NightshiftError, ValueError):
            return steps_done(self._installation, run_id, PIPELINE) if run_id else 0
        return 0

    def _stop_and_continue(self, what: Disturbance, victims: list[int]) -> None:
        stopped: list[int] = []
        fresh = victims
        while fresh:
            send(signal.SIGSTOP, fresh)
            stopped += fresh
            every = self._victims(what) if len(victims) > 1 else []
            fresh = [pid for pid in every if pid not in stopped]
        time.sleep(what.stop_seconds)  # The length of a stop is what is tested.
        send(signal.SIGCONT, stopped)


def run_states(installation: Installation, day: str) -> dict[str, str]:
    """Return the states of a day's runs by run id, newest first, from Airflow's database: the api-server may be the victim."""
    rows = query(
        installation, "SELECT run_id, state FROM dag_run WHERE dag_id = ? AND run_id LIKE ? ORDER BY id DESC", PIPELINE, f"night-{day}%"
    )
    return dict(rows)


def query(installation: Installation, sql: str, *values: str) -> list[tuple[str, str]]:
    path = airflow_home(installation.settings) / "airflow.db"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as database:
            return database.execute(sql, values).fetchall()
    except sqlite3.OperationalError:
        return []  # No database yet, or a writer holds it for longer.


def roles_in(installation: Installation, command_pid: int | None) -> dict[Role, list[int]]:
    """Return the installation's live processes by role."""
    state = read_state(installation.home)
    entries = state.components if state else ()
    return roles_of(
        list(_rows(installation.home)),
        {entry.name: entry.process.pid for entry in entries if entry.process is not None},
        supervisor_pid=state.supervisor.pid if state else None,
        command_pid=command_pid,
    )


def _rows(home: Path) -> Iterator[ProcessRow]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get(MARK, "").endswith(f":{home}") and process.status() != psutil.STATUS_ZOMBIE:
                yield ProcessRow(process.pid, process.ppid(), " ".join(process.cmdline()), is_rank=process.name().startswith("rank "))


def send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    # Ended by TERM, as by Ctrl-C: the installation is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many nights of the seed's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    installation = prepare(options.home)
    try:
        harness = Harness(installation, options.seed, options.records)
        for number, disturbances in islice(enumerate(disturbed_nights(options.seed)), options.skip, options.skip + options.nights):
            say(f"night {number}: {'; '.join(map(str, disturbances))}")
            record = harness.night(number, disturbances)
            say(f"  {record.outcome} after {record.seconds:.0f} s, {record.exit_codes}, {record.tries}\n{record.why}")
    finally:
        installation.stop()


if __name__ == "__main__":
    main()
