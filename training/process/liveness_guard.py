"""The guard of one stage process: ends it when its work has not moved for the limit of its phase, with the stacks of all ranks.

It is started by `training.process.liveness`, shares one page of memory with the process, and ends when that does. Time in which it, the
process or another rank of the node was stopped does not count (a laptop that sleeps, SIGSTOP): see `training.process.awake`. Standard
library only, and most of it is imported when there is a hang: each stage process of a run has a guard.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from training.installation import PYTHON_PATH, WORLD_SIZE
from training.installation import RANK as RANK_VARIABLE
from training.process.awake import AwakeClock
from training.process.liveness_page import NO_RANK, NUMBERS, PAGE_BYTES, PAGE_NAME, RANK, RANK_AT, STACKS_NAME, STACKS_SIGNAL, TEXT_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from socket import socket

TICK_SECONDS: Final = 1.0
FIRST_RANK_SECONDS: Final = 60.0
"""Rank 0 of several is ended so much later: when another rank that hangs is ended, rank 0 saves the last whole step."""
STACKS_SECONDS: Final = 5.0
"""How long a process may take to write its stacks."""
SETTLED_SECONDS: Final = 0.3
REPORT_SECONDS: Final = 90.0
"""How long writing the error to the store may take: the store may be what hangs."""
MAX_STACKS_BYTES: Final = 200_000
STOPPED: Final = frozenset("Tt")
MAX_STAT_BYTES: Final = 4096


class Seen(NamedTuple):
    """One reading of a process's page."""

    movements: int
    limit_seconds: float
    kind: str
    name: str

    @classmethod
    def of(cls, page: mmap.mmap) -> Seen:
        movements, limit = NUMBERS.unpack_from(page)
        text = page[TEXT_AT:PAGE_BYTES].split(b"\0", 1)[0].decode("utf-8", "replace")
        kind, _, name = text.partition("\n")
        return cls(movements, limit, kind, name)

    @property
    def words(self) -> str:
        return f"{self.kind} ({self.name})" if self.name else self.kind


class Rank(NamedTuple):
    """A process of the same gang on this node."""

    pid: int
    number: str


