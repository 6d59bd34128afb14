"""The list of a registered model's files with their digests, which is part of the model; its own digest is in the ledger.

Standard library only: it is read before anything of the model is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from training.contracts import canonical_json
from training.errors import DataError, shown

LIST_NAME: Final = "nightshift-files.json"
FORMAT_VERSION: Final = 1
MAX_NAMED: Final = 10
CHUNK_BYTES: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def write_list(folder: Path) -> str:
    """Write the list of all files in `folder` beside them; return the list's SHA-256."""
    files = {name: {"sha256": _sha256(folder / name), "size_bytes": (folder / name).stat().st_size} for name in _names(folder)}
    data = canonical_json({"format_version": FORMAT_VERSION, "files": files})
    (folder / LIST_NAME).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def has_list(folder: Path) -> bool:
    """Return whether the model was registered with a list of its files."""
    return (folder / LIST_NAME).is_file()


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
        raise DataError("model.digest", message, hint="python -m training.registry MODEL shows it")
    if not has_list(folder):
        message = f"the model has no {LIST_NAME}: none of its files can be checked"
        raise DataError("model.unlisted", message, hint="it was registered by an earlier version, or was replaced")
    data = (folder / LIST_NAME).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and found != digest:
        message = f"{LIST_NAME} has the digest {found}, expected {digest}"
        raise DataError("model.altered", message, hint="the digest is of another version, or the model was replaced")
    listed = _listed(data)
    wrong = [f"{name} is not listed" for name in _names(folder) if name.startswith(below) and name not in listed]
    wrong += [fault for name, entry in listed.items() if name.startswith(below) and (fault := _fault(folder, name, entry))]
    if wrong:
        named = "; ".join(wrong[:MAX_NAMED]) + (f"; and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else "")
        raise DataError("model.altered", f"the model's files are not those that were registered: {named}", hint="nothing of it was loaded")


def _listed(data: bytes) -> Mapping[str, Mapping[str, Any]]:
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


def _fault(folder: Path, name: str, entry: Mapping[str, Any]) -> str:
    path = folder / name
    if ".." in Path(name).parts or path.is_symlink() or not path.is_file():
        return f"{name} is missing"
    return "" if _sha256(path) == entry["sha256"] else f"{name} has other content"


def _names(folder: Path) -> list[str]:
    """Return the files of all kinds below `folder`, links to folders included, but for the list."""
    found = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found += [(Path(place) / name).relative_to(folder).as_posix() for name in [*files, *links]]
    return sorted(name for name in found if name != LIST_NAME)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
