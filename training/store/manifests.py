"""Manifests: what belongs together, by name, size and digest. Canonical JSON, named by its own digest.

An artifact of a small run is one object: behind the JSON of its manifest are its small files, packed (`training.store.packing`).
"""

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
from training.store.packing import PACKED_BYTES, PACKED_FILE_BYTES, pack, unpack
from training.store.work_folder import StoreUri

FORMAT_VERSION: Final = 1
DIGEST: Final = re.compile("[0-9a-f]{64}")
"""A SHA-256 in hex."""
NUM_KEPT: Final = 32
"""Manifests that a process keeps which reads the same ones again and again."""


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
    pack: bytes = field(default=b"", compare=False, repr=False)
    """Its small files (`training.store.packing`); the others are objects. Not part of its JSON, nor of its digest: files have their own."""

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

    @property
    def size_bytes(self) -> int:
        """Of its files together."""
        return sum(entry.size_bytes for entry in self.files.values())

    def to_bytes(self) -> bytes:
        """Return what is stored: the JSON, and in further lines the pack where there is one."""
        return b"\n".join(filter(None, [self.to_json(), self.pack]))

    @classmethod
    def from_bytes(cls, data: bytes, *, uri: str) -> Self:
        """Read what is stored at `uri`.

        Raises:
            DataError: `manifest.newer`.
            StoreError: `manifest.damaged` for anything that `to_json` does not write.
        """
        header, _, packed = data.partition(b"\n")
        try:
            values = json.loads(header)
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
        return cls(kind=kind, files=entries, meta=meta, format_version=version, pack=packed)


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

    def __init__(self, bucket: Bucket, objects: Objects, *, keeps_read: bool = False) -> None:
        """Open the manifests of a store.

        Args:
            keeps_read: a manifest is read once, and not again by this process: it never changes, but it may be deleted.
        """
        self._bucket = bucket
        self._objects = objects
        self._condemned = Condemned(bucket)
        self._keeps_read = keeps_read
        self._kept: dict[str, Manifest] = {}

    @staticmethod
    def key(digest: str) -> str:
        return f"manifests/sha256/{digest[:2]}/{digest}.json"

    def uri(self, digest: str) -> str:
        """Return where the manifest of this digest is."""
        return self._bucket.uri(self.key(digest))

    def put(self, manifest: Manifest) -> str:
        """Store a manifest, whose files are stored already or in its pack; return its URI."""
        return self._condemned.put(self.key(manifest.digest), manifest.to_bytes())

    def put_files(self, kind: str, files: Mapping[str, Path | bytes], meta: Mapping[str, object]) -> tuple[str, Manifest]:
        """Store local files (or bytes) and the manifest that names them; return its URI and it.

        Files of up to `PACKED_FILE_BYTES`, up to `PACKED_BYTES` of them, are stored within the manifest; each other one is an object.
        """
        entries, packed, left_bytes = {}, {}, PACKED_BYTES
        for name, content in sorted(files.items()):
            size_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
            if size_bytes <= min(PACKED_FILE_BYTES, left_bytes):
                packed[name] = content if isinstance(content, bytes) else content.read_bytes()
                left_bytes -= size_bytes
                digest = sha256_hex(packed[name])
            else:
                digest = self._objects.put_bytes(content) if isinstance(content, bytes) else self._objects.put_file(content)
            entries[name] = FileEntry(digest=digest, size_bytes=size_bytes)
        manifest = Manifest(kind=kind, files=entries, meta=meta, pack=pack(packed))
        return self.put(manifest), manifest

    def get(self, uri: str, *, kind: str | None = None) -> Manifest:
        """Return the manifest that `uri` names, its JSON checked against its name.

        The root of the URI does not count: records of a store that was moved name its earlier place.

        Raises:
            DataError: `object.missing`, `artifact.erased`, `object.altered`, `manifest.damaged`, `manifest.newer`, or `manifest.kind`.
            DeniedError: `store.foreign_uri`, `uri` names no content and is not in this store.
        """
        key, wanted = StoreUri(uri).content_key or self._bucket.key(uri), StoreUri(uri).digest
        manifest = self._kept.get(wanted)
        if manifest is None:
            with self._condemned.naming_erased(key):
                data = self._bucket.get(key)
            actual = sha256_hex(data.partition(b"\n")[0])
            if actual != wanted:
                raise _altered(f"{uri} holds other bytes than its name says: SHA-256 {actual}")
            manifest = Manifest.from_bytes(data, uri=uri)
            if self._keeps_read:
                self._keep(wanted, manifest)
        if kind is not None and manifest.kind != kind:
            raise DataError("manifest.kind", f"{uri} is a {shown(manifest.kind)}, expected a {kind!r}")
        return manifest

    def read(self, manifest: Manifest, name: str) -> bytes:
        """Return a file of a manifest, its digest checked.

        Raises:
            DataError: `object.missing` or `object.altered`.
            KeyError: the manifest has no file of this name.
        """
        digest = manifest.files[name].digest
        packed = self._packed(manifest).get(name)
        return self._objects.get_bytes(digest) if packed is None else packed

    def fetch(self, manifest: Manifest, folder: Path, names: list[str] | None = None) -> Path:
        """Copy a manifest's files (or the named ones) into a local folder, each digest checked; return the folder."""
        packed = self._packed(manifest)
        for name in names if names is not None else sorted(manifest.files):
            if name.startswith("/") or ".." in name.split("/"):
                raise DataError("manifest.name", f"file name {shown(name)} leaves its folder")
            path = folder / name
            if name in packed:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(packed[name])
            else:
                self._objects.fetch(manifest.files[name].digest, path)
        return folder

    def packed_names(self, manifest: Manifest) -> frozenset[str]:
        """Return the files of a manifest that are no objects of their own."""
        return frozenset(self._packed(manifest))

    def _packed(self, manifest: Manifest) -> dict[str, bytes]:
        """Return the files in a manifest's pack.

        Raises:
            StoreError: `object.altered`.
        """
        uri = self.uri(manifest.digest)
        try:
            found = unpack(manifest.pack)
        except ValueError as err:
            raise _altered(f"{uri} has a damaged pack: {err}") from err
        for name, content in found.items():
            if name not in manifest.files or sha256_hex(content) != manifest.files[name].digest:
                raise _altered(f"{uri} has other bytes packed as {shown(name)} than its digest says")
        return found

    def _keep(self, digest: str, manifest: Manifest) -> None:
        while len(self._kept) >= NUM_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[digest] = manifest


def _altered(message: str) -> StoreError:
    return StoreError("object.altered", message, hint=REMAKE_HINT)
