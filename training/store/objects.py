"""Immutable objects named by their content, and the raw bucket below them. The only place that calls obstore."""

from __future__ import annotations

import builtins
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import LocalStore

from training.contracts import sha256_hex
from training.errors import DataError, DeniedError, Problem, SpecError, UnavailableError, shown
from training.store.s3 import MULTIPART_BYTES, open_bucket

CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a listing: key below the listed root, size, and what changes when the content does."""

    key: str
    size_bytes: int
    version: str
    """ETag, or modification time and size where the storage has none."""
    modified: datetime


class Bucket:
    """A folder or an S3 bucket prefix: get, put, conditional create, list. Every fault becomes one of our errors."""

    def __init__(self, root_uri: str) -> None:
        """Open `root_uri` (`file:///…`, an absolute path, or `s3://bucket/prefix`); a folder is made on first use."""
        self.root_uri = as_uri(root_uri)
        parts = urlsplit(self.root_uri)
        self._is_local = parts.scheme == "file"
        if self._is_local:
            path = Path(unquote(parts.path))
            path.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(path, mkdir=True)
        else:
            self._store = open_bucket(self.root_uri)

    def uri(self, key: str) -> str:
        return f"{self.root_uri}/{key}"

    def key(self, uri: str) -> str:
        """Return the key of a URI of this bucket.

        Raises:
            DeniedError: the URI is not below this bucket's root, or leaves it by `..`.
        """
        prefix = self.root_uri + "/"
        if not uri.startswith(prefix) or ".." in uri.split("/"):
            raise DeniedError("store.foreign_uri", f"{shown(uri)} is not in the store {self.root_uri}")
        return uri[len(prefix) :]

    def get(self, key: str) -> bytes:
        """Return the bytes of `key`.

        Raises:
            DataError: `object.missing`, nothing is stored there.
            UnavailableError: the storage does not answer.
        """
        found = self.find(key)
        if found is None:
            raise DataError("object.missing", f"{self.uri(key)} does not exist")
        return found

    def find(self, key: str) -> bytes | None:
        """Return the bytes of `key`, or None where nothing is stored."""
        with self._faults("read", key):
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError:
                return None

    def exists(self, key: str) -> bool:
        with self._faults("look up", key):
            try:
                obstore.head(self._store, key)
            except FileNotFoundError:
                return False
            return True

    def put(self, key: str, data: bytes) -> None:
        """Write `key`, over what is there. Only for what no reader trusts: heartbeats, logs, pages."""
        with self._faults("write", key):
            obstore.put(self._store, key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Write `key` if nothing is there; say whether this call did. The one primitive that every commit rests on."""
        with self._faults("create", key):
            try:
                obstore.put(self._store, key, data, mode="create")
            except obstore_errors.AlreadyExistsError:
                return False
            return True

    def create_own(self, key: str, data: bytes) -> bool:
        """As `create`, for data that only one writer would write.

        An answer that gets lost on the way is asked for again by the client, which then finds its own object and calls it somebody else's:
        without the second look, the winner of a race would be told that it lost.
        """
        return self.create(key, data) or (not self._is_local and self.find(key) == data)

    def upload(self, key: str, path: Path) -> None:
        """Write a file's content to `key`; it appears whole or not at all. For what its content names: written twice, it is the same."""
        with self._faults("write", key):
            if self._is_local:
                try:
                    obstore.put(self._store, key, path, mode="create")
                except obstore_errors.AlreadyExistsError:
                    return
            else:
                # No condition: few storages know one for an upload in parts.
                obstore.put(self._store, key, path, use_multipart=path.stat().st_size > MULTIPART_BYTES)

    def delete(self, key: str) -> None:
        with self._faults("delete", key):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def list(self, prefix: str) -> list[Listed]:
        """List everything below the folder `prefix`, sorted by key; keys are relative to the bucket's root."""
        with self._faults("list", prefix):
            found = [
                Listed(
                    key=meta["path"],
                    size_bytes=meta["size"],
                    version=meta["e_tag"] or f"{meta['last_modified'].isoformat()}-{meta['size']}",
                    modified=meta["last_modified"],
                )
                for page in obstore.list(self._store, prefix or None)
                for meta in page
            ]
        return sorted(found, key=lambda entry: entry.key)

    def folders(self, prefix: str) -> builtins.list[str]:
        """List the names of the folders directly below `prefix`, sorted."""
        with self._faults("list", prefix):
            result = obstore.list_with_delimiter(self._store, prefix or None)
        return sorted(path.rsplit("/", 1)[-1] for path in result["common_prefixes"])

    def stream(self, key: str) -> Iterator[bytes]:
        """Yield the bytes of `key` in chunks of 8 MiB.

        Raises:
            DataError: `object.missing`.
        """
        with self._faults("read", key):
            try:
                response = obstore.get(self._store, key)
            except FileNotFoundError as err:
                raise DataError("object.missing", f"{self.uri(key)} does not exist") from err
            for chunk in response.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    @contextmanager
    def _faults(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except (PermissionError, obstore_errors.UnauthenticatedError, obstore_errors.PermissionDeniedError) as err:
            raise DeniedError("storage.denied", f"not allowed to {verb} {self.uri(key)}: {_first_line(err)}") from err
        except OSError as err:
            raise UnavailableError("storage.unavailable", f"could not {verb} {self.uri(key)}: {_first_line(err)}") from err
        except obstore_errors.BaseError as err:
            raise UnavailableError("storage.unavailable", f"could not {verb} {self.uri(key)}: {_first_line(err)}") from err


class Objects:
    """Objects at `objects/sha256/ab/<hex>`: same bytes, one object; every read checks the digest first."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @staticmethod
    def key(digest: str) -> str:
        return f"objects/sha256/{digest[:2]}/{digest}"

    def uri(self, digest: str) -> str:
        return self._bucket.uri(self.key(digest))

    def put_bytes(self, data: bytes) -> str:
        """Store `data` if it is not there yet; return its SHA-256."""
        digest = sha256_hex(data)
        self._bucket.create(self.key(digest), data)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file if its content is not there yet; return its SHA-256."""
        digest = file_digest(path)
        if not self._bucket.exists(self.key(digest)):
            self._bucket.upload(self.key(digest), path)
        return digest

    def get_bytes(self, digest: str) -> bytes:
        """Return the object's bytes.

        Raises:
            DataError: `object.missing`, or `object.altered` when the bytes are not those of the name.
        """
        return self._checked(self._bucket.get(self.key(digest)), digest)

    def fetch(self, digest: str, path: Path) -> Path:
        """Copy an object to the local file `path`, which appears only once its digest is right.

        Raises:
            DataError: `object.missing` or `object.altered`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        hasher = hashlib.sha256()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                for chunk in self._bucket.stream(self.key(digest)):
                    hasher.update(chunk)
                    out.write(chunk)
            if hasher.hexdigest() != digest:
                raise self._altered(digest, hasher.hexdigest())
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return path

    def _checked(self, data: bytes, digest: str) -> bytes:
        actual = sha256_hex(data)
        if actual != digest:
            raise self._altered(digest, actual)
        return data

    def _altered(self, wanted: str, actual: str) -> DataError:
        return DataError(
            "object.altered",
            f"{self.uri(wanted)} holds other bytes than its name says: SHA-256 {actual}",
            hint="delete the object and run the stage that made it again, or restore it from a backup",
        )


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def as_uri(location: str) -> str:
    """Return a store location as a URI without a trailing slash; absolute paths become `file://` URIs.

    Raises:
        SpecError: neither a URI nor an absolute path.
    """
    if location.startswith("/"):
        return Path(os.path.normpath(location)).as_uri()
    if "://" not in location:
        raise SpecError(
            "NIGHTSHIFT_STORE",
            [
                Problem(
                    code="store.location",
                    message=f"{shown(location)} is neither a URI nor an absolute path",
                    hint="use file:///…, s3://bucket/prefix or /absolute/path",
                )
            ],
        )
    return location.rstrip("/")


def _first_line(err: BaseException) -> str:
    text = str(err)
    return text.splitlines()[0] if text else type(err).__name__
