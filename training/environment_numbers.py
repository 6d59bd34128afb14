"""Numbers that the environment sets. Standard library and errors only: launchers read them before anything else is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

from training.errors import Problem, SpecError, shown

SOURCE: Final = "environment"
MAX_DIGITS: Final = 9


def whole_number(name: str, default: int, *, environ: Mapping[str, str] = os.environ) -> int:
    """Return a variable as a number from 0; an empty one is an unset one.

    Raises:
        SpecError: `settings.number`, with the name and the value.
    """
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise _refused(name, text, "is not a whole number", hint=f"write digits, such as {default}, or unset it")
    return int(text)


def seconds(name: str, default: float, *, environ: Mapping[str, str] = os.environ) -> float:
    """Return a variable as a number of seconds, more than 0 and at most a day; an empty one is an unset one.

    Raises:
        SpecError: `settings.number`, with the name and the value.
    """
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86_400:
        raise _refused(name, text, "is not a number of seconds", hint=f"write a number from 0.1 to 86400, such as {default:g}, or unset it")
    return value


def _refused(name: str, text: str, message: str, *, hint: str) -> SpecError:
    return SpecError(SOURCE, [Problem(code="settings.number", field=name, message=f"{shown(text)} {message}", hint=hint)])
