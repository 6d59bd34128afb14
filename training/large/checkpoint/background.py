"""A thread that runs calls one after another and never keeps a process from its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThread:
    """As a ThreadPoolExecutor of one worker, which Python does not wait for at exit: a call may wait for a process that hangs."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Run a call after those before it.

        Raises:
            RuntimeError: the thread was closed.
        """
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*arguments, **named))
            except BaseException as err:
                future.set_exception(err)

        self._calls.put(run)
        return future

    def close(self, timeout_seconds: float) -> bool:
        """End the thread after the calls that were submitted; return whether it has ended within the limit."""
        self._is_closed = True
        self._calls.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
