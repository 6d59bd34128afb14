"""Whether the ports of an installation are free, said before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from training.errors import NightshiftError


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a service will listen on."""

    number: int
    service: str
    setting: str
    """The environment variable that changes it."""


def require_free(ports: Sequence[Port]) -> None:
    """Return if every port can be listened on at 127.0.0.1.

    Raises:
        NightshiftError: `services.port_busy`, with each busy port, the process that has it and the setting that changes it.
    """
    busy = [port for port in ports if _taken(port.number)]
    if not busy:
        return
    words = [f"port {port.number} for {port.service} is taken by {_owner(port.number)}" for port in busy]
    examples = " ".join(f"{port.setting}={_free_port()}" for port in busy)
    raise NightshiftError("services.port_busy", "; ".join(words), hint=f"end that process, or choose another port: make run {examples}")


def _taken(number: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it a connection that was closed a moment ago would look like a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return True
    return False


def _owner(number: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return "a process that this user may not see"
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == number and connection.pid:
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.NoSuchProcess:
                continue
    return "a process that this user may not see"


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
