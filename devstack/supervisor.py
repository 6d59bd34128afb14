"""Starts the services, starts again what dies, and ends them in the way that each of them survives.

A TERM goes to a component's own process alone (a TERM to the whole group can hang Airflow's scheduler for good), and
only what is left after a grace time is killed. Before a dead component is started again, what it left behind is
ended: LocalExecutor's workers outlive a killed scheduler and keep running its tasks next to the new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from devstack.processes import MARK, ProcessId, ProcessMark, kill_all, marked_by, wait_gone
from devstack.supervisor_state import ComponentState, ServicesState, remove_state, take_lock
from training.errors import NightshiftError

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 15.0
STEADY_SECONDS: Final = 60.0
"""A component that ran for so long starts its backoff from the beginning."""
MAX_BACKOFF_SECONDS: Final = 30.0
WAKE_SECONDS: Final = 1.0
MAX_LOG_BYTES: Final = 50 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """What to run."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    once: bool = False
    """A step that must succeed once, such as a migration."""
    needs: str = ""
    """The once-component that must be done before this one starts."""


@dataclass(kw_only=True)
class _Running:
    """One component's course."""

    component: Component
    log_path: Path
    state: str = "waiting"
    process: subprocess.Popen[bytes] | None = None
    identity: ProcessId | None = None
    mark: ProcessMark | None = None
    restarts: int = 0
    failures: int = 0
    """Consecutive ends, each before the component was steady."""
    started_at: float = 0.0
    due_at: float = 0.0

    def described(self) -> ComponentState:
        return ComponentState(self.component.name, self.state, self.identity, self.restarts, str(self.log_path))


class Supervisor:
    """Keeps the components of the installation in `home` running until it is stopped."""

    def __init__(
        self,
        home: Path,
        components: Sequence[Component],
        *,
        settings: Mapping[str, str] | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Take over an installation's folder.

        Args:
            settings: digests of the components' configuration, kept in the state file for comparison.
            grace_seconds: time between SIGTERM and SIGKILL.
        """
        self._home = home
        self._settings = dict(settings or {})
        self._grace_seconds = grace_seconds
        self._logs = home / "logs"
        self._running = [_Running(component=component, log_path=self._logs / f"{component.name}.log") for component in components]
        self._stop = False

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT; every process that was started has ended when this returns.

        Raises:
            NightshiftError: `services.running`, another supervisor has this installation.
        """
        lock = take_lock(self._home)
        if lock is None:
            raise NightshiftError(
                "services.running", f"another supervisor runs the services in {self._home}", hint="make status; make stop"
            )
        self._logs.mkdir(parents=True, exist_ok=True)
        with lock, _wake_on_signals(self._request_stop) as wake_fd:
            try:
                while not self._stop:
                    self._turn()
                    with contextlib.suppress(BlockingIOError):
                        if select.select([wake_fd], [], [], self._pause_seconds())[0]:
                            os.read(wake_fd, 512)
            finally:
                self._stop_all()
                remove_state(self._home)

    def _request_stop(self) -> None:
        self._stop = True

    def _pause_seconds(self) -> float:
        due = [entry.due_at for entry in self._running if entry.state == "backoff"]
        return max(0.0, min([WAKE_SECONDS, *(at - time.monotonic() for at in due)]))

    def _turn(self) -> None:
        before = [entry.described() for entry in self._running]
        for entry in self._running:
            if entry.process is not None and entry.process.poll() is not None:
                self._ended(entry, entry.process.returncode)
        done = {entry.component.name for entry in self._running if entry.state == "done"}
        for entry in self._running:
            ready = entry.state == "waiting" and (not entry.component.needs or entry.component.needs in done)
            if ready or (entry.state == "backoff" and time.monotonic() >= entry.due_at):
                self._start(entry)
        after = [entry.described() for entry in self._running]
        if after != before:
            self._write_state(after)

    def _write_state(self, components: Sequence[ComponentState]) -> None:
        me = ProcessId.of(os.getpid())
        if me is not None:
            ServicesState(me, tuple(components), self._settings).write(self._home)

    def _start(self, entry: _Running) -> None:
        component, mark = entry.component, ProcessMark.fresh(entry.component.name, self._home)
        if entry.log_path.exists() and entry.log_path.stat().st_size > MAX_LOG_BYTES:
            entry.log_path.replace(entry.log_path.with_suffix(".log.1"))
        with entry.log_path.open("ab") as log:
            process = subprocess.Popen(
                list(component.command),
                env={**component.environment, MARK: str(mark), "SPT_NOENV": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._home,
            )
        entry.process, entry.mark, entry.state = process, mark, "running"
        entry.identity = ProcessId.of(process.pid)
        entry.started_at = time.monotonic()
        logger.info("started %s, pid %d", component.name, process.pid)

    def _ended(self, entry: _Running, code: int) -> None:
        name = entry.component.name
        left = self._end_leftovers(entry)
        entry.process = entry.identity = None
        if entry.component.once and code == 0:
            entry.state = "done"
            logger.info("%s is done", name)
            return
        steady = time.monotonic() - entry.started_at >= STEADY_SECONDS
        entry.failures = 1 if steady else entry.failures + 1
        entry.restarts += 1
        delay = 0.0 if entry.failures == 1 else min(2.0 ** (entry.failures - 2), MAX_BACKOFF_SECONDS)
        entry.state, entry.due_at = "backoff", time.monotonic() + delay
        logger.warning(
            "%s ended with %d; %d processes it left were ended; again in %.0f s, see %s", name, code, left, delay, entry.log_path
        )

    def _end_leftovers(self, entry: _Running) -> int:
        mark = entry.mark
        if mark is None:
            return 0
        try:
            return kill_all(lambda: marked_by(mark))
        except TimeoutError as err:
            logger.error("%s: %s", entry.component.name, err)
            return 0

    def _stop_all(self) -> None:
        started = [entry for entry in self._running if entry.process is not None]
        for entry in self._running:
            entry.state = "stopped"
        # Commands that use the services end now instead of waiting for a restart. A full disk must not keep the services running.
        with contextlib.suppress(OSError):
            self._write_state([entry.described() for entry in self._running])
        for entry in started:
            if entry.identity is not None:
                entry.identity.send(signal.SIGTERM)
        identities = [entry.identity for entry in started if entry.identity is not None]
        late = wait_gone(identities, timeout_seconds=self._grace_seconds, reap=self._reap)
        for entry in started:
            if entry.identity in late:
                logger.warning("%s did not end within %.0f s of SIGTERM; killed", entry.component.name, self._grace_seconds)
            self._end_leftovers(entry)
        self._reap()
        logger.info("stopped %d services", len(started))

    def _reap(self) -> None:
        for entry in self._running:
            if entry.process is not None:
                entry.process.poll()


@contextlib.contextmanager
def _wake_on_signals(stop: Callable[[], None]) -> Iterator[int]:
    """Yield a file descriptor that becomes readable on SIGCHLD, SIGTERM and SIGINT; the last two also call `stop`."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def handle(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            stop()

    handled = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, handle) for number in handled}
    wakeup_before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    try:
        yield read_fd
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)
