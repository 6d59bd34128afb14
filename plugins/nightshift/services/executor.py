"""Alias of an earlier release: a scheduler that a supervisor of before an update starts again names this class."""

from devstack.executor import SleepTolerantLocalExecutor

__all__ = ["SleepTolerantLocalExecutor"]
