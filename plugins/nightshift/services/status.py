"""What runs, in words."""

from __future__ import annotations

import time

import psutil

from nightshift.services.environment import APPROVER, USERNAME, airflow_url, credentials, owns_mlflow
from nightshift.services.processes import ProcessId, marked
from nightshift.services.state import ComponentState
from nightshift.services.stopping import running
from nightshift.settings import Settings

MIB = 1024 * 1024


def report(settings: Settings) -> str:
    """Return a table of the services: state, pid, uptime, memory, restarts, log file; and where to look."""
    state = running(settings.home)
    if state is None:
        return f"nothing runs in {settings.home} (make run starts it)"
    lines = [f"{'service':<18}{'state':<10}{'pid':>8}{'up':>10}{'memory':>10}{'restarts':>10}  log"]
    memory = {entry.name: component_bytes(settings, entry.name) for entry in state.components}
    lines += [_line(entry, memory[entry.name]) for entry in state.components]
    lines.append(f"memory, shared pages counted once: {sum(memory.values()) / MIB:,.0f} MiB")
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


def component_bytes(settings: Settings, name: str) -> int:
    """Return the proportional set size (PSS) of all processes of one component."""
    return sum(_memory_bytes(process) for process in marked(lambda mark: _is_of(mark, name, settings)))


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
    minutes, seconds = divmod(int(time.time() - entry.process.started_at), 60)
    cells = f"{entry.process.pid:>8}{f'{minutes}m{seconds:02}s':>10}{f'{memory_bytes / MIB:,.0f} MiB':>10}{entry.restarts:>10}"
    return f"{entry.name:<18}{entry.state:<10}{cells}  {entry.log_path}"
