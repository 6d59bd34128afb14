"""Alias of an earlier release: a supervisor from before an update names this class when it restarts the scheduler."""

from devstack.executor import SleepTolerantLocalExecutor

__all__ = ["SleepTolerantLocalExecutor"]
