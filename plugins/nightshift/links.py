"""What Airflow's page of a task leads to: the run that made a reused result, and the stage's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from training.contracts import RunIdentity


def task_url(run: RunIdentity) -> str:
    """Return the URL of a task instance's page."""
    return f"{_base()}/dags/{quote(run.dag_id)}/runs/{quote(run.run_id, safe='')}/tasks/{quote(run.task_id)}"


def report_url(uri: str) -> str:
    """Return the URL under which the plugin serves a report of the store."""
    return f"{_base()}/nightshift/reports/{uri.rsplit('/', 1)[-1]}"


class ReusedFromLink(BaseOperatorLink):
    """To the task that did the work which this one found done; empty where it did it itself."""

    name = "Reused from"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; Airflow calls it in the process that ran the task and keeps the answer."""
        del ti_key
        result: Any = getattr(operator, "result", None)
        return task_url(result.reused_from) if result is not None and result.reused_from is not None else ""


class ReportLink(BaseOperatorLink):
    """To the stage's HTML report, of a failed validation too."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty for a stage without a report."""
        del ti_key
        uri: str = getattr(operator, "report_uri", "")
        return report_url(uri) if uri else ""


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
