"""Whether the work of this process moves, as a guard beside it reads it.

The work says what it does (`phase`) and that it moves (`moved`), in a page of shared memory. The guard is a small process of its own
(`training.process.liveness_guard`): it ends this one when a phase has not moved for its limit, so it needs nothing of this process, neither
the GIL nor a thread. Before that it asks every rank of the node for its stacks, which faulthandler writes in a signal handler in C.

Standard library only; without `watch` every call is a no-op.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from training.installation import RANK as RANK_VARIABLE
from training.installation import Seconds
from training.process.liveness_page import (
    MOVEMENTS,
    NO_RANK,
    NUMBERS,
    PAGE_BYTES,
    PAGE_NAME,
    RANK,
    RANK_AT,
    STACKS_NAME,
    STACKS_SIGNAL,
    TEXT_AT,
)

Kind = Literal["start", "transfer", "part", "step", "validation", "checkpoint", "mlflow", "peers"]
"""What a process does, as the limits are named (`timeout:` of a pipeline). `peers` has no limit: it waits for other ranks."""

START_LIMIT: Final = Seconds(
    name="NIGHTSHIFT_START_TIMEOUT_SECONDS",
    seconds=900.0,
    default="900",
    meaning="how long the imports of a stage may take without progress (docs/timeouts.md)",
)
"""Limit of everything before the spec is read: imports, reading the request."""
SLOWEST_BYTES_PER_SECOND: Final = 2**20
"""A transfer in one call reports nothing until its end: its limit grows by its size at this rate."""
GUARD_CODE: Final = "import sys; sys.path.insert(0, sys.argv[1]); from training.process.liveness_guard import main; main()"


@dataclass(eq=False, slots=True)
class _Phase:
    kind: Kind
    name: str
    size_bytes: int


@dataclass(kw_only=True)
class _Watched:
    """This process's page and phases."""

    page: mmap.mmap
    descriptors: tuple[int, ...]
    guard: subprocess.Popen[bytes]
    pid: int = field(default_factory=os.getpid)
    thread: int = field(default_factory=threading.get_ident)
    """The thread whose phases count: the one that does the work."""
    limits: Mapping[str, float]
    is_starting: bool = False
    """Whether the spec is not known yet: all that is done until then, the requests to the store included, has the limit of the start."""
    phases: list[_Phase] = field(default_factory=lambda: [_Phase("start", "imports", 0)])
    movements: int = 0

    def show(self) -> None:
        """Write the present phase; that is a movement too."""
        phase = self.phases[-1]
        kind = "start" if self.is_starting else phase.kind
        limit = self.limits.get(kind, 0.0)
        seconds = limit + phase.size_bytes / SLOWEST_BYTES_PER_SECOND if limit else 0.0
        text = f"{kind}\n{phase.name}".encode()[: PAGE_BYTES - TEXT_AT - 1]
        self.page[TEXT_AT:] = text.ljust(PAGE_BYTES - TEXT_AT, b"\0")
        self.movements += 1
        NUMBERS.pack_into(self.page, 0, self.movements, seconds)

    def move(self) -> None:
        self.movements += 1
        MOVEMENTS.pack_into(self.page, 0, self.movements)


_watched: _Watched | None = None
_thread = threading.local()


def watch(request_uri: str) -> None:
    """Start the guard of this process, unless it has one; call it from the thread that does the work.

    Args:
        request_uri: of the attempt, so that the guard can write its error.

    Raises:
        SpecError: `settings.number`, the variable is not a number of seconds.
    """
    global _watched
    if _watched is not None and _watched.pid == os.getpid():
        return
    limits = {"start": START_LIMIT.read()}
    stacks = os.memfd_create(f"{STACKS_NAME}-{os.getpid()}")
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    # Last: who finds this name knows that the signal has its handler.
    memory = os.memfd_create(f"{PAGE_NAME}-{os.getpid()}")
    os.truncate(memory, PAGE_BYTES)
    page = mmap.mmap(memory, PAGE_BYTES)
    RANK.pack_into(page, RANK_AT, RANK_VARIABLE.read() if RANK_VARIABLE.text() else NO_RANK)
    # The guard ends when this pipe closes. What it has to know goes through it: command lines are searched for requests.
    reader, writer = os.pipe()
    root = str(Path(__file__).resolve().parents[2])
    with os.fdopen(reader, "rb") as stream:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD_CODE, root, str(os.getpid()), str(memory)],
            stdin=stream,
            pass_fds=(memory,),
        )
    os.write(writer, request_uri.encode() + b"\n")
    _watched = _Watched(page=page, descriptors=(memory, stacks, writer), guard=guard, limits=limits, is_starting=True)
    _watched.show()


def limit(by_kind: Mapping[str, float]) -> None:
    """Set the limits in seconds, by kind: the spec is known from here on. A kind without one has none."""
    if _watched is not None and _watched.pid == os.getpid():
        _watched.limits, _watched.is_starting = dict(by_kind), False
        _watched.show()


@contextmanager
def phase(kind: Kind, name: str = "", *, size_bytes: int = 0) -> Iterator[None]:
    """Say what is done in the block; beginning and end are movements. In a helper thread or a forked child they are all that counts.

    Args:
        name: for people: the part of a stage, the key that is read.
        size_bytes: of a transfer in one call.
    """
    watched = _watched
    if watched is None or getattr(_thread, "is_background", False):
        yield
        return
    # A forked child has the page of its parent, and its own phase says nothing about what the parent does.
    if threading.get_ident() != watched.thread or watched.pid != os.getpid():
        watched.move()
        yield
        watched.move()
        return
    entered = _Phase(kind, name, size_bytes)
    watched.phases.append(entered)
    watched.show()
    try:
        yield
    finally:
        # Not the last one: a generator that is left in the middle ends its phase late.
        watched.phases.remove(entered)
        watched.show()


def moved() -> None:
    """Say that the work moves: a step, a batch, a chunk of a file."""
    if _watched is not None and not getattr(_thread, "is_background", False):
        _watched.move()


def in_background() -> None:
    """Say that what this thread does is not the work: heartbeats go on while the work hangs."""
    _thread.is_background = True
