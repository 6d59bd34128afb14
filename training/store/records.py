"""Records: small JSON documents at a fixed key (records of chains, results, requests) that show damage.

A record carries `_record: {version, digest}`; the digest is of its key and its value, so the content of another record is refused, too.
Its bytes are the canonical JSON of both and a newline: the only encoding, so any other bytes are damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from training.contracts import FORMAT_VERSION, ContractError, JsonObject, JsonValue, canonical_json, sha256_hex
from training.errors import StoreError, shown

VERSION: Final = 1
MARK: Final = "_record"


def encode(key: str, value: Any) -> bytes:
    """Return the bytes of a record.

    Args:
        key: where it will be, below the store's root.
        value: JSON; objects keep their fields, other values become the field `value`.

    Raises:
        ContractError: not JSON.
    """
    mark: dict[str, JsonValue] = {"version": VERSION, "digest": sha256_hex(canonical_json([key, value]))}
    if isinstance(value, dict):
        return canonical_json({**value, MARK: mark}) + b"\n"
    return canonical_json({"value": value, MARK: {**mark, "wraps": True}}) + b"\n"


def decode(key: str, data: bytes, *, uri: str, hint: str) -> Any:
    """Return the value of a record.

    Args:
        uri: for messages.
        hint: what to do about a damaged one.

    Raises:
        StoreError: `record.damaged`, or `record.newer`.
    """
    with readable(uri, hint=hint):
        parsed = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        mark = parsed.get(MARK) if isinstance(parsed, dict) else None
        if not isinstance(mark, dict):
            raise ValueError("it has no digest")
        _refuse_newer(uri, mark.get("version"), VERSION)
        value = parsed["value"] if mark.get("wraps") else {name: item for name, item in parsed.items() if name != MARK}
        if encode(key, value) != data:
            raise ValueError("its content does not have the digest of this record")
        return value


@contextmanager
def readable(uri: str, *, hint: str) -> Iterator[None]:
    """Turn an exception while a record is parsed into an error that names the record.

    Raises:
        StoreError: `record.damaged`.
    """
    try:
        yield
    except StoreError:
        raise
    except RecursionError as err:
        raise damaged(uri, "it is nested too deep", hint=hint) from err
    except KeyError as err:
        raise damaged(uri, f"field {err} is missing", hint=hint) from err
    except (ContractError, ValueError, TypeError, AttributeError) as err:
        raise damaged(uri, str(err), hint=hint) from err


def damaged(uri: str, reason: str, *, hint: str) -> StoreError:
    return StoreError("record.damaged", f"{uri} is damaged: {reason[:200]}", hint=hint)


def require(value: Any, kind: str, /, **types: type) -> dict[str, JsonValue]:
    """Return `value` if it is an object with fields of these types.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, dict):
        raise ValueError(f"a {kind} is a JSON object, found {type(value).__name__}")
    for name, wanted in types.items():
        if not isinstance(value[name], wanted) or isinstance(value[name], bool):
            raise ValueError(f"field {name!r} is {shown(value[name])}, expected {wanted.__name__}")
    return value


def require_readable_format(uri: str, value: JsonObject) -> None:
    """Refuse a request or a result of a later version of Nightshift.

    Raises:
        StoreError: `record.newer`.
    """
    _refuse_newer(uri, value.get("format_version"), FORMAT_VERSION)


def _refuse_newer(uri: str, version: Any, known: int) -> None:
    if isinstance(version, int) and version > known:
        raise StoreError("record.newer", f"{uri} has format {version}, this version reads up to {known}", hint="upgrade Nightshift")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
