"""What all routes share: the token, ETags on answers to GET, and the ids of runs that a POST starts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from nightshift.api.access import authenticated
from nightshift.api.problems import API_PREFIX, SAFE_HEADERS
from nightshift.api.request_body import parsed
from nightshift.queries.schemas import RunSummary
from training.contracts import canonical_json, sha256_hex

logger = logging.getLogger("nightshift.api")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key, user and path are one run of the pipeline, as long as the run exists.",
    ),
]


class ApiRoute(APIRoute):
    """A route that asks for the token first, then for a bounded body in JSON; with ETags."""

    def get_route_handler(self) -> Handler:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            # Before anything of the body is read: what has no token costs nothing.
            request.state.access = await authenticated(request)
            if request.method == "GET":
                response = await inner(request)
                found = _tagged(request, response) if response.status_code == 200 else response
            else:
                try:
                    body = await parsed(request)
                except ClientDisconnect:
                    logger.info("%s %s: the client left before the end of its body", request.method, self.path_format)
                    return Response(status_code=400)
                found = await inner(body)
            found.headers.update(SAFE_HEADERS)
            return found

        return handler


def _tagged(request: Request, response: Response) -> Response:
    if not response.headers.get("content-type", "").startswith("application/json"):
        return response
    tag = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    wanted = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if tag in wanted or "*" in wanted:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response


def ordered_run_id(request: Request, user: str, key: str | None) -> str:
    """Return the id of the run that a POST starts: the same for the same user, key and path, so that the order has one effect.

    Args:
        user: who asks; keys of different users are different.
        key: the `Idempotency-Key`; None: another run each time.
    """
    if key is None:
        return f"api__{datetime.now(UTC).isoformat()}"
    path = [request.scope["route"].path, request.path_params]
    return f"api__{sha256_hex(canonical_json([user, key, *path]))[:32]}"


def accepted(request: Request, path: str, found: RunSummary) -> JSONResponse:
    """Return the answer to an order: the run, and in `Location` where to look at it, below `path`."""
    location = f"{request.scope.get('root_path', '')}{API_PREFIX}{path}/{quote(found.id, safe='')}"
    return JSONResponse(found.model_dump(mode="json"), status_code=202, headers={"Location": location})
