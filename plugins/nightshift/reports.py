"""Serves a stage's report out of the store to whoever may see the pipeline in Airflow: by digest, HTML only, nothing else.

A browser opens no `file://` and no `s3://` from a page, so the task's link leads here.
"""

from __future__ import annotations

import logging
from typing import Annotated, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path
from fastapi.responses import HTMLResponse

from nightshift.settings import Settings
from training.errors import NightshiftError, UnavailableError
from training.store import Store

logger = logging.getLogger("nightshift.reports")

HEADERS: Final = {
    # A report is data of the pipeline: it may run its own script, in an origin of its own, and reach nothing.
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

# Airflow asks nobody for a login on behalf of a plugin's routes.
router = APIRouter(dependencies=[Depends(get_user)])


@router.get("/reports/{dag_id}/{digest}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
def report(dag_id: str, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> HTMLResponse:
    """Return the report with this SHA-256; 404 for anything that is no HTML page of the store, 503 while the store does not answer."""
    try:
        page = Store(Settings.from_environment().store_uri).objects.get_bytes(digest)
    except UnavailableError as err:
        logger.warning("report %s of %s: %s", digest, dag_id, err)
        raise HTTPException(status_code=503, detail="the store does not answer", headers={"Retry-After": "5"}) from err
    except NightshiftError as err:
        logger.info("report %s of %s: %s", digest, dag_id, err)
        raise HTTPException(status_code=404, detail=MISSING) from err
    if not page[:64].lstrip().lower().startswith(HTML_STARTS):
        raise HTTPException(status_code=404, detail=MISSING)
    return HTMLResponse(page, headers=HEADERS)


app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(router)
