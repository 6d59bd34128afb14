"""A stage that is forked from the installation's template (`training.runtime.template`), which the first one starts.

The template listens on a socket in a folder that is this user's alone. A stage is no child of its task, and not in its process group: the
template ends it as soon as the task's end of the connection is closed, for any reason. `None` in place of a stage means that the template
cannot be used: the caller starts a process of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from training.contracts import JsonObject
from training.process.identity import pid_namespace
from training.runtime.template import FORK, KILL, MAX_PACKET_BYTES, ROOM, STOP, at_start

FOLDER: Final = "template"
"""In the installation's home."""
ANSWER_SECONDS: Final = 60.0
"""A template that imports answers after the import that it is at."""


class ForkedStage:
    """A stage's process, as a `subprocess.Popen` has its output and its end."""

    def __init__(self, connection: socket.socket, output: BinaryIO) -> None:
        self._connection = connection
        self.stdout = output
        self.returncode: int | None = None
        """Negative after a signal; None while it runs."""
        self.peak_bytes = 0
        """Resident memory of the largest of its processes, without what it shares with the template; 0: not known."""
        self.is_lost = False
        """The template was killed, and the stage with it."""

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        try:
            packet = self._connection.recv(MAX_PACKET_BYTES)
        except OSError:
            packet = b""
        self._connection.close()
        self.is_lost = not packet
        end = json.loads(packet) if packet else {"code": -signal.SIGKILL, "peak_bytes": 0}
        self.returncode, self.peak_bytes = end["code"], end["peak_bytes"]
        return int(end["code"])

    def terminate(self) -> None:
        self._send(STOP)

    def kill(self) -> None:
        self._send(KILL)

    def _send(self, packet: bytes) -> None:
        # It has ended.
        with suppress(OSError):
            self._connection.send(packet)


def fork_stage(
    home: Path, program: list[str], environment: Mapping[str, str], folder: Path, say: Callable[[str], None]
) -> ForkedStage | None:
    """Fork a stage from the installation's template, and start one where there is none; return None where it cannot be used.

    Args:
        home: the installation's.
        program: module and arguments, as after `python -m`.
        environment: all of the stage's.
        folder: in which it runs.
        say: gets the reason where the template cannot be used.
    """
    wanted: JsonObject = {"executable": sys.executable, "folder": str(folder), "environment": at_start(environment), "threads": []}
    try:
        connection, has = _connected(home, str(folder), environment)
        if has == wanted:
            return _asked(connection, {"module": program[0], "arguments": program[1:], "environment": dict(environment)})
        connection.close()
        reason = f"it needs another {_differing(has, wanted)} than its template has"
    except (OSError, subprocess.SubprocessError) as err:
        reason = f"its template does not answer: {err}"
    say(f"the stage has a new process: {reason}")
    return None


def _differing(has: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    name = next(name for name in wanted if has[name] != wanted[name])
    if name == "threads":
        return "number of threads"
    if name != "environment":
        return name
    one, other = has[name], wanted[name]
    return "environment (" + ", ".join(sorted(key for key in {*one, *other} if one.get(key) != other.get(key))) + ")"


def _asked(connection: socket.socket, program: JsonObject) -> ForkedStage:
    given, giving = os.pipe()
    read, written = os.pipe()
    socket.send_fds(connection, [FORK], [given, written])
    os.close(given)
    os.close(written)
    output = os.fdopen(read, "rb")
    # What it is given has secrets: the template does not read it. One that was killed meanwhile closed the pipe.
    with suppress(BrokenPipeError), os.fdopen(giving, "wb") as pipe:
        pipe.write(json.dumps(program).encode())
    return ForkedStage(connection, output)


def _connected(home: Path, folder: str, environment: Mapping[str, str]) -> tuple[socket.socket, JsonObject]:
    """Return a connection to the template, and what its forks have; start one where none answers, or where it has ended.

    Raises:
        OSError: that is not possible.
    """
    with _locked(home) as place:
        try:
            return _greeted(place)
        except (FileNotFoundError, ConnectionError, TimeoutError):
            # One that is stopped, or hangs, keeps its stages; the next stages must not wait for it too.
            _start(place, folder, environment)
            return _greeted(place)


@contextmanager
def _locked(home: Path) -> Iterator[str]:
    """Yield the path of the socket, while no other task starts a template.

    Raises:
        OSError: there is no folder that is this user's alone.
    """
    path = home / FOLDER
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        state = os.fstat(folder)
        if state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise PermissionError(f"{path} is not this user's alone")
        fcntl.flock(folder, fcntl.LOCK_EX)
        # A socket's path may have 107 bytes. Containers may share the home, and not their processes.
        yield f"/proc/self/fd/{folder}/{pid_namespace()}"
    finally:
        os.close(folder)


def _greeted(place: str) -> tuple[socket.socket, JsonObject]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(place)
        packet = connection.recv(MAX_PACKET_BYTES)
        if not packet:
            raise ConnectionResetError("the template has ended")
        connection.settimeout(None)
        return connection, json.loads(packet)
    except BaseException:
        connection.close()
        raise


def _start(place: str, folder: str, environment: Mapping[str, str]) -> None:
    """Start a template that listens at `place`, and is this process's child no more."""
    with suppress(FileNotFoundError):
        os.unlink(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        os.chmod(place, 0o600)
        listener.listen()
        subprocess.run(
            [sys.executable, "-m", "training.runtime.template", str(listener.fileno()), ROOM],
            env=at_start(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[listener.fileno()],
            check=True,
        )
