"""The application that Airflow's api-server mounts under `/nightshift`: reports, and the REST API under `/nightshift/api/v1`."""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi

from nightshift.api import reports, v1
from nightshift.api.access import Granted
from nightshift.api.problems import API_PREFIX, ProblemBody, add_handlers
from nightshift.api.routing import ApiRoute
from training.runtime.provenance import version_of

MOUNTED_AT: Final = "/nightshift"

api = APIRouter(prefix=API_PREFIX)
for _module in pkgutil.iter_modules(v1.__path__, f"{v1.__name__}."):
    api.include_router(importlib.import_module(_module.name).router)
_document = APIRouter(prefix=API_PREFIX, route_class=ApiRoute)


@_document.get("/openapi.json", include_in_schema=False)
def document(granted: Granted) -> Response:
    """Return the API's description, OpenAPI 3.1."""
    del granted
    return Response(_rendered(), media_type="application/json")


@functools.cache
def _rendered() -> bytes:
    return json.dumps(openapi(), ensure_ascii=False).encode()


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the REST API, with paths as a client of the api-server has them."""
    found = get_openapi(
        title="Nightshift",
        version=version_of("nightshift") or "0",
        summary="Runs, models, decisions and data of an installation",
        description="Errors are RFC 9457 problems. Lists have cursors, answers to GET have ETags, POSTs of runs take an `Idempotency-Key`.",
        routes=api.routes,
        servers=[{"url": MOUNTED_AT}],
    )
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    body = ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(body.pop("$defs", {}))
    schemas["ProblemBody"] = body
    # FastAPI's own form of errors, which no route answers with.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operations in found["paths"].values():
        for operation in operations.values():
            _with_problems(operation)
    return found


def _with_problems(operation: dict[str, Any]) -> None:
    invalid = operation["responses"].get("422")
    if invalid is not None:
        invalid["content"] = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}


# No redirects to a path without its slash: their address would be that of the request's Host header.
app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
app.include_router(reports.router)
app.include_router(api)
app.include_router(_document)
add_handlers(app)
