"""Alias of an earlier release: deadlines that Airflow's database holds name this callback."""

from nightshift.airflow_ext.alerts import deadline_missed

__all__ = ["deadline_missed"]
