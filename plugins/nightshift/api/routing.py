"""What all routes share: the token, ETags on answers to GET, and answers to repeated POSTs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Header, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from nightshift.api.access import authenticated
from nightshift.api.bodies import parsed
from nightshift.api.problems import SAFE_HEADERS, of_error
from nightshift.settings import Settings
from training.contracts import canonical_json, sha256_hex
from training.database import connect
from training.database.api_answers import Answers
from training.errors import DeniedError, NightshiftError

logger = logging.getLogger("nightshift.api")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key, user and request within 24 hours have the same answer, and one effect.",
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


def answered_once(
    user: str, key: str | None, request: Mapping[str, Any], status: int, work: Callable[[str], BaseModel], *, location: str = ""
) -> Response:
    """Do the work of a POST, or return the answer that the same request had before.

    Args:
        user: who asks; keys of different users are different.
        key: the `Idempotency-Key`; None: the work is done.
        request: what must be equal for the same key.
        status: of the answer where the work succeeds.
        work: gets a name for its effect, the same for the same user, key and request within 24 hours; must not have the effect twice.
        location: of the header, where `{id}` is replaced by the answer's.

    Raises:
        DeniedError: `idempotency.mismatch`, the key was used for another request; those of `work`.
    """
    if key is None:
        return _answer(status, work("").model_dump(mode="json"), location)
    answers = Answers(connect(Settings.from_environment().database_url))
    digest = sha256_hex(canonical_json(dict(request)))
    name = sha256_hex(canonical_json([user, key]))
    known = answers.find(name) or answers.begin(name, digest)
    if known.request_digest != digest:
        message = f"the Idempotency-Key {key!r} was used for another request"
        raise DeniedError("idempotency.mismatch", message, hint="use a new key for a new request")
    if known.status is not None and known.body is not None:
        return _answer(known.status, known.body, location)
    # A key that is used again a day later has another effect, and never that of the earlier request.
    effect = sha256_hex(canonical_json([name, digest, known.begun_at.isoformat()]))
    try:
        body = work(effect).model_dump(mode="json")
    except NightshiftError as err:
        refused = of_error(err)
        if refused.status_code < 500:
            answers.forget(name)
        raise
    answers.end(name, known, status, body)
    return _answer(status, body, location)


def _answer(status: int, body: Mapping[str, Any], location: str) -> JSONResponse:
    headers = {"Location": location.format(id=quote(str(body["id"]), safe=""))} if location else None
    return JSONResponse(dict(body), status_code=status, headers=headers)
