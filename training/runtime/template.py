"""The template of an installation's stages: a process that has imported their libraries, and forks each stage.

Imports were two thirds of the CPU of a small run. This process makes them once for a machine (or container), a user and a virtual
environment. It runs no stage and no class of users', holds no connection, and its environment has no secret: what a stage is given is read
in the fork alone. Of this package it imports what every stage imports: a stage still finds out whether it uses code that its work is not
named after (`training.code.loaded`). torch is imported and no GPU touched, so that a build for GPUs is forked too.

`nightshift.execution.forked_stage` starts it, with the socket on which it listens, and says what to fork. It ends when files that it has
in memory were changed, and when nothing was asked for a while. What it forks ends with it, and as soon as the one who asked has ended.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import site
import socket
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

LIBRARIES: Final = tuple(
    "training.runtime.runner numpy sqlalchemy.orm duckdb pyarrow.dataset pyarrow.csv pandas alembic.command "
    "great_expectations great_expectations.core scipy.stats torch.distributed.run mlflow.pyfunc xgboost".split()
)
"""In the order in which a night needs them: what is asked for meanwhile is forked between two imports, and imports the rest itself."""
FORK, STOP, KILL = b"fork", b"stop", b"kill"
"""Packets of the one who asks. Two descriptors come with the first: where the program is read, and where it writes."""
MAX_PACKET_BYTES: Final = 2**16
IDLE_SECONDS: Final = 900.0
LOOK_SECONDS: Final = 0.1
READ_AT_START: Final = frozenset(
    "PATH HOME LANG LC_ALL LD_LIBRARY_PATH VIRTUAL_ENV PYTHONPATH PYTHONHASHSEED PYTHONUNBUFFERED DO_NOT_TRACK "
    "MLFLOW_DISABLE_TELEMETRY MLFLOW_ALLOW_PICKLE_DESERIALIZATION NIGHTSHIFT_SERVICE".split()
)
"""Variables that the interpreter, the loader or a library reads when it is loaded: a fork cannot have other values. Beside them `OMP_…`."""
ROOM: Final = " " * 1024
"""Last argument of the template: place for the command of a fork, which `ps` then shows."""
SYS_PIDFD_OPEN: Final = 434
"""Of every architecture. Conda's Python has no `os.pidfd_open`."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

