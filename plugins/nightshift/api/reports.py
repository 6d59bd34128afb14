"""Serves a stage's report from the store, by digest and HTML only, to users who may see its pipeline in Airflow.

A browser opens no `file://` and no `s3://` from a page, so the task's link leads here.
"""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse

from nightshift.api.access import Granted
from nightshift.api.problems import responses
from nightshift.api.routing import ApiRoute
from nightshift.settings import Settings
from training.errors import DeniedError, NightshiftError, UnavailableError
from training.spec.rules.names import HELPER_SUFFIXES

logger = logging.getLogger("nightshift.api.reports")

HEADERS: Final = {
    # A report is data of the pipeline: it may run its own script, in a separate origin without network access.
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    # Named by its content: the page under one address never changes.
    "Cache-Control": "private, max-age=86400, immutable",
}
DagId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}$")]

router = APIRouter(route_class=ApiRoute)


@router.get("/reports/{dag_id}/{digest}", response_class=HTMLResponse, responses=responses(404, 422))
def report(dag_id: DagId, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")], granted: Granted) -> HTMLResponse:
    """Return the report with this SHA-256.

    Raises:
        DeniedError: `report.unknown`, for all that is not a report of a pipeline that the user may read.
        UnavailableError: the store does not answer; of its code.
    """
    unknown = DeniedError("report.unknown", "there is no such report", hint="open it from the page of its task")
    granted.require_read(dag_id, unknown)
    try:
        store = Settings.from_environment().store()
        pipelines = [dag_id, *(dag_id.removesuffix(suffix) for suffix in HELPER_SUFFIXES if dag_id.endswith(suffix))]
        page = next(filter(None, (store.reports.find(pipeline, digest) for pipeline in pipelines)), None)
    except DeniedError:
        raise
    except UnavailableError as err:
        # Who reads a page need not know where the store is.
        logger.warning("report %s of %s: %s", digest, dag_id, err)
        raise UnavailableError(err.code, "the store does not answer") from err
    except NightshiftError as err:
        logger.info("report %s of %s: %s", digest, dag_id, err)
        raise unknown from err
    if page is None:
        raise unknown
    return HTMLResponse(page, headers=HEADERS)
