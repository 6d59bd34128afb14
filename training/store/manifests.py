"""Manifests: what belongs together, by name, size and digest. Canonical JSON, named by its own digest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from training.contracts import canonical_json, sha256_hex
from training.errors import DataError, StoreError, shown
from training.store.bucket import REMAKE_HINT, Bucket
from training.store.condemned import Condemned
from training.store.objects import Objects
from training.store.work_folder import StoreUri

FORMAT_VERSION: Final = 1
DIGEST: Final = re.compile("[0-9a-f]{64}")
"""A SHA-256 in hex."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One object under the name that readers know it by."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A snapshot, a dataset, a model, a checkpoint, an evaluation: files by name, and JSON facts about them.

    Nothing in it may differ between two runs of the same work: no clock, no run id, no host.
    """

    kind: str
    files: Mapping[str, FileEntry]
    meta: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        return canonical_json(
            {
                "kind": self.kind,
                "format_version": self.format_version,
                "meta": dict(self.meta),
                "files": {name: {"digest": e.digest, "size_bytes": e.size_bytes} for name, e in self.files.items()},
            }
        )

    @property
    def digest(self) -> str:
        return sha256_hex(self.to_json())

    @classmethod
    def from_json(cls, data: bytes, *, uri: str) -> Self:
        """Read the bytes of the manifest at `uri`.

        Raises:
            DataError: `manifest.newer`.
            StoreError: `manifest.damaged` for anything that `to_json` does not write.
        """
        try:
            values = json.loads(data)
        except RecursionError as err:
            raise _damaged(uri, "the JSON is nested too deeply") from err
        except ValueError as err:
            raise _damaged(uri, f"not JSON: {err}") from err
        if not isinstance(values, dict):
            raise _damaged(uri, f"required a JSON object, found {shown(values)}")
        version, kind, meta, files = (values.get(key) for key in ("format_version", "kind", "meta", "files"))
        if type(version) is not int or version < 1:
            raise _damaged(uri, f"format_version: required an integer >= 1, found {shown(version)}")
        if version > FORMAT_VERSION:
            raise DataError(
                "manifest.newer", f"{uri} has format {version}, this version reads up to {FORMAT_VERSION}", hint="upgrade Nightshift"
            )
        if not isinstance(kind, str):
            raise _damaged(uri, f"kind: required a text, found {shown(kind)}")
        if not isinstance(meta, dict):
            raise _damaged(uri, f"meta: required a JSON object, found {shown(meta)}")
        if not isinstance(files, dict):
            raise _damaged(uri, f"files: required a JSON object, found {shown(files)}")
        entries = {name: _entry(entry, f"files.{shown(name)}", uri=uri) for name, entry in files.items()}
        return cls(kind=kind, files=entries, meta=meta, format_version=version)


def _entry(value: object, where: str, *, uri: str) -> FileEntry:
    if not isinstance(value, dict) or set(value) != {"digest", "size_bytes"}:
        raise _damaged(uri, f"{where}: required an object with digest and size_bytes, found {shown(value)}")
    digest, size_bytes = value["digest"], value["size_bytes"]
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise _damaged(uri, f"{where}.digest: required 64 hex digits, found {shown(digest)}")
    # bool is an int for isinstance.
    if type(size_bytes) is not int or size_bytes < 0:
        raise _damaged(uri, f"{where}.size_bytes: required an integer >= 0, found {shown(size_bytes)}")
    return FileEntry(digest=digest, size_bytes=size_bytes)


def _damaged(uri: str, problem: str) -> StoreError:
    return StoreError("manifest.damaged", f"{uri} is not a readable manifest: {problem}", hint=REMAKE_HINT)


class Manifests:
    """Manifests at `manifests/sha256/ab/<hex>.json`."""

    def __init__(self, bucket: Bucket, objects: Objects) -> None:
        self._bucket = bucket
        self._objects = objects
        self._condemned = Condemned(bucket)

    @staticmethod
    def key(digest: str) -> str:
        return f"manifests/sha256/{digest[:2]}/{digest}.json"

    def uri(self, digest: str) -> str:
        """Return where the manifest of this digest is."""
        return self._bucket.uri(self.key(digest))

    def put(self, manifest: Manifest) -> str:
        """Store a manifest, whose files are stored already; return its URI."""
        key = self.key(manifest.digest)
        data = manifest.to_json()
        self._condemned.claim(key)
        if not self._bucket.create(key, data) and self._bucket.find(key) != data:
            self._bucket.replace(key, data)
        return self._bucket.uri(key)

    def put_files(self, kind: str, files: Mapping[str, Path | bytes], meta: Mapping[str, object]) -> tuple[str, Manifest]:
        """Store local files (or bytes) and the manifest that names them; return its URI and it."""
        entries = {}
        for name, content in sorted(files.items()):
            if isinstance(content, bytes):
                entries[name] = FileEntry(digest=self._objects.put_bytes(content), size_bytes=len(content))
            else:
                entries[name] = FileEntry(digest=self._objects.put_file(content), size_bytes=content.stat().st_size)
        manifest = Manifest(kind=kind, files=entries, meta=meta)
        return self.put(manifest), manifest

    def get(self, uri: str, *, kind: str | None = None) -> Manifest:
        """Return the manifest that `uri` names, its bytes checked against its name.

        The root of the URI does not count: records of a store that was moved name its earlier place.

        Raises:
            DataError: `object.missing`, `object.altered`, `manifest.damaged`, `manifest.newer`, or `manifest.kind`.
            DeniedError: `store.foreign_uri`, `uri` names no content and is not in this store.
        """
        data = self._bucket.get(StoreUri(uri).content_key or self._bucket.key(uri))
        wanted = StoreUri(uri).digest
        actual = sha256_hex(data)
        if actual != wanted:
            raise StoreError("object.altered", f"{uri} holds other bytes than its name says: SHA-256 {actual}", hint=REMAKE_HINT)
        manifest = Manifest.from_json(data, uri=uri)
        if kind is not None and manifest.kind != kind:
            raise DataError("manifest.kind", f"{uri} is a {shown(manifest.kind)}, expected a {kind!r}")
        return manifest

    def fetch(self, manifest: Manifest, folder: Path, names: list[str] | None = None) -> Path:
        """Copy a manifest's files (or the named ones) into a local folder, each digest checked; return the folder."""
        for name in names if names is not None else sorted(manifest.files):
            if name.startswith("/") or ".." in name.split("/"):
                raise DataError("manifest.name", f"file name {shown(name)} leaves its folder")
            self._objects.fetch(manifest.files[name].digest, folder / name)
        return folder
