"""What all routes share: a limit on bodies, ETags on answers to GET, and answers to repeated POSTs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Header, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from nightshift.api.problems import of_error, problem
from nightshift.settings import Settings
from training.contracts import canonical_json, sha256_hex
from training.database import connect
from training.database.api_answers import Answers
from training.errors import DeniedError, NightshiftError, shown

MAX_BODY_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
"""Of objects and lists in a body."""
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
    """A route with bounded bodies and ETags."""

    def get_route_handler(self) -> Handler:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            bounded = await _bounded(request)
            if bounded is None:
                return problem(413, "request.too_large", f"the body is above {MAX_BODY_BYTES:,} bytes", hint="send less")
            fault = "" if request.method == "GET" else _fault_of(await bounded.body())
            if fault:
                return problem(422, "request.invalid", fault, hint="send JSON in UTF-8: each key once, finite numbers")
            response = await inner(bounded)
            return _tagged(request, response) if request.method == "GET" and response.status_code == 200 else response

        return handler


class _RepeatedKeyError(Exception):
    """An object of the body has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _RepeatedKeyError(name)
        found[name] = value
    return found


def _fault_of(body: bytes) -> str:
    """Return what no record can hold in a JSON body, or nothing; a body that is no JSON is refused where it is read."""
    try:
        value = json.loads(body, object_pairs_hook=_object)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except _RepeatedKeyError as err:
        return f"the key {shown(str(err))} is there twice"
    except UnicodeEncodeError:
        return "a text of the body has half of a surrogate pair"
    except RecursionError:
        return f"the body is nested deeper than {MAX_DEPTH} levels"
    except ValueError:
        return ""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(each, float) and not math.isfinite(each) for each in level):
            return "a number of the body is not finite"
        if any("\0" in text for each in level for text in _texts(each)):
            return "a text of the body has the character NUL"
        level = [each for part in level if isinstance(part, dict | list) for each in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return ""
    return f"the body is nested deeper than {MAX_DEPTH} levels"


def _texts(value: Any) -> Iterable[str]:
    """Return a text itself, and the keys of an object."""
    return (value,) if isinstance(value, str) else value if isinstance(value, dict) else ()


async def _bounded(request: Request) -> Request | None:
    """Return the request with its body read; None where it is too large."""
    if request.method == "GET":
        return request
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


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
