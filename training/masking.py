"""Texts of others, such as a database driver's errors, without the secrets that they may quote. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

MASK: Final = "***"
MIN_SECRET_CHARS: Final = 6
"""Shorter values are in too many other words."""
_SECRET_NAME: Final = re.compile(
    r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|API_KEY|ACCESS_KEY|FERNET_KEY|WEBHOOK|^AIRFLOW_CONN_|ALCHEMY_CONN$"
)
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_ASSIGNED: Final = re.compile(
    r"""(?ix) (\b (?: [\w-]* (?: password | passwd | pwd | secret | secret_?key | token | api_?key | access_?key) | sig | signature )
    (?: \s*=\s* | ["']\s*:\s* ))
    (?: "[^"]*" | '[^']*' | [^\s,;&)"']+ )"""
)
"""A key and its value: `password=…` of a connection, an option `?sslpassword=…` of a URL, `"token": "…"` of JSON."""


def masked(text: str, *secrets: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return `text` without users and passwords of URLs, values of keys such as `password=`, and secrets of the environment.

    Args:
        secrets: others that are known.
        environ: variables whose names say that their values are secrets, and URLs with a password.
    """
    known = [*secrets]
    for name, value in environ.items():
        known += [value] if _SECRET_NAME.search(name.upper()) else []
        known += _passwords_in(value)
    # The longest first, because one secret may be part of another.
    for secret in sorted(filter(lambda value: len(value) >= MIN_SECRET_CHARS, known), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _ASSIGNED.sub(rf"\g<1>{MASK}", _USER_INFO.sub(MASK, text))


def _passwords_in(value: str) -> list[str]:
    if "://" not in value or "@" not in value:
        return []
    try:
        found = urlsplit(value).password or ""
    except ValueError:
        return []
    return [found, unquote(found)]
