"""Whether the ports of an installation are free, said before anything is started."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from training.errors import NightshiftError

RELEASE_SECONDS: Final = 10.0
"""A killed process has its ports until the kernel has given back its memory."""
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a service will listen on."""

    number: int
    service: str
    setting: str
    """The environment variable that changes it."""


def require_free(ports: Sequence[Port]) -> None:
    """Return if every port can be listened on at 127.0.0.1; wait for those that no living process has.

    Raises:
        NightshiftError: `services.port_busy`, with each busy port, the process that has it and the setting that changes it.
    """
    deadline = time.monotonic() + RELEASE_SECONDS
    while busy := {port: _owner(port.number) for port in ports if _taken(port.number)}:
        if any(busy.values()) or time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    else:
        return
    words = [
        f"port {port.number} for {port.service} is taken by {owner or 'a process that this user may not see'}"
        for port, owner in busy.items()
    ]
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
    """Return the process that listens, for people; empty where it is ending, or is another user's."""
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == number and connection.pid:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(connection.pid)
                    # One whose memory is gone has no command line.
                    if process.cmdline():
                        return f"pid {process.pid} ({process.name()})"
    return ""


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
