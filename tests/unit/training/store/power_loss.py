"""What a folder may hold after a power loss, from the system calls that its writers made.

The model: bytes that were written and not fsynced are there, missing, cut off or zero; an entry of a folder that was not fsynced since is
there or not, each by itself, so later operations may survive without earlier ones. What was fsynced is there.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from training.store import durable_writes
from training.store.durable_writes import LocalFiles


@dataclass(slots=True)
class File:
    """A file's bytes, and how many of them are fsynced."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    num_synced: int = 0


@dataclass(slots=True)
class Folder:
    """A folder's entries as they are on disk, and the changes since its last fsync, oldest first."""

    on_disk: dict[str, Any] = field(default_factory=dict)
    pending: list[tuple[str, Any, str | None]] = field(default_factory=list)
    """Name, what it leads to (None: removed), and the name that goes with it in a rename."""

    def now(self) -> dict[str, Any]:
        return self._after(self.pending)

    def after_crash(self, chance: random.Random, share: float) -> dict[str, Any]:
        return self._after([change for change in self.pending if chance.random() < share])

    def sync(self) -> None:
        self.on_disk, self.pending = self.now(), []

    def _after(self, changes: list[tuple[str, Any, str | None]]) -> dict[str, Any]:
        entries = dict(self.on_disk)
        for name, node, old_name in changes:
            if old_name is not None:
                entries.pop(old_name, None)
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node
        return entries


class Recorder:
    """Stands in for the module `os` of the store's writers: does what is asked, and notes it."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.parent)
        self._handles: dict[int, str] = {}
        # Checkpoints and heartbeats write beside the work: what is noted first was done first.
        self._lock = threading.RLock()
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            handle = os.open(path, flags, mode)
            self._handles[handle] = self._name(path)
            if flags & os.O_CREAT:
                self.calls.append(("open", self._name(path)))
            return handle

    def close(self, handle: int) -> None:
        with self._lock:
            self._handles.pop(handle, None)
            os.close(handle)

    def write(self, handle: int, data: Any) -> int:
        with self._lock:
            num_bytes = os.write(handle, data)
            self.calls.append(("write", self._handles[handle], bytes(data[:num_bytes])))
            return num_bytes

    def fsync(self, handle: int) -> None:
        with self._lock:
            os.fsync(handle)
            self.calls.append(("fsync", self._handles[handle]))

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        with self._lock:
            os.mkdir(path, mode)
            self.calls.append(("mkdir", self._name(path)))

    def link(self, source: Any, target: Any) -> None:
        with self._lock:
            os.link(source, target)
            self.calls.append(("link", self._name(source), self._name(target)))

    def replace(self, source: Any, target: Any) -> None:
        with self._lock:
            os.replace(source, target)
            self.calls.append(("replace", self._name(source), self._name(target)))

    def unlink(self, path: Any) -> None:
        with self._lock:
            os.unlink(path)
            self.calls.append(("unlink", self._name(path)))

    def answered(self, key: str) -> None:
        """Record that a create of the file of `key` has returned to its writer."""
        self.calls.append(("answered", key))

    def _name(self, path: Any) -> str:
        return os.path.relpath(os.fspath(path), self._root)


class Disk:
    """Folders and files as calls make them."""

    def __init__(self, root: str) -> None:
        """Begin with the folder `root`, whose entry is not durable yet."""
        self.top = Folder()
        self.top.pending.append((root, Folder(), None))
        self.answered: list[str] = []
        self._num_files = 0

    def do(self, call: tuple[Any, ...]) -> None:
        """Carry out one recorded call."""
        verb, name, *rest = call
        if verb == "answered":
            self.answered.append(name)
        elif verb == "write":
            self._node(name).data += rest[0]
        elif verb == "fsync":
            node = self._node(name)
            if isinstance(node, Folder):
                node.sync()
            else:
                node.num_synced = len(node.data)
        elif verb in ("open", "mkdir"):
            self._num_files += 1
            folder, last = self._place(name)
            folder.pending.append((last, File(self._num_files) if verb == "open" else Folder(), None))
        elif verb == "unlink":
            folder, last = self._place(name)
            folder.pending.append((last, None, None))
        else:
            (source, old), (target, last) = self._place(name), self._place(rest[0])
            assert source is target, "the store renames and links within one folder"
            target.pending.append((last, source.now()[old], old if verb == "replace" else None))

    def write_after_crash(self, path: Path, chance: random.Random, pool: Path) -> None:
        """Write what a power loss now may leave into the new folder `path`; whole files are links to those in `pool`."""
        share = chance.choice((0.0, 0.3, 0.7, 1.0))
        self._write(self.top, path, chance, share, pool)

    def _write(self, folder: Folder, path: Path, chance: random.Random, share: float, pool: Path) -> None:
        path.mkdir()
        for name, node in folder.after_crash(chance, share).items():
            if isinstance(node, Folder):
                self._write(node, path / name, chance, share, pool)
            elif node.num_synced == len(node.data):
                whole = pool / f"{node.number}-{node.num_synced}"
                if not whole.exists():
                    whole.write_bytes(node.data)
                (path / name).hardlink_to(whole)
            else:
                (path / name).write_bytes(_torn(node, chance))

    def _node(self, name: str) -> Any:
        node: Any = self.top
        for part in () if name == "." else name.split(os.sep):
            node = node.now()[part]
        return node

    def _place(self, name: str) -> tuple[Folder, str]:
        folder, last = os.path.split(name)
        return self._node(folder or "."), last


def _torn(node: File, chance: random.Random) -> bytes:
    num_kept = chance.choice((node.num_synced, chance.randint(node.num_synced, len(node.data)), len(node.data)))
    kept = bytes(node.data[:num_kept])
    return kept + bytes(len(node.data) - num_kept) if chance.random() < 0.3 else kept


@contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    """Record the system calls that a local store below `folder` makes, and when its creates return."""
    recorder, create = Recorder(folder), LocalFiles.create

    def answered(self: LocalFiles, key: str, content: Any) -> bool:
        is_made = create(self, key, content)
        recorder.answered(key)
        return is_made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_writes, "os", recorder)
        patch.setattr(LocalFiles, "create", answered)
        yield recorder
