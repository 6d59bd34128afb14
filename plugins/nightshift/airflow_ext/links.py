"""The links on Airflow's page of a task: the run that made a reused result, the stage's report, MLflow, the snapshot, the attempt's log.

Airflow computes each link in the process that ran the task, stores it with the task's results, and serves it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from training.store.work_folder import StoreUri

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


def mlflow_url(tracking_uri: str, *, model: str, version: str = "", run_id: str = "") -> str:
    """Return the URL of MLflow's page of a version, or else of a run; empty where MLflow is not a server, as with `sqlite:///`."""
    if not tracking_uri.startswith(("http://", "https://")) or not (version or run_id):
        return ""
    place = f"models/{quote(model, safe='')}/versions/{quote(version, safe='')}" if version else f"runs/{quote(run_id, safe='')}"
    return f"{tracking_uri.rstrip('/')}/#/{place}"


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


class MlflowLink(BaseOperatorLink):
    """To MLflow's page of the version (`evaluate`, `promote`) or of the run (`train`)."""

    name = "MLflow"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty for other stages, and where MLflow is no server."""
        del ti_key
        url: str = getattr(operator, "mlflow_url", "")
        return url


class SnapshotLink(BaseOperatorLink):
    """To the record of the snapshot that `ingest` made, in the plugin's API."""

    name = "Snapshot"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty for other stages."""
        del ti_key
        result: StageResult | None = getattr(operator, "result", None)
        if result is None or result.stage != "ingest":
            return ""
        return f"{_base()}/nightshift/api/v1/datasets/{quote(result.pipeline, safe='')}/versions/{result.digest}"


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
