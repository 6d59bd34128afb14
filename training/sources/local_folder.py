"""What a source on a local disk may be: regular files below its own folder. Looked at without opening anything.

Opening a FIFO waits for a writer, a device may never end, and a symbolic link may point to any file that this process can read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from training.errors import DataError
from training.spec.schedule.partitions import NULL_FOLDER
from training.store.bucket import as_uri

CHECKSUMS: Final = (".crc", ".md5", ".sha1", ".sha256", ".sha512")


def is_data(name: str) -> bool:
    """Return whether files and folders of this name are data, not markers, checksums and leftovers."""
    return (not name.startswith(("_", ".")) and not name.lower().endswith(CHECKSUMS)) or name == NULL_FOLDER


def check_local_source(uri: str, root: str | None) -> None:
    """Check the file at `uri`, or every data file below it; nothing to do for object stores and for what does not exist.

    Args:
        uri: of a file or a folder. Files and folders that are not data (`is_data`) are not looked at.
        root: the source's folder, or a file in it; None: `uri`.

    Raises:
        DataError: `source.not_a_file`, something is not a regular file; `source.outside`, a symbolic link leaves the source's folder.
    """
    path = local_path(uri)
    if path is None:
        return
    top = local_path(root or uri) or path
    folder = os.path.realpath(top if top.is_dir() else top.parent)
    # Also of what does not exist: a link does not show what there is outside.
    _within(path, folder)
    if os.path.lexists(path):
        _check(path, folder, above=())


def _within(path: Path, folder: str) -> str:
    real = os.path.realpath(path)
    if real != folder and not real.startswith(folder.rstrip("/") + "/"):
        hint = "put the data itself there, or name the target folder of the link as the source"
        raise DataError("source.outside", f"{path} is a link that leaves the source's folder {folder}", hint=hint)
    return real


def _check(path: Path, folder: str, *, above: tuple[str, ...]) -> None:
    real = _within(path, folder)
    try:
        mode = os.stat(real).st_mode  # of the resolved name: no link is followed in between
    except OSError as err:
        if isinstance(err, PermissionError):
            return  # Reading it reports this with its own error.
        raise _not_a_file(path, "a symbolic link that leads nowhere" if path.is_symlink() else "gone") from err
    if stat.S_ISDIR(mode):
        if real in above:
            raise _not_a_file(path, "a symbolic link to a folder that contains it")
        _check_folder(path, folder, above=(*above, real))
    elif not stat.S_ISREG(mode):
        raise _not_a_file(path, _kind(mode))


def _check_folder(path: Path, folder: str, *, above: tuple[str, ...]) -> None:
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except PermissionError:
        return  # Reading it reports this with its own error.
    except FileNotFoundError as err:
        raise _not_a_file(path, "gone") from err
    for name in names:
        if is_data(name):
            _check(path / name, folder, above=above)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
    return next((words for is_kind, words in kinds if is_kind(mode)), "of an unknown kind")


def _not_a_file(path: Path, what: str) -> DataError:
    return DataError("source.not_a_file", f"{path} is not a regular file: it is {what}", hint="write the data to a regular file")


def local_path(uri: str) -> Path | None:
    """Return the path that a source's URI names; None: it names a bucket."""
    parts = urlsplit(as_uri(uri))
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
