"""Reads the small JSON files of an installation's folder. They are edited by hand and cut by full disks: each fault has one form."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from training.errors import NightshiftError

MAX_BYTES: Final = 1024 * 1024


def read_object(path: Path, *, code: str, hint: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, None without a file.

    Args:
        code: of the error.
        hint: what to do about a damaged file.

    Raises:
        NightshiftError: `code`; it is not a regular file, cannot be read, is larger than 1 MiB, or is not a JSON object in UTF-8.
    """
    try:
        values = json.loads(_content(path))
    except FileNotFoundError:
        return None
    except OSError as err:
        raise NightshiftError(code, f"{path} cannot be read: {err.strerror}", hint=hint) from err
    except (ValueError, RecursionError) as err:
        raise NightshiftError(code, f"{path} is damaged: {_reason(err)}", hint=hint) from err
    if not isinstance(values, dict):
        raise NightshiftError(code, f"{path} is damaged: it is not a JSON object", hint=hint)
    return values


def _content(path: Path) -> str:
    # O_NONBLOCK: to open a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MAX_BYTES:
            raise ValueError(f"it has {found.st_size} bytes (limit {MAX_BYTES})")
        return file.read().decode("utf-8")


def _reason(err: Exception) -> str:
    if isinstance(err, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(err, json.JSONDecodeError):
        return f"it is not JSON (line {err.lineno}, column {err.colno})"
    return "it is nested too deeply" if isinstance(err, RecursionError) else str(err)
