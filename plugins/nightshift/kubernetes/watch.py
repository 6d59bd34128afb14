"""Alias of an earlier release: triggers that Airflow's database holds name this class."""

from nightshift.execution.kubernetes.trigger import WatchLaunch

__all__ = ["WatchLaunch"]
