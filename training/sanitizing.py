"""Texts on their way out: without the secrets that they may quote, and escaped for the output that they go to. Standard library only.

One escape for each kind of output; that of HTML is `html.escape`, and the templates' autoescape. Free text has no control
characters at the door (`training.spec.scalar_types`). Names in data have no door, what others have stored may be old, and errors of a
database driver quote what it was given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, TextIO
from urllib.parse import unquote, urlsplit

CONTROLS: Final = "\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
"""In a character class: line breaks and control characters forge lines of logs; direction overrides and isolates show another text."""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_SPACE: Final = re.compile(r"[\t\n\v\f\r]")
_MARKDOWN: Final = re.compile(r"[\\|]|(?<=\])[(\[]")
_ESCAPED: Final = re.compile(r"\\([\\|(\[])")
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


def for_terminal(text: str) -> str:
    r"""Return text for a line of a terminal: tabs and line breaks as spaces, other control characters as `\u001b`, as JSON writes them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", _SPACE.sub(" ", text))


def for_markdown(text: str) -> str:
    """Return text for one line or cell of Markdown: no link, no picture, no HTML, no further cell, no further line."""
    line = " ".join(_CONTROL.sub(" ", text).split())
    return _MARKDOWN.sub(r"\\\g<0>", line).replace("<", "&lt;")


def from_markdown(text: str) -> str:
    """Return the text that `for_markdown` escaped."""
    return _ESCAPED.sub(r"\1", text.replace("&lt;", "<"))


def for_slack(text: str) -> str:
    """Return text for Slack's mrkdwn, in which `<…>` is a link, or a command that notifies a channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class TerminalStream:
    """A stream for people: what is written through it speaks to the terminal by line breaks alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write("\n".join(map(for_terminal, text.split("\n"))))

    def flush(self) -> None:
        self._stream.flush()


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
