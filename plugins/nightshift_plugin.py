"""What Airflow gains: the schedule of runs, their deadline, the page that serves reports, its pools, notes of runs,
and on SQLite an order of writes and no backfills.

The links of the stages' tasks need no registration: operators declare them, and Airflow stores their targets with the task's results.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from nightshift.airflow_ext import pool_creation, run_notes
from nightshift.airflow_ext.backfill_refusal import refuse_on_sqlite
from nightshift.airflow_ext.deadlines import TimeOfDayDeadline
from nightshift.airflow_ext.preloading import is_parsing_process, preload
from nightshift.airflow_ext.single_writer import SingleWriter
from nightshift.airflow_ext.timetables import CronTimetable
from nightshift.api.application import app


class NightshiftPlugin(AirflowPlugin):
    """Found by Airflow in its plugins folder."""

    name = "nightshift"
    timetables = [CronTimetable]  # noqa: RUF012 - Airflow reads a list
    deadline_references = [TimeOfDayDeadline]  # noqa: RUF012 - as above
    fastapi_apps = [{"app": app, "url_prefix": "/nightshift", "name": "Nightshift"}]  # noqa: RUF012 - as above
    listeners = [run_notes, pool_creation]  # noqa: RUF012 - as above
    fastapi_root_middlewares = [{"middleware": SingleWriter, "args": [], "kwargs": {}, "name": "Nightshift: one writer"}]  # noqa: RUF012 - as above

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Refuse backfills on SQLite, and make parsing cheap where Airflow parses; called once per process."""
        del args, kwargs
        refuse_on_sqlite()
        if is_parsing_process():
            preload(parses=True)
