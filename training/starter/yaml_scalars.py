"""Names and texts as YAML has them."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Final

from training.spec.scalar_types import duration_text

PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
WORDS: Final = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n"})
"""Are read as something else than a text, by this or another reader of YAML."""


def scalar(text: str) -> str:
    """Return a text in YAML, in quotes where it needs them."""
    return text if PLAIN.fullmatch(text) and text.lower() not in WORDS else json.dumps(text, ensure_ascii=False)


def flow_list(names: list[str] | tuple[str, ...]) -> str:
    """Return texts as a list on one line."""
    return f"[{', '.join(scalar(name) for name in names)}]"


def duration(length: timedelta) -> str:
    """Return a duration as the YAML has it, in whole seconds."""
    return duration_text(timedelta(seconds=max(1, round(length.total_seconds()))))
