"""Immutable objects, named by the SHA-256 of their content."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from training.contracts import sha256_hex
from training.errors import NightshiftError, StoreError
from training.store.bucket import REMAKE_HINT, Bucket
from training.store.condemned import Condemned


class Objects:
    """Objects at `objects/sha256/ab/<hex>`: same bytes, one object; every read checks the digest first."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._condemned = Condemned(bucket)

    @staticmethod
    def key(digest: str) -> str:
        return f"objects/sha256/{digest[:2]}/{digest}"

    def uri(self, digest: str) -> str:
        return self._bucket.uri(self.key(digest))

    def claim(self, digest: str) -> None:
        """Keep the collector from deleting an object for a grace period."""
        self._condemned.claim(self.key(digest))

    def put_bytes(self, data: bytes) -> str:
        """Store `data` if it is not there yet; return its SHA-256."""
        digest = sha256_hex(data)
        self.claim(digest)
        if not self._bucket.create(self.key(digest), data):
            self._mend(digest, data, len(data))
        return digest

    def put_block(self, data: memoryview) -> tuple[str, bool]:
        """Store bytes if they are not there yet, without sending those that are; return their SHA-256 and whether they were written.

        For large blocks of which many do not change: `put_bytes` sends its bytes with the request that finds them in a bucket already.
        """
        digest = hashlib.sha256(data).hexdigest()
        self.claim(digest)
        key = self.key(digest)
        # In a local folder, `create` looks first, and makes durable what is there.
        is_there = not self._bucket.is_local and self._bucket.exists(key)
        if not is_there and self._bucket.create(key, data):
            return digest, True
        self._mend(digest, data, len(data))
        return digest, False

    def size_bytes(self, digest: str) -> int | None:
        """Return the size of an object, None where it is missing; its bytes are not read."""
        return self._bucket.size_bytes(self.key(digest))

    def put_file(self, path: Path) -> str:
        """Store a file if its content is not there yet; return its SHA-256."""
        digest = file_digest(path)
        self.claim(digest)
        size_bytes = self._bucket.size_bytes(self.key(digest))
        # A local one that is there is made durable by that.
        if self._bucket.is_local or size_bytes is None:
            self._bucket.upload(self.key(digest), path)
        if size_bytes is not None:
            self._mend(digest, path, path.stat().st_size)
        return digest

    def _mend(self, digest: str, content: bytes | memoryview | Path, size_bytes: int) -> None:
        """Replace an object that holds other bytes than `content`: its size differs, or a reader found it altered.

        To read each object that is there already would be too much: the same files come with every run.
        """
        key, mark = self.key(digest), _mark(digest)
        if self._bucket.size_bytes(key) == size_bytes:
            if not self._bucket.exists(mark):
                return
            hasher = hashlib.sha256()
            for chunk in self._bucket.stream(key):
                hasher.update(chunk)
            if hasher.hexdigest() == digest:
                self._bucket.delete(mark)
                return
        self._bucket.replace(key, content)
        self._bucket.delete(mark)

    def get_bytes(self, digest: str) -> bytes:
        """Return the object's bytes.

        Raises:
            DataError: `object.missing`, `artifact.erased`, or `object.altered` when the bytes are not those of the name.
        """
        with self._condemned.naming_erased(self.key(digest)):
            return self._checked(self._bucket.get(self.key(digest)), digest)

    def fetch(self, digest: str, path: Path) -> Path:
        """Copy an object to the local file `path`, which appears only once its digest is right.

        Raises:
            DataError: `object.missing`, `artifact.erased` or `object.altered`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        hasher = hashlib.sha256()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as out, self._condemned.naming_erased(self.key(digest)):
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

    def _altered(self, wanted: str, actual: str) -> StoreError:
        # The next writer of the same content reads the object first, and replaces it. If the mark cannot be left, that is no further fault.
        with suppress(NightshiftError):
            self._bucket.create(_mark(wanted), b"")
        message = f"{self.uri(wanted)} holds other bytes than its name says: SHA-256 {actual}"
        return StoreError("object.altered", message, hint=REMAKE_HINT)


def _mark(digest: str) -> str:
    return f"altered/{digest}"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
