"""The processes that run the laptop's tasks, each with its own queues.

Airflow's LocalExecutor gives all its workers one queue. An idle worker waits in it with the queue's lock, which a killed process never
releases: no other worker takes a task after that. A dead worker's task is also not known there, and stays queued.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
from collections.abc import Iterator
from multiprocessing import SimpleQueue
from typing import TYPE_CHECKING, Any

from airflow.executors.local_executor import _run_worker

from nightshift.airflow_ext.preloading import forget_if_changed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from airflow.executors.base_executor import ExecutorConf
    from airflow.executors.workloads import ExecutorWorkload
    from airflow.executors.workloads.types import WorkloadKey, WorkloadState


class CurrentCode:
    """In a worker: the queue of its workloads. Its tasks, which are forked from it, have no code in memory that was edited since."""

    def __init__(self, workloads: SimpleQueue[ExecutorWorkload | None]) -> None:
        self._workloads = workloads

    def get(self) -> ExecutorWorkload | None:
        workload = self._workloads.get()
        if workload is not None:
            forget_if_changed()
        return workload


class Worker(multiprocessing.Process):
    """One process that runs one workload at a time."""

    def __init__(self, logger_name: str, conf: ExecutorConf) -> None:
        self._input: SimpleQueue[ExecutorWorkload | None] = SimpleQueue()
        self._output: SimpleQueue[tuple[WorkloadKey, WorkloadState, Exception | None]] = SimpleQueue()
        self.workload: ExecutorWorkload | None = None
        """What it runs, as far as its results have been read; None: it is idle."""
        super().__init__(
            target=_run_worker,
            kwargs={
                "logger_name": logger_name,
                "input": CurrentCode(self._input),
                "output": self._output,
                "unread_messages": multiprocessing.Value(ctypes.c_uint),  # of use to LocalExecutor alone
                "team_conf": conf,
            },
        )

    def start(self) -> None:
        """Start the process. It alone keeps its ends of the queues, so that its death ends a pending read or write."""
        super().start()
        self._output._writer.close()  # type: ignore[attr-defined]
        self._input._reader.close()  # type: ignore[attr-defined]

    @property
    def results_reader(self) -> Connection[Any, Any]:
        """Readable when there is a result, or when the process has died."""
        return self._output._reader  # type: ignore[attr-defined, no-any-return]

    def take(self, workload: ExecutorWorkload) -> None:
        """Run a workload; only if this worker is idle. A worker that has died keeps it, and is found dead by the next look."""
        self.workload = workload
        with contextlib.suppress(OSError):
            self._input.put(workload)

    def results(self) -> Iterator[tuple[WorkloadKey, WorkloadState]]:
        """Yield what this worker has reported since the last call, also if it is dead by now."""
        while not self._output.empty():
            try:
                key, state, _error = self._output.get()
            except (EOFError, OSError):
                # It died, perhaps in the middle of a report.
                return
            if self.workload is not None and state != self.workload.running_state:
                self.workload = None
            yield key, state

    def finish(self) -> None:
        """End after the workload that runs now."""
        with contextlib.suppress(OSError):
            self._input.put(None)

    def close(self) -> None:
        """Release the queues and the handle of an ended process."""
        super().close()
        self._input.close()
        self._output.close()
