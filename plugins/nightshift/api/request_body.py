"""A request's body: bounded in bytes, values and depth before it is parsed, and parsed once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final

from fastapi import Request

from training.contracts import JsonObject, JsonValue
from training.errors import DeniedError, shown

MAX_BODY_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
"""Of objects and lists in a body."""
MAX_VALUES: Final = 10_000
"""Of a body, objects and lists counted: what takes time is not the bytes, but the objects that Python makes of them."""
MEDIA_TYPE: Final = "application/json"
# Possessive, and a text may lack its end: each byte is looked at once, whatever the body is.
_TEXT: Final = re.compile(r'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")


class ParsedRequest(Request):
    """A request whose body is parsed: FastAPI asks it for both."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes = body
        self._value = value

    async def body(self) -> bytes:
        return self._bytes

    async def json(self) -> Any:
        return self._value


async def parsed(request: Request) -> ParsedRequest:
    """Read and parse the body of a request.

    Raises:
        DeniedError: `request.media_type`, it is not announced as JSON; `request.too_large`; `request.invalid`.
        ClientDisconnect: the client left before the end of the body.
    """
    # A page of another origin can send other types than this one without asking the server first.
    if (kind := request.headers.get("content-type", "")).partition(";")[0].strip().lower() != MEDIA_TYPE:
        message = f"the body's type is {shown(kind) if kind else 'not given'}, and must be {MEDIA_TYPE}"
        raise DeniedError("request.media_type", message, hint=f"send `Content-Type: {MEDIA_TYPE}`, also without a body")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise DeniedError("request.too_large", f"the body is above {MAX_BODY_BYTES:,} bytes", hint="send less")
    return ParsedRequest(request, bytes(body), _value_of(body) if body else None)


class _RepeatedKeyError(Exception):
    """An object of the body has a key twice."""


def _value_of(body: bytearray) -> Any:
    try:
        text = body.decode("utf-8")
        if fault := _fault_of_shape(text):
            raise _invalid(fault)
        value = json.loads(text, object_pairs_hook=_object)
    except _RepeatedKeyError as err:
        raise _invalid(f"the key {shown(str(err))} is there twice") from None
    except json.JSONDecodeError as err:
        raise _invalid(f"the body is no JSON: {err.msg} at character {err.pos + 1}") from None
    except UnicodeDecodeError as err:
        raise _invalid(f"the body is not UTF-8 at byte {err.start + 1}") from None
    except ValueError:
        # Python's own limit, `sys.get_int_max_str_digits`.
        raise _invalid("a whole number of the body has too many digits") from None
    if fault := _fault_of_value(value):
        raise _invalid(fault)
    return value


def _invalid(fault: str) -> DeniedError:
    return DeniedError("request.invalid", fault, hint="send JSON in UTF-8: each key once, finite numbers")


def _fault_of_shape(text: str) -> str:
    """Return what makes a body too large to parse, or nothing. It need not be JSON."""
    marks = _TEXT.sub("", text)
    if sum(map(marks.count, "[{,")) > MAX_VALUES:
        return f"the body has more than {MAX_VALUES:,} values, objects and lists"
    depth = 0
    for bracket in _BRACKET.finditer(marks):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            return f"the body is nested deeper than {MAX_DEPTH} levels"
        if depth < 0:
            # No JSON: the parser says where.
            break
    return ""


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found: dict[str, JsonValue] = {}
    for name, value in pairs:
        if name in found:
            raise _RepeatedKeyError(name)
        found[name] = value
    return found


def _fault_of_value(value: Any) -> str:
    """Return what no record can hold, or nothing."""
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return "a number of the body is not finite"
        for text in _texts(each):
            if "\0" in text:
                return "a text of the body has the character NUL"
            if any("\ud800" <= character <= "\udfff" for character in text):
                return "a text of the body has half of a surrogate pair"
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return ""


def _texts(value: Any) -> Iterable[str]:
    """Return a text itself, and the keys of an object."""
    return (value,) if isinstance(value, str) else value if isinstance(value, dict) else ()
