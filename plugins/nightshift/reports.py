"""Serves a stage's report out of the store to whoever is logged in to Airflow: by digest, HTML only, nothing else."""

from __future__ import annotations

from typing import Annotated, Final

from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path
from fastapi.responses import HTMLResponse

from nightshift.settings import Settings
from training.errors import NightshiftError
from training.store import Store

HEADERS: Final = {
    # A report is data of the pipeline: it may run its own script for sorting, and reach nothing.
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, max-age=3600",
}

router = APIRouter(dependencies=[Depends(get_user)])


@router.get("/reports/{digest}")
def report(digest: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]) -> HTMLResponse:
    """Return the report with this SHA-256; 404 for anything that is not an HTML page of the store."""
    try:
        page = Store(Settings.from_environment().store_uri).objects.get_bytes(digest)
    except NightshiftError as err:
        raise HTTPException(status_code=404, detail="no such report") from err
    if not page[:64].lstrip().lower().startswith(b"<!doctype html"):
        raise HTTPException(status_code=404, detail="no such report")
    return HTMLResponse(page, headers=HEADERS)


app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(router)
