"""The list of a registered model's files with their digests, which is part of the model; its own digest is in the ledger.

Standard library only: it is read before anything of the model is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from training.contracts import canonical_json
from training.errors import DataError, shown

LIST_NAME: Final = "nightshift-files.json"
CLIENT_FILE: Final = "registered_model_meta"
"""What MLflow's client adds to a model that it has downloaded."""
FORMAT_VERSION: Final = 1
MAX_NAMED: Final = 10
MAX_DEPTH: Final = 32
MAX_LIST_BYTES: Final = 64 * 1024 * 1024
KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
CHUNK_BYTES: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def write_list(folder: Path) -> str:
    """Write the list of all files in `folder` into it; return the list's SHA-256."""
    names = sorted(name for name in _kinds(folder) if name != LIST_NAME)
    files = {name: {"sha256": _sha256(folder / name), "size_bytes": (folder / name).stat().st_size} for name in names}
    data = canonical_json({"format_version": FORMAT_VERSION, "files": files})
    (folder / LIST_NAME).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def has_list(folder: Path) -> bool:
    """Return whether the model was registered with a list of its files."""
    path = folder / LIST_NAME
    return path.is_file() and not path.is_symlink()


def check_kinds(folder: Path) -> None:
    """Refuse a folder that holds anything but folders and regular files. Nothing is opened.

    Opening a FIFO waits for its writer, a device may never end, and a symbolic link may point to any file.

    Raises:
        DataError: `model.unlisted`, it is not a folder; `model.altered`, with what is in it.
    """
    if not folder.is_dir():
        raise DataError("model.unlisted", f"{folder} is not a folder", hint="name the folder of MLmodel, or models:/NAME/VERSION")
    _refuse([f"{name} is {kind}" for name, kind in _kinds(folder).items() if kind])


def check_files(folder: Path, *, digest: str | None, below: str = "") -> None:
    """Refuse a model of which a file was changed, added or removed.

    Args:
        folder: the model as it was downloaded, the folder of MLmodel.
        digest: SHA-256 of the list, from the ledger; None checks the files by the list that came with them.
        below: only the files whose names begin so.

    Raises:
        DataError: `model.digest`, the digest is not one; `model.unlisted`, the model has no list; `model.newer`; `model.altered`, with
            the files.
    """
    if digest is not None and not _DIGEST.fullmatch(digest):
        message = f"{shown(digest)} is not a SHA-256 in 64 hex digits"
        raise DataError("model.digest", message, hint="nightshift show MODEL shows it")
    if not has_list(folder):
        message = f"the model has no {LIST_NAME}: none of its files can be checked"
        raise DataError("model.unlisted", message, hint="the model was replaced, or Nightshift did not register it")
    if (size := (folder / LIST_NAME).stat().st_size) > MAX_LIST_BYTES:
        raise DataError("model.altered", f"{LIST_NAME} has {size} bytes (limit {MAX_LIST_BYTES})", hint="the model was replaced")
    data = (folder / LIST_NAME).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and found != digest:
        message = f"{LIST_NAME} has the digest {found}, expected {digest}"
        raise DataError("model.altered", message, hint="the digest is of another version, or the model was replaced")
    listed = _listed(data)
    kinds = {name: kind for name, kind in _kinds(folder).items() if name.startswith(below) and name != LIST_NAME}
    wrong = [f"{name} is {kind}" for name, kind in kinds.items() if kind]
    wrong += [f"{name} is not listed" for name, kind in kinds.items() if not kind and name not in listed]
    for name, entry in listed.items():
        if name.startswith(below) and name not in kinds:
            wrong.append(f"{shown(name)[1:-1]} is missing")
        elif name.startswith(below) and not kinds[name] and (fault := _fault(folder, name, entry)):
            wrong.append(fault)
    _refuse(wrong)


def _refuse(wrong: list[str]) -> None:
    if wrong:
        named = "; ".join(wrong[:MAX_NAMED]) + (f"; and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else "")
        raise DataError("model.altered", f"the model's files are not those that were registered: {named}", hint="nothing of it was loaded")


def _listed(data: bytes) -> Mapping[str, Mapping[str, object]]:
    try:
        values = json.loads(data)
        version, files = int(values["format_version"]), values["files"]
        if not isinstance(files, dict):
            raise TypeError("files is not an object")
        wrong = next((name for name, entry in files.items() if not (isinstance(entry, dict) and "sha256" in entry)), None)
        if wrong is not None:
            raise TypeError(f"{shown(wrong)} has no sha256")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as err:
        raise DataError("model.altered", f"{LIST_NAME} is damaged: {err}") from err
    if version > FORMAT_VERSION:
        message = f"{LIST_NAME} has format {version}, this version reads up to {FORMAT_VERSION}"
        raise DataError("model.newer", message, hint="upgrade Nightshift")
    return files


def _fault(folder: Path, name: str, entry: Mapping[str, object]) -> str:
    path = folder / name
    # The size first: a file that was replaced may be of any size.
    same = path.stat().st_size == entry.get("size_bytes", path.stat().st_size) and _sha256(path) == entry["sha256"]
    return "" if same else f"{name} has other content"


def _kinds(folder: Path) -> dict[str, str]:
    """Return what lies below `folder`, by name: empty for a regular file, else what it is. Folders are left out, nothing is opened.

    Raises:
        DataError: `model.altered`, it is nested too deeply, or cannot be read.
    """
    found: dict[str, str] = {}
    waiting = [(folder, "", 0)]
    while waiting:
        place, prefix, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise DataError(
                "model.altered", f"{shown(prefix)} is nested more than {MAX_DEPTH} folders deep", hint="nothing of it was loaded"
            )
        try:
            with os.scandir(place) as entries:
                kinds = [(entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
        except OSError as err:
            raise DataError("model.altered", f"{shown(prefix or str(folder))} cannot be read: {err.strerror}") from err
        for name, mode in kinds:
            if stat.S_ISDIR(mode):
                waiting.append((place / name, f"{prefix}{name}/", depth + 1))
            else:
                found[f"{prefix}{name}"] = "" if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "not a regular file")
    return dict(sorted(found.items()))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
