"""Errors as RFC 9457 `application/problem+json`, with the codes and hints of docs/reference/errors.md."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from training.errors import DataError, DeniedError, NightshiftError, SpecError, UnavailableError, shown

logger = logging.getLogger("nightshift.api")

MEDIA_TYPE: Final = "application/problem+json"
SAFE_HEADERS: Final[Mapping[str, str]] = {"X-Content-Type-Options": "nosniff"}
"""Of every answer: a browser takes it for what it says that it is."""
RETRY_SECONDS: Final = 5
RETRY_AFTER: Final = "retry_after_seconds"
"""Key of an error's details: after how many seconds the request may be repeated."""
API_PREFIX: Final = "/api/v1"
WRITES: Final = (403, 404, 409, 413, 415, 422)
"""Documented errors of a route that changes something."""
MAX_ECHO_CHARS: Final = 200
MAX_ERRORS: Final = 50
"""Of one answer: a body of 256 KiB may have 20,000 unknown keys."""
TITLES: Final[Mapping[int, str]] = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Body too large",
    415: "Not JSON",
    422: "Invalid request",
    429: "Too many requests",
    500: "Internal error",
    503: "Not available",
}


class Detail(BaseModel):
    """One thing that is wrong with a request."""

    code: str
    message: str
    hint: str = ""
    field: str = Field(default="", description="Dotted path, `body.train.learning_rate`.")


class ProblemBody(BaseModel):
    """An error, as RFC 9457 defines it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable; docs/reference/errors.md explains it.")
    hint: str = Field(default="", description="What to do.")
    errors: list[Detail] = Field(default_factory=list)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documented errors of a route."""
    schema = {"$ref": "#/components/schemas/ProblemBody"}
    return {
        status: {"description": TITLES[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in dict.fromkeys((401, *statuses, 429, 503))
    }


def problem(
    status: int, code: str, detail: str, *, hint: str = "", errors: list[Detail] | None = None, retry_seconds: int = RETRY_SECONDS
) -> JSONResponse:
    """Return an error's response.

    Args:
        retry_seconds: of the header `Retry-After`, where the status has one.
    """
    body = ProblemBody(title=TITLES.get(status, "Error"), status=status, detail=detail, code=code, hint=hint, errors=errors or [])
    headers = {"Retry-After": str(retry_seconds)} if status in (429, 503) else {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(body.model_dump(), status_code=status, media_type=MEDIA_TYPE, headers={**headers, **SAFE_HEADERS})


def status_of(err: NightshiftError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(err, UnavailableError):
        return 503
    if isinstance(err, SpecError):
        return 404 if err.code == "checkpoint.unknown" else 422
    if isinstance(err, DeniedError):
        if err.code in FORBIDDEN:
            return 403
        if err.code in SPECIAL:
            return SPECIAL[err.code]
        return 404 if err.code.endswith(".unknown") else 422 if err.code in INVALID else 409
    # What is lost or damaged in the store or the database: a request cannot repair it.
    return 409 if isinstance(err, DataError) else 500


FORBIDDEN: Final = frozenset({"access.denied", "approval.self", "approval.approver", "request.origin"})
SPECIAL: Final[Mapping[str, int]] = {
    "access.unauthenticated": 401,
    "checkpoint.deleted": 410,
    "request.too_large": 413,
    "request.media_type": 415,
    "request.rate": 429,
}
INVALID: Final = frozenset({"snapshot.reason", "idempotency.mismatch", "cursor.invalid", "request.invalid"})
"""Codes of refusals that are about the request, and not about the state of things."""


def add_handlers(app: FastAPI) -> None:
    """Let an application answer all errors as problems."""
    app.add_exception_handler(NightshiftError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def of_error(err: NightshiftError) -> JSONResponse:
    """Return the response to an error of ours."""
    details = []
    if isinstance(err, SpecError):
        details = [Detail(code=each.code, message=each.message, hint=each.hint, field=each.field) for each in err.problems]
    message, hint = (details[0].message, details[0].hint) if details else (err.message, err.hint)
    retry_seconds = int(str(err.details.get(RETRY_AFTER, RETRY_SECONDS)))
    return problem(status_of(err), err.code, message, hint=hint, errors=details, retry_seconds=retry_seconds)


async def _known(_request: Request, err: Exception) -> JSONResponse:
    assert isinstance(err, NightshiftError)  # noqa: S101 - as it was registered
    if status_of(err) >= 500:
        logger.warning("%s", err)
    return of_error(err)


async def _database(_request: Request, err: Exception) -> JSONResponse:
    # Airflow's own database, where rights are looked up; ours raises UnavailableError.
    logger.warning("%s", type(err).__name__)
    return problem(503, "airflow.database", "Airflow's database does not answer", hint="repeat the request")


async def _invalid(request: Request, err: Exception) -> JSONResponse:
    assert isinstance(err, RequestValidationError)  # noqa: S101 - as it was registered
    details = []
    for each in err.errors()[:MAX_ERRORS]:
        given = repr(each.get("input"))[:MAX_ECHO_CHARS]
        field = ".".join(str(part) for part in each["loc"])
        if "." in each["type"]:
            # A rule of the spec's: pydantic's own names have no dot.
            hint = str(each.get("ctx", {}).get("hint") or "correct the request")
            details.append(Detail(code=each["type"], message=each["msg"], hint=hint, field=field))
        else:
            example = _example(request, each["loc"]) if each["type"] == "string_pattern_mismatch" else None
            message = f"{each['msg']}; given {given}" if example is None else f"{given} does not have the form of {example}"
            details.append(Detail(code="request.invalid", message=message, hint="see openapi.json", field=field))
    first = f"{details[0].field}: {details[0].message}"
    is_ours = details[0].code != "request.invalid"
    return problem(422, details[0].code, first, hint=details[0].hint if is_ours else "correct the request", errors=details)


def _example(request: Request, place: Sequence[str | int]) -> str | None:
    """Return the documented example of a parameter in the path or the query: people read it, and no pattern."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return None
    known = get_flat_dependant(route.dependant)
    for parameter in (*known.path_params, *known.query_params):
        if parameter.alias == place[-1] and parameter.field_info.examples:
            return str(parameter.field_info.examples[0])
    return None


async def _http(_request: Request, err: Exception) -> Response:
    assert isinstance(err, HTTPException)  # noqa: S101 - as it was registered
    codes = {404: "route.unknown", 405: "route.method"}
    response = problem(err.status_code, codes.get(err.status_code, "request.refused"), str(err.detail))
    # 405 names the methods that a path has.
    response.headers.update(err.headers or {})
    return response


async def _unexpected(request: Request, err: Exception) -> JSONResponse:
    logger.exception("%s %s", request.method, shown(request.url.path), exc_info=err)
    return problem(500, "internal.error", "the request failed unexpectedly; the api-server's log has the cause")
