"""Deletes files by their age while other processes write: a file that is written between the check and the removal stays."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def delete_old_folder(folder: Path, before: float) -> int:
    """Delete a folder in which everything is older than an instant; return the bytes of the deleted files.

    Args:
        before: seconds since the epoch. Where anything in the folder is younger, all of it stays.
    """
    found = list(_below(folder))
    if newest([folder, *found]) >= before:
        return 0
    # Files first, then the folders from the innermost out: one that is not empty has got something new, and stays.
    deleted = sum(delete_old_file(path, before) for path in found)
    for path in [*found, folder]:
        with suppress(OSError):
            os.rmdir(path)
    return deleted


def delete_old_file(path: Path, before: float) -> int:
    """Delete a file, or a symbolic link, that is older than an instant; return its bytes, 0 for a folder or where it stays.

    The file is renamed before the last check of its age. A process that opens its name after that makes a new file; if something was
    written before, the file gets its name back. A file that was deleted in the meantime, or cannot be renamed or deleted, is skipped.
    """
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            return 0
        path.rename(aside)
        status = aside.lstat()
        if status.st_mtime < before:
            aside.unlink()
            return status.st_size
    except OSError:
        return 0
    # A link does not replace a file that was made under the name in the meantime; then both stay.
    with suppress(OSError):
        os.link(aside, path, follow_symlinks=False)
        aside.unlink()
    return 0


def newest(paths: Iterable[Path]) -> float:
    """Return the time of the last change of any of the paths, seconds since the epoch; 0 where there is none."""
    times = [0.0]
    for path in paths:
        with suppress(FileNotFoundError):
            times.append(path.lstat().st_mtime)
    return max(times)


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, innermost first; a folder that vanishes in the meantime counts as empty."""
    for place, folders, files in os.walk(folder, topdown=False):
        yield from (Path(place, name) for name in [*files, *folders])
