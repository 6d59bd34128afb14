"""Writes a run by schedule, long ended, into Airflow's record: python scheduled_run.py DAG_ID."""

import sys
from datetime import UTC, datetime, timedelta

from airflow.models.dagrun import DagRun  # noqa: TID251 - no API makes a run by schedule
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

slot = (datetime.now(UTC) - timedelta(days=30)).replace(hour=2, minute=0, second=0, microsecond=0)
with create_session() as session:
    session.add(
        DagRun(
            dag_id=sys.argv[1],
            run_id="of-the-schedule",
            logical_date=slot,
            data_interval=(slot, slot),
            run_after=slot,
            start_date=slot,
            run_type=DagRunType.SCHEDULED,
            triggered_by=DagRunTriggeredByType.TIMETABLE,
            state=DagRunState.SUCCESS,
        )
    )
