"""What Airflow's UI and API gain: links of the stages' tasks, and the page that serves reports."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from nightshift.links import ReportLink, ReusedFromLink
from nightshift.reports import app


class NightshiftPlugin(AirflowPlugin):
    """Found by Airflow in its plugins folder."""

    name = "nightshift"
    operator_extra_links = [ReusedFromLink(), ReportLink()]  # noqa: RUF012 - Airflow reads a list
    fastapi_apps = [{"app": app, "url_prefix": "/nightshift", "name": "Nightshift"}]  # noqa: RUF012 - as above