class Guard:
    """Watches one process."""

    def __init__(
        self, pid: int, page: mmap.mmap, request_uri: str, environ: Mapping[str, str], *, clock: Callable[[], float] | None = None
    ) -> None:
        self._pid = pid
        self._page = page
        self._request_uri = request_uri
        self._environ = dict(environ)
        self._rank = RANK_VARIABLE.text(environ) or "0"
        self._is_gang = WORLD_SIZE.read(environ) > 1
        self._clock = clock or AwakeClock()
        self._seen: Seen | None = None
        self._moved_at = 0.0
        self._stacks = ""
        self._lock: socket | None = None

    def look(self) -> bool:
        """Look once; return True after the process was ended."""
        now, seen = self._clock(), Seen.of(self._page)
        if seen != self._seen or state_of(self._pid) in STOPPED:
            self._seen, self._moved_at = seen, now
            self._forget_stacks()
            return False
        lapse, limit = now - self._moved_at, seen.limit_seconds
        if not limit or lapse < limit / 2:
            return False
        if any(state_of(rank.pid) in STOPPED for rank in self._others()):
            self._moved_at = now - limit / 2
            return False
        if lapse < limit:
            return False
        if not self._stacks:
            self._stacks = self._dump(seen, lapse)
        if self._is_gang and self._rank == "0" and lapse < limit + FIRST_RANK_SECONDS:
            return False
        self._end(seen, lapse)
        return True

    def _others(self) -> list[Rank]:
        return list(other_ranks(self._pid)) if self._is_gang else []

    def _dump(self, seen: Seen, lapse: float) -> str:
        """Print the stacks of all ranks of this node, those of this rank first; return them."""
        say(f"rank {self._rank}: no progress in {seen.words} for {lapse:.0f} s; stacks of all ranks of this node:")
        texts = []
        for rank in [Rank(self._pid, self._rank), *(self._others() if self._is_first_to_ask() else [])]:
            text = f"stacks of rank {rank.number} (pid {rank.pid}, {phase_of(rank.pid)}):\n{stacks_of(rank.pid)}"
            say(text)
            texts.append(text)
        return "\n".join(texts)

    def _is_first_to_ask(self) -> bool:
        """Return whether this guard is the first of its gang: the others then print their own rank alone."""
        import socket

        self._lock = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name: it goes when the socket closes. The attempt is the last folder of its request.
            self._lock.bind(f"\0{STACKS_NAME}-{self._request_uri.rsplit('/', 2)[-2][:40]}-{parent_of(self._pid)}")
        except OSError:
            return False
        return True

    def _forget_stacks(self) -> None:
        self._stacks = ""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _end(self, seen: Seen, lapse: float) -> None:
        """Write the error, then kill: who waits for the process looks for its error at once."""
        import json
        import subprocess
        from pathlib import Path

        facts = {**seen._asdict(), "request": self._request_uri, "rank": self._rank, "seconds": round(lapse, 1), "stacks": self._stacks}
        root = str(Path(__file__).resolve().parents[2])
        environ = {**self._environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, PYTHON_PATH.value(self._environ)]))}
        command = [sys.executable, "-m", "training.runtime.hung"]
        try:
            subprocess.run(command, input=json.dumps(facts).encode(), env=environ, timeout=REPORT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as err:
            say(f"the error could not be written to the store: {err}")
        # While it is this process's parent, the pid is that of no other process.
        if os.getppid() == self._pid:
            say(f"rank {self._rank} is ended: no progress in {seen.words} for {lapse:.0f} s")
            os.kill(self._pid, signal.SIGKILL)


def other_ranks(pid: int) -> Iterator[Rank]:
    """Yield the other processes of the same launcher that have a guard of their own."""
    from pathlib import Path

    parent = parent_of(pid)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == pid or parent_of(int(folder.name)) != parent:
            continue
        number = rank_of(int(folder.name))
        if number != NO_RANK:
            yield Rank(int(folder.name), str(number))


def stacks_of(pid: int) -> str:
    """Return the stacks of a process's threads, as its faulthandler writes them, or why there are none."""
    path = descriptor_of(pid, STACKS_NAME)
    try:
        if path is None:
            return "(the process has ended, or has no handler)"
        before = path.stat().st_size
        os.kill(pid, STACKS_SIGNAL)
        size = _settled_size(path, before)
        with path.open("rb") as stream:
            stream.seek(before)
            found = stream.read(MAX_STACKS_BYTES).decode("utf-8", "replace").rstrip()
    except OSError as err:
        return f"(cannot be read: {err})"
    return found if size > before else f"(none within {STACKS_SECONDS:.0f} s: the process is in state {state_of(pid)})"


def _settled_size(path: Path, before: int) -> int:
    deadline = time.monotonic() + STACKS_SECONDS
    size, changed_at = before, time.monotonic()
    while time.monotonic() < deadline:
        now, actual = time.monotonic(), path.stat().st_size
        if actual != size:
            size, changed_at = actual, now
        elif size > before and now - changed_at >= SETTLED_SECONDS:
            break
        time.sleep(0.02)
    return size


def phase_of(pid: int) -> str:
    """Return what a process says that it does."""
    page = page_of(pid)
    return "ended" if page is None else f"in {Seen.of(page).words}"


def rank_of(pid: int) -> int:
    """Return a process's rank, NO_RANK where it has none or no guard."""
    page = page_of(pid)
    return NO_RANK if page is None else int(RANK.unpack_from(page, RANK_AT)[0])


def page_of(pid: int) -> mmap.mmap | None:
    """Return the page that another process shares with its guard; None where there is none."""
    path = descriptor_of(pid, PAGE_NAME)
    try:
        if path is None:
            return None
        with path.open("rb") as stream:
            return mmap.mmap(stream.fileno(), PAGE_BYTES, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None


def descriptor_of(pid: int, name: str) -> Path | None:
    """Return the path to a process's memory file of that name."""
    from pathlib import Path

    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if link.readlink().name.split(" ")[0] == f"memfd:{name}-{pid}":
                    return link
            except OSError:
                continue
    except OSError:
        return None
    return None


def state_of(pid: int) -> str:
    """Return a process's state as proc(5) writes it, `T` for stopped; empty where there is no such process."""
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> tuple[str, str]:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(descriptor, MAX_STAT_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
        # The name of a program, in parentheses, may hold anything.
        state, parent = text.rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "", "-1"
    return state, parent


def say(text: str) -> None:
    """Write to the log of the stage, line by line: it is cut and escaped there."""
    moment = time.strftime("%H:%M:%S")
    sys.stderr.write("".join(f"{moment} ERROR training.guard: {line}\n" for line in text.splitlines()))
    sys.stderr.flush()


def main() -> None:
    """Watch the parent process until it ends. Arguments: the root of the code, its pid, the descriptor of its page."""
    pid, memory = int(sys.argv[2]), int(sys.argv[3])
    # They are for the process: it may save and end in order, and is watched as it does so.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with sys.stdin.buffer as pipe:
        request_uri = pipe.readline().decode("utf-8", "replace").rstrip("\n")
        page = mmap.mmap(memory, PAGE_BYTES, access=mmap.ACCESS_READ)
        guard = Guard(pid, page, request_uri, os.environ)
        while os.getppid() == pid:
            # Readable means closed: the process has ended.
            if select.select([pipe], [], [], TICK_SECONDS)[0] or guard.look():
                return
