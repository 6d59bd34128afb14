"""Writes of a store in a local folder that survive a power loss.

A new file is written under a temporary name, fsynced, linked to its name, and its folder is fsynced before the writer is answered. So a
reader sees a whole file or none, and what was confirmed to a writer exists after a crash. A folder that was made is durable once the
folder above it was fsynced. (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014: without each of these steps some file
system loses, truncates or reorders.) Readers use obstore, which does not list temporary names (`<name>#<digits>`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

COPY_BYTES: Final = 1024 * 1024
NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM})
"""What a file system answers that cannot fsync a folder, or a folder that this user may not open."""
TOP_FOLDERS: Final = (
    *("objects", "manifests", "reports", "refs", "runs", "stages", "studies", "tracking", "metrics"),
    *("altered", "condemned", "collector", "probe"),
)
"""What a store creates in its root: anything else there is a foreign file, and is left alone."""
_LEFTOVER: Final = re.compile(r".+#\d+", re.DOTALL)
_NO_PART: Final = re.compile(r"\.{0,2}|.*[\x00-\x1f\x7f].*|.*#\d+", re.DOTALL)


class LocalFiles:
    """Creates and replaces files below one folder. Keys are names with `/`, as in a bucket."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Folders of which this process knows that they, and all above them, are durable.
        self._durable: set[str] = set()

    def path(self, key: str) -> Path:
        """Return the file of a key.

        Raises:
            ValueError: an empty part, `.`, `..`, a control character, or a temporary name.
        """
        parts = key.strip("/").split("/")
        if any(_NO_PART.fullmatch(part) for part in parts):
            raise ValueError(f"not a key of a store: {key!r}")
        return self._root.joinpath(*parts)

    def create(self, key: str, content: bytes | memoryview | Path) -> bool:
        """Write a file if nothing has its name; return whether this call did. In both cases the file is durable afterwards.

        Raises:
            IsADirectoryError: a folder has the name.
            OSError: the file system refuses.
        """
        path = self.path(key)
        # Reading the folder's state first saves the write of an object that exists.
        if not os.path.lexists(path):
            temporary = self._write_temporary(path, content, is_durable=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass  # Another writer was first: below, its folder is synced, which it may not have done yet.
            else:
                os.unlink(temporary)
                self._sync_folder(path.parent)
                return True
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder is in the place of a file", str(path))
        # Its writer may be between its link and its fsync: what refers to the file must not become durable before it.
        self._prepare(path.parent)
        self._sync_folder(path.parent)
        return False

    def replace(self, key: str, content: bytes | memoryview | Path, *, is_durable: bool = True) -> None:
        """Write a file over what has its name, at once.

        Args:
            is_durable: False: after a crash the old content, the new one or an empty file is there. For heartbeats and logs.
        """
        path = self.path(key)
        temporary = self._write_temporary(path, content, is_durable=is_durable)
        try:
            os.replace(temporary, path)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if is_durable:
            self._sync_folder(path.parent)

    def delete(self, key: str, *, prune: bool = False) -> None:
        """Delete a file; a no-op where there is none.

        Args:
            prune: also remove the folders above it, up to the root's own folders, that are empty now.
        """
        path = self.path(key)
        with suppress(FileNotFoundError):
            os.unlink(path)
        if prune:
            self._prune(path.parent)

    def _prune(self, folder: Path) -> None:
        while folder not in (self._root, *self._root.parents) and folder.parent != self._root:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass  # Another process removed it: the folders above may be empty, too.
            except OSError:
                return
            self._durable.discard(str(folder))
            folder = folder.parent

    def delete_leftovers(self, older_than_seconds: float, *, dry_run: bool = False) -> tuple[int, int]:
        """Delete temporary files of writers that were killed, in the folders that are the store's; return (how many, their bytes).

        Args:
            older_than_seconds: by the clock of the file system, which has to be this machine's: longer than any write takes.
        """
        count, size_bytes, newest = 0, 0, time.time() - older_than_seconds
        for folder, _, names in chain.from_iterable(os.walk(self._root / top) for top in TOP_FOLDERS):
            for name in names:
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    found = os.lstat(path)
                    if _LEFTOVER.fullmatch(name) is None or found.st_mtime > newest:
                        continue
                    if not dry_run:
                        os.unlink(path)
                    count, size_bytes = count + 1, size_bytes + found.st_size
        return count, size_bytes

    def _write_temporary(self, path: Path, content: bytes | memoryview | Path, *, is_durable: bool) -> str:
        self._prepare(path.parent)
        temporary = f"{path}#{secrets.randbits(63)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            handle = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            # The folder was deleted after this process had seen it.
            self._durable.clear()
            self._prepare(path.parent)
            handle = os.open(temporary, flags, 0o666)
        try:
            try:
                for piece in _read(content) if isinstance(content, Path) else [content]:
                    _write_whole(handle, piece)
                if is_durable:
                    os.fsync(handle)
            finally:
                os.close(handle)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        return temporary

    def _prepare(self, folder: Path) -> None:
        """Make a folder and those above it, up to the root, and make them durable."""
        if str(folder) in self._durable:
            return
        if folder != self._root:
            self._prepare(folder.parent)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o777)
        self._sync_folder(folder.parent)
        self._durable.add(str(folder))

    def _sync_folder(self, folder: Path) -> None:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as err:
            if err.errno in NO_FOLDER_SYNC:
                return
            raise
        try:
            os.fsync(handle)
        except OSError as err:
            if err.errno not in NO_FOLDER_SYNC:
                raise
        finally:
            os.close(handle)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(COPY_BYTES):
            yield piece


def _write_whole(handle: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
