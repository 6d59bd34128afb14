"""Alias of an earlier release: triggers that Airflow's database holds name this class."""

from nightshift.operators.approval import WatchRequest

__all__ = ["WatchRequest"]
