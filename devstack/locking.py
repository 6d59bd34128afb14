"""Locks between commands of one installation: files under flock, which the kernel releases when their process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from training.errors import NightshiftError

START_LOCK: Final = "start.lock"


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[str], None] = lambda _pid: None) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which stays as an empty file.

    Args:
        waiting: called once with the holder's pid (as text, may be empty) if the lock is not free.

    Raises:
        NightshiftError: `services.lock`, the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_CLOEXEC: a service that is started under the lock must not keep it. O_NOFOLLOW: the target of a link would be truncated.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        hint = "check the folder's owner and mode, or set NIGHTSHIFT_HOME to another one"
        raise NightshiftError("services.lock", f"{path} cannot be written: {err.strerror}", hint=hint) from err
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(os.pread(descriptor, 32, 0).decode("ascii", "replace").strip())
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
