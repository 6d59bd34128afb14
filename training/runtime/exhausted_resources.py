"""Errors that say that the machine has no more of something: memory, disk, open files. Not of the data: a later attempt may succeed."""

from __future__ import annotations

import errno
import os
from typing import Final

from training.errors import NightshiftError, OutOfMemoryError, UnavailableError
from training.sanitizing import masked

MAX_MESSAGE_CHARS: Final = 4000
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE)


def machine_limit(caught: BaseException) -> NightshiftError | None:
    """Return the error of a limit of the machine, None where `caught` is about something else.

    Engines pass the system's reason on as text alone: DuckDB as its own `IOException`, Arrow as an `OSError` without a number.
    """
    text = masked(f"{type(caught).__name__}: {caught}")
    if isinstance(caught, MemoryError) or type(caught).__name__ == "OutOfMemoryError" or "can't allocate memory" in text:
        return OutOfMemoryError("memory.exhausted", text[:MAX_MESSAGE_CHARS])
    if _is_of(caught, text, _NO_SPACE):
        message = f"no space left: {text[:MAX_MESSAGE_CHARS]}"
        return UnavailableError("storage.full", message, hint="free space in the scratch folder or the store")
    if _is_of(caught, text, _NO_FILES):
        message = f"no more files can be opened: {text[:MAX_MESSAGE_CHARS]}"
        return UnavailableError("process.open_files", message, hint="raise the limit of open files of the worker (ulimit -n) or of the pod")
    return None


def _is_of(caught: BaseException, text: str, numbers: tuple[int, ...]) -> bool:
    if isinstance(caught, OSError) and caught.errno is not None:
        return caught.errno in numbers
    # Not of other kinds of DuckDB's errors: their texts may have values of the data.
    is_input_output = isinstance(caught, OSError) or type(caught).__name__ == "IOException"
    return is_input_output and any(os.strerror(number) in text for number in numbers)
