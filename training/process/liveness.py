"""Whether the work of this process moves; the kernel's timer ends a process whose work does not.

The work says what it does (`phase`) and that it moves (`moved`). Each of these sets the process's timer (setitimer(2), ITIMER_REAL) to the
limit of the phase. Where it expires, faulthandler writes the stacks of all threads to the log, in a signal handler in C, and the process
ends by SIGALRM: that needs neither the GIL nor a thread, unless the work waits in the kernel where only what ends it is heard (`D` in
`ps`): then a thread takes the signal. The kernel does not count the time in which the machine sleeps.

A fork has no timer, and nothing that the child does counts. Standard library only; without `watch` every call is a no-op.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from training.installation import RANK, WORLD_SIZE, Seconds, Variable
from training.process.child import ALARM_THREAD

Kind = Literal["start", "transfer", "part", "step", "validation", "checkpoint", "mlflow", "peers"]
"""What a process does, as the limits are named (`timeout:` of a pipeline). `peers` has no limit: it waits for other ranks."""

START_LIMIT: Final = Seconds(
    name="NIGHTSHIFT_START_TIMEOUT_SECONDS",
    seconds=900.0,
    default="900",
    meaning="how long the imports of a stage may take without progress (docs/timeouts.md)",
)
"""Limit of everything before the spec is read: imports, reading the request."""
RANK_ERROR_FILE: Final = Variable(
    name="TORCHELASTIC_ERROR_FILE",
    set_by="others",
    meaning="torchrun: file for the error of a process, which notes beside it what it does",
)
SLOWEST_BYTES_PER_SECOND: Final = 2**20
"""A transfer in one call reports nothing until its end: its limit grows by its size at this rate."""
FIRST_RANK_SECONDS: Final = 60.0
"""Rank 0 of several is ended so much later: when another rank that hangs is ended, rank 0 saves the last whole step."""
TAKE_SECONDS: Final = 10.0
STACKS_SIGNAL: Final = signal.SIGUSR2
"""A watched process writes its stacks to the log, and goes on."""


@dataclass(frozen=True, eq=False, slots=True)
class Phase:
    """What a process does."""

    kind: str
    name: str
    """For people: the part of a stage, the key that is read."""
    limit_seconds: float
    """0: none."""

    def to_json(self) -> dict[str, str | float]:
        return {"kind": self.kind, "name": self.name, "limit_seconds": self.limit_seconds}


@dataclass(kw_only=True)
class _Watched:
    """The phases of this process."""

    limits: Mapping[str, float]
    extra_seconds: float
    """Added to each limit."""
    note: int | None
    """Descriptor of the file in which torchrun's process finds what this rank did."""
    thread: int = field(default_factory=threading.get_ident)
    """The thread whose phases count: the one that does the work."""
    is_starting: bool = True
    """Whether the spec is not known yet: all that is done until then, the requests to the store included, has the limit of the start."""
    phases: list[Phase] = field(default_factory=list)

    def enter(self, kind: Kind, name: str, *, size_bytes: int = 0) -> Phase:
        known = "start" if self.is_starting else kind
        limit = self.limits.get(known, 0.0)
        seconds = limit + self.extra_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND if limit else 0.0
        entered = Phase(known, name, seconds)
        self.phases.append(entered)
        self.show()
        return entered

    def leave(self, phase: Phase) -> None:
        # Not the last one: a generator that is left in the middle ends its phase late.
        self.phases.remove(phase)
        self.show()

    def show(self) -> None:
        """Begin the present phase; that is a movement too."""
        if self.note is not None:
            # What an earlier phase with a longer line left stays behind it.
            os.pwrite(self.note, json.dumps(self.phases[-1].to_json()).encode() + b"\n", 0)
        self.move()

    def move(self) -> None:
        """Give the present phase its whole limit; also from other threads."""
        phase = None
        # The work may enter a phase while another thread is here, and must not be left with the limit of the one before. A forked child,
        # which has no timer, is not watched.
        while self is _watched and phase is not self.phases[-1]:
            phase = self.phases[-1]
            # Code of the user's that handles SIGALRM has the timer until it sets the default again.
            if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
                signal.setitimer(signal.ITIMER_REAL, phase.limit_seconds)


_watched: _Watched | None = None
_thread = threading.local()


def _forget() -> None:
    global _watched
    _watched = None


os.register_at_fork(after_in_child=_forget)


def watch() -> None:
    """Have this process ended where its work does not move from here on; call it from the main thread, which does the work.

    Raises:
        SpecError: `settings.number`, the variable is not a number of seconds.
    """
    global _watched
    if _watched is not None:
        return
    limits = {"start": START_LIMIT.read()}
    is_first_of_several = WORLD_SIZE.read() > 1 and RANK.read() == 0
    path = RANK_ERROR_FILE.text()
    _watched = _Watched(
        limits=limits,
        extra_seconds=FIRST_RANK_SECONDS if is_first_of_several else 0.0,
        note=os.open(note_of(path), os.O_WRONLY | os.O_CREAT, 0o600) if path else None,
    )
    faulthandler.register(STACKS_SIGNAL, file=2)
    _end_by_alarm()
    threading.Thread(target=_take_alarm, name=ALARM_THREAD, daemon=True).start()
    _watched.enter("start", "imports")


def _end_by_alarm() -> None:
    """Have SIGALRM end this process after its stacks are written, also where the parent ignored or blocked it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, file=2, chain=True)


def _take_alarm() -> None:
    """Take the signal, in a thread, where the working one cannot: it waits in the kernel, for a file of a server that is away."""
    while True:
        time.sleep(TAKE_SECONDS)
        # Code of the user's that handles it has it in the main thread.
        if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            # A thread looks at what is pending for the process when its mask changes.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End this process, which is not watched, with its stacks in the log if the block takes longer."""
    _end_by_alarm()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)


def note_of(error_path: str) -> str:
    """Return the path of the file whose first line is what a rank does, beside the file that torchrun gives it for its error."""
    return f"{error_path}.phase"


def limit(by_kind: Mapping[str, float]) -> None:
    """Set the limits in seconds, by kind: the spec is known from here on. A kind without one has none."""
    if _watched is not None:
        _watched.limits, _watched.is_starting = dict(by_kind), False
        started = _watched.phases[0]
        _watched.enter("start", started.name)
        _watched.leave(started)


def present() -> Phase | None:
    """Return what the work does now, None for a process that is not watched."""
    return None if _watched is None else _watched.phases[-1]


@contextmanager
def phase(kind: Kind, name: str = "", *, size_bytes: int = 0) -> Iterator[None]:
    """Say what is done in the block; beginning and end are movements. In a helper thread they are all that counts.

    Args:
        name: for people: the part of a stage, the key that is read.
        size_bytes: of a transfer in one call.
    """
    watched = _watched
    if watched is None or getattr(_thread, "is_background", False):
        yield
        return
    if threading.get_ident() != watched.thread:
        watched.move()
        yield
        watched.move()
        return
    entered = watched.enter(kind, name, size_bytes=size_bytes)
    try:
        yield
    finally:
        watched.leave(entered)


def moved() -> None:
    """Say that the work moves: a step, a batch, a chunk of a file."""
    if _watched is not None and not getattr(_thread, "is_background", False):
        _watched.move()


def in_background() -> None:
    """Say that what this thread does is not the work: heartbeats go on while the work hangs."""
    _thread.is_background = True
