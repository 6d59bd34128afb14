"""What runs, in words."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import psutil

from devstack.environment import APPROVER, USERNAME, airflow_url, credentials, owns_mlflow
from devstack.processes import ProcessId, marked
from devstack.shutdown import running
from devstack.supervisor_state import ComponentState
from nightshift.settings import Settings

MIB = 1024 * 1024
SCHEDULER: Final = "scheduler"
TASKS: Final = "running tasks"


def report(settings: Settings) -> str:
    """Return a table of the services: state, pid, uptime, memory, restarts, log file; and where to look."""
    state = running(settings.home)
    if state is None:
        return f"nothing runs in {settings.home} (make run starts it)"
    lines = [f"{'service':<18}{'state':<10}{'pid':>8}{'up':>10}{'memory':>10}{'restarts':>10}  log"]
    memory = memory_bytes(settings, state.components)
    lines += [_line(entry, memory[entry.name]) for entry in state.components]
    services = sum(used for name, used in memory.items() if name != TASKS)
    lines.append(
        f"memory of the services, shared pages counted once: {services / MIB:,.0f} MiB; of running tasks: {memory[TASKS] / MIB:,.0f} MiB"
    )
    return "\n".join([*lines, addresses(settings)])


def addresses(settings: Settings) -> str:
    """Return the two user interfaces with their logins."""
    secret = credentials(settings)
    mlflow_login = f"  login {USERNAME} / {secret['mlflow_password']}" if owns_mlflow(settings) else ""
    return "\n".join(
        [
            f"Airflow  {airflow_url(settings)}  login {USERNAME} / {secret['airflow_password']}",
            f"         approves what {USERNAME} started: login {APPROVER} / {secret['approver_password']}",
            f"MLflow   {settings.mlflow_uri}{mlflow_login}",
        ]
    )


def memory_bytes(settings: Settings, components: Iterable[ComponentState]) -> dict[str, int]:
    """Return the proportional set size (PSS) of each component's processes, and of those of running tasks, as `TASKS`.

    A task and its stage are descendants of the scheduler and carry its mark: with them it would seem to grow by a gigabyte in a training.
    """
    found = {entry.name: 0 for entry in components} | {TASKS: 0}
    main = {entry.name: entry.process.pid for entry in components if entry.process is not None}
    for name in main:
        for process in marked(partial(_is_of, name=name, settings=settings)):
            found[TASKS if name == SCHEDULER and is_task(process.pid, main[name]) else name] += _memory_bytes(process)
    return found


def is_task(pid: int, scheduler_pid: int) -> bool:
    """Return whether a process of the scheduler's is neither the scheduler itself nor one of the executor's workers, its children."""
    try:
        return pid != scheduler_pid and psutil.Process(pid).ppid() != scheduler_pid
    except psutil.Error:
        return False


def _is_of(mark: str, name: str, settings: Settings) -> bool:
    component, _token, home = mark.split(":", 2)
    return component == name and home == str(settings.home)


def _memory_bytes(process: ProcessId) -> int:
    try:
        return int(psutil.Process(process.pid).memory_full_info().pss)
    except psutil.Error:
        return 0


def _line(entry: ComponentState, memory_bytes: int) -> str:
    if entry.process is None or not entry.process.alive():
        return f"{entry.name:<18}{entry.state:<10}{'-':>8}{'-':>10}{'-':>10}{entry.restarts:>10}  {entry.log_path}"
    minutes, seconds = divmod(int(entry.process.age_seconds), 60)
    cells = f"{entry.process.pid:>8}{f'{minutes}m{seconds:02}s':>10}{f'{memory_bytes / MIB:,.0f} MiB':>10}{entry.restarts:>10}"
    return f"{entry.name:<18}{entry.state:<10}{cells}  {entry.log_path}"
