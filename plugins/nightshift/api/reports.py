"""Serves a stage's report from the store, by digest and HTML only, to users who may see its pipeline in Airflow.

A browser opens no `file://` and no `s3://` from a page, so the task's link leads here.
"""

from __future__ import annotations

import logging
import re
from typing import Annotated, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import APIRouter, Depends, HTTPException, Path
from fastapi.responses import HTMLResponse

from nightshift.settings import Settings
from training.errors import NightshiftError, UnavailableError
from training.spec.rules.names import HELPER_SUFFIXES
from training.store import Store
from training.store.reports import has_report

logger = logging.getLogger("nightshift.api.reports")

HEADERS: Final = {
    # A report is data of the pipeline: it may run its own script, in a separate origin without network access.
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Named by its content: the page under one address never changes.
    "Cache-Control": "private, max-age=86400, immutable",
}
HTML_STARTS: Final = (b"<!doctype html", b"<html")
MISSING: Final = "there is no such report"
_DAG_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

# Airflow requires no login on a plugin's routes.
router = APIRouter(dependencies=[Depends(get_user)])


@router.get("/reports/{dag_id}/{digest}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
def report(dag_id: str, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> HTMLResponse:
    """Return the report with this SHA-256.

    404 for all that is not a report of this DAG's pipeline, whether another pipeline has it or none; 503 while the store does not answer.
    """
    try:
        store = Store(Settings.from_environment().store_uri)
        if not any(has_report(store, pipeline, digest) for pipeline in _pipelines_of(dag_id)):
            raise HTTPException(status_code=404, detail=MISSING)
        page = store.objects.get_bytes(digest)
    except UnavailableError as err:
        logger.warning("report %s of %s: %s", digest, dag_id, err)
        raise HTTPException(status_code=503, detail="the store does not answer", headers={"Retry-After": "5"}) from err
    except NightshiftError as err:
        logger.info("report %s of %s: %s", digest, dag_id, err)
        raise HTTPException(status_code=404, detail=MISSING) from err
    if not page[:64].lstrip().lower().startswith(HTML_STARTS):
        raise HTTPException(status_code=404, detail=MISSING)
    return HTMLResponse(page, headers=HEADERS)


def _pipelines_of(dag_id: str) -> list[str]:
    if not _DAG_ID.fullmatch(dag_id):
        return []
    return [dag_id, *(dag_id.removesuffix(suffix) for suffix in HELPER_SUFFIXES if dag_id.endswith(suffix))]
