"""Texts of users on their way out: one escape for each kind of output. That of HTML is `html.escape`, and the templates' autoescape.

Free text has no control characters at the door (`training.spec.types`). Names in data have no door, and what others have stored may be old.
"""

from __future__ import annotations

import re
from typing import Final, TextIO

CONTROLS: Final = "\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
"""In a character class: line breaks and control characters forge lines of logs; direction overrides and isolates show another text."""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_SPACE: Final = re.compile(r"[\t\n\v\f\r]")
_MARKDOWN: Final = re.compile(r"[\\|]|(?<=\])[(\[]")
_ESCAPED: Final = re.compile(r"\\([\\|(\[])")


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
