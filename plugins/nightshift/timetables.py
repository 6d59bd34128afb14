"""Alias of an earlier release: serialised DAGs in Airflow's database name this class."""

from nightshift.airflow_ext import timetables


class Nights(timetables.CronTimetable):
    """Registered by this path, too, so that Airflow reads what the earlier release stored."""
