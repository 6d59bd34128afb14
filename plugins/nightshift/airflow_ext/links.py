"""The links on Airflow's page of a task: the run that made a reused result, the stage's report, the log of the attempt.

Airflow computes each link in the process that ran the task, stores it with the task's results, and serves it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from training.store.addresses import StoreUri

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from training.contracts import RunIdentity, StageResult


def task_url(run: RunIdentity) -> str:
    """Return the URL of the page, which is the log, of one try of a task."""
    place = f"dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}/tasks/{quote(run.task_id, safe='')}"
    return f"{_base()}/{place}?try_number={run.try_number}"


def report_url(pipeline: str, uri: str) -> str:
    """Return the URL under which the plugin serves a report of the store."""
    return f"{_base()}/nightshift/reports/{quote(pipeline, safe='')}/{StoreUri(uri).digest}"


class ReusedFromLink(BaseOperatorLink):
    """To the task that did the work which this one found done; empty where it did it itself."""

    name = "Reused from"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, or nothing."""
        del ti_key
        result: StageResult | None = getattr(operator, "result", None)
        return task_url(result.reused_from) if result is not None and result.reused_from is not None else ""


class ReportLink(BaseOperatorLink):
    """To the stage's HTML report, of a failed validation too."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty for a stage without a report."""
        del ti_key
        pipeline: Any = getattr(operator, "pipeline", "")
        uri: str = getattr(operator, "report_uri", "")
        return report_url(pipeline, uri) if uri else ""


class AttemptLogLink(BaseOperatorLink):
    """To the log of the work itself: another run's where the result was reused."""

    name = "Log of the attempt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty for a task that failed: the log is its own."""
        del ti_key
        result: StageResult | None = getattr(operator, "result", None)
        return task_url(result.run) if result is not None else ""


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
