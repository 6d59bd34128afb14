"""Alias of an earlier release: serialised DAGs in Airflow's database name this class."""

from dataclasses import dataclass

from nightshift.airflow_ext import deadlines


@dataclass(frozen=True)
class NotDoneBy(deadlines.TimeOfDayDeadline):
    """Registered by this path, too, so that Airflow reads what the earlier release stored."""