Stamps = dict[str, tuple[int, int]]


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment is read at the start of a process, or when its libraries are loaded."""
    return {name: value for name, value in environment.items() if name in READ_AT_START or name.startswith("OMP_")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """In a fork: what it runs, as `python -m MODULE ARGUMENTS…` does."""

    module: str
    arguments: list[str]
    environment: dict[str, str]

    def run(self) -> NoReturn:
        """Run it, and end this process with its exit code."""
        os.environ.clear()
        os.environ.update(self.environment)
        # What has been read of an earlier environment.
        time.tzset()
        tempfile.tempdir = None
        if "numpy" in sys.modules:
            # Python's own generator is seeded by a fork, numpy's old global one would be the same in all of them.
            sys.modules["numpy"].random.seed()
        # As an interpreter has them while it imports the packages above the module.
        sys.argv = ["-m", *self.arguments]
        sys.orig_argv = [sys.executable, "-m", self.module, *self.arguments]
        show_command(sys.orig_argv)
        code: object = 1
        try:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as err:
            code = err.code
            if isinstance(code, str):
                # As the interpreter does.
                sys.stderr.write(f"{code}\n")
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # An orderly end would free all that the template has imported, in copies of its memory: 1.7 s.
        os._exit(code if isinstance(code, int) else int(code is not None))


@dataclass(kw_only=True, slots=True)
class Fork:
    """A connection, and what was forked for it."""

    connection: socket.socket
    pid: int = 0
    """0: nothing was asked yet."""
    end: int = -1
    """Descriptor that can be read when the process has ended."""
    shared_bytes: int = 0
    """Memory that the process had of the template when it began."""

    def end_by(self, number: signal.Signals) -> None:
        """Send SIGTERM to the process, SIGKILL to its group."""
        (os.killpg if number is signal.SIGKILL else os.kill)(self.pid, number)


class Template:
    """Forks what is asked for, reports each end, and waits for nothing else."""

    def __init__(self, listener: socket.socket, stamps: Callable[[], Stamps]) -> None:
        self._listener = listener
        self._find_stamps = stamps
        self._stamps = stamps()
        self._forks: list[Fork] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._is_open = True
        self._may_look = False

    def serve(self, imports: Iterator[str]) -> Program | None:
        """Import in between what is to be imported; return in a fork what it runs, and None at the end."""
        left: str | None = ""
        while self._is_open or self._forks:
            ready = self._selector.select(0 if left is not None else IDLE_SECONDS)
            for key, _ in ready:
                # A fork leaves all of this to the template.
                program: Program | None = key.data()
                if program is not None:
                    return program
            if not ready and left is None and not self._forks:
                return None
            if not ready and left is not None and (left := next(imports, None)) is not None:
                self._import(left)
        return None

    def _import(self, name: str) -> None:
        """Import a library, and look after the forks meanwhile: one of them takes seconds, on a busy machine many."""
        signal.signal(signal.SIGALRM, lambda *_: self._look_after_forks())
        signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        self._may_look = True
        # A stage that needs it reports it.
        with suppress(Exception):
            importlib.import_module(name)
        self._may_look = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        with suppress(OSError):
            end_blas_threads()

    def _look_after_forks(self) -> None:
        # Not while `serve` does, nor while this does.
        if not self._may_look:
            return
        self._may_look = False
        running = {place for fork in self._forks if fork.pid for place in (fork.connection, fork.end)}
        for key, _ in self._selector.select(0):
            if key.fileobj in running:
                key.data()
        self._may_look = True

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if self._find_stamps() != self._stamps:
            # The one who asks starts another template. What runs goes on.
            self._is_open = False
            self._selector.unregister(self._listener)
            self._listener.close()
            connection.close()
            return
        fork = Fork(connection=connection)
        with suppress(OSError):
            connection.send(json.dumps(identity()).encode())
        self._forks.append(fork)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._heard(fork))

    def _heard(self, fork: Fork) -> Program | None:
        if fork not in self._forks:
            # Its process has ended at the same time.
            return None
        try:
            packet, descriptors, _, _ = socket.recv_fds(fork.connection, MAX_PACKET_BYTES, 2)
        except OSError:
            packet, descriptors = b"", []
        if packet == FORK:
            return self._fork(fork, *descriptors)
        if fork.pid:
            fork.end_by(signal.SIGTERM if packet == STOP else signal.SIGKILL)
        if not packet:
            self._selector.unregister(fork.connection)
            if not fork.pid:
                self._close(fork)
        return None

    def _fork(self, fork: Fork, given: int, output: int) -> Program | None:
        template_pid = os.getpid()
        # Imported objects are never collected, and stay shared memory where no collection writes to it.
        gc.freeze()
        try:
            pid = os.fork()
        except OSError:
            # No process or memory is left. What runs goes on, and the one who asked starts the stage itself.
            os.close(given)
            os.close(output)
            self._selector.unregister(fork.connection)
            self._close(fork)
            return None
        if pid == 0:
            self._selector.close()
            self._listener.close()
            for other in self._forks:
                other.connection.close()
                if other.end >= 0:
                    os.close(other.end)
            return begin(template_pid, given, output)
        os.close(given)
        os.close(output)
        fork.pid, fork.end, fork.shared_bytes = pid, end_of(pid), resident_bytes(pid)
        with suppress(OSError):
            # Both do it: none may need it before.
            os.setpgid(pid, pid)
        self._selector.register(fork.end, selectors.EVENT_READ, lambda: self._ended(fork))
        return None

    def _ended(self, fork: Fork) -> None:
        _, status, usage = os.wait4(fork.pid, 0)
        self._selector.unregister(fork.end)
        os.close(fork.end)
        end = {"code": os.waitstatus_to_exitcode(status), "peak_bytes": max(0, usage.ru_maxrss * 1024 - fork.shared_bytes)}
        with suppress(OSError):
            fork.connection.send(json.dumps(end).encode())
        with suppress(KeyError):
            self._selector.unregister(fork.connection)
        self._close(fork)

    def _close(self, fork: Fork) -> None:
        fork.connection.close()
        self._forks.remove(fork)


def identity() -> dict[str, object]:
    """Return what a fork of this process has, whatever it is given: a stage that needs anything else is started by itself."""
    from training.process.child import other_threads

    return {"executable": sys.executable, "folder": os.getcwd(), "environment": at_start(os.environ), "threads": other_threads()}


def end_blas_threads() -> None:
    """End the threads that OpenBLAS starts when it is loaded, where OMP_NUM_THREADS is more than 1: it ends them at a fork, and makes new
    ones when it needs them.

    Raises:
        OSError: the system refuses a process.
    """
    from training.process.child import other_threads

    if other_threads():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def begin(template_pid: int, given: int, output: int) -> Program:
    """Be a fork: dies with the template, leads a group of its own, and writes to `output`; return what it runs, as `given` says."""
    from training.process.child import bind_to_parent
    from training.runtime.resource_usage import start_from_here

    bind_to_parent(template_pid)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with suppress(OSError):
        os.setpgid(0, 0)
    start_from_here()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    with os.fdopen(given, "rb") as stream:
        asked = stream.read()
    if not asked:
        # The one who asked has ended.
        os._exit(1)
    return Program(**json.loads(asked))


def show_command(command: list[str]) -> None:
    """Have `ps` show another command of this process, cut to the room that its own one takes."""
    from training.runtime.resource_usage import PROC, stat_fields

    # arg_start and arg_end of proc(5).
    begin, end = map(int, stat_fields(PROC / "self")[45:47])
    text = b"\0".join(os.fsencode(word) for word in command)[: end - begin - 1]
    if begin:
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def end_of(pid: int) -> int:
    """Return a descriptor that can be read when a process has ended.

    Raises:
        OSError: the kernel has no such descriptors (it is older than Linux 5.3), or there is no such process.
    """
    found = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_OPEN, pid, 0)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pidfd_open: {os.strerror(number)}")
    return int(found)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has now; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def stamps_of_code() -> Stamps:
    """Return path to modification time in ns and size of the files of this package, and of `folders_of_libraries`.

    What may be edited while the template runs.
    """
    package = Path(__file__).resolve().parent.parent
    found = {}
    # A folder may go while it is read: no reason to end, and all forks with it.
    sources = (Path(folder, name) for folder, _, names in os.walk(package) for name in names if name.endswith(".py"))
    for path in (*sources, *folders_of_libraries()):
        with suppress(OSError):
            state = path.stat()
            found[str(path)] = (state.st_mtime_ns, state.st_size)
    return found


def folders_of_libraries() -> set[Path]:
    """Return the folders that an installation of a library changes.

    That of `pip install --user` too, where this Python reads it. In a folder of PYTHONPATH, which a user's own files may change at any
    time, the folder with what the distribution says of itself.
    """
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if site.ENABLE_USER_SITE:
        folders.add(Path(site.getusersitepackages()))
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        folders |= {found for kind in ("dist", "egg") for found in Path(folder).glob(f"*.{kind}-info")}
    return folders


def libraries() -> Iterator[str]:
    """Yield `LIBRARIES`; after the first, look once for what installed distributions add, which each stage asks for."""
    first, *others = LIBRARIES
    yield first
    from training.spec.descriptors.families import own_packages

    with suppress(Exception):
        # As with an import that fails.
        own_packages()
    yield from others


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    # Where that fails, the one who starts this sees it.
    os.close(end_of(os.getpid()))
    if os.fork():
        # It is no child of the task that needed it first.
        os._exit(0)
    # Imports make no garbage.
    gc.disable()
    program = Template(listener, stamps_of_code).serve(libraries())
    if program is not None:
        program.run()


if __name__ == "__main__":
    main()
