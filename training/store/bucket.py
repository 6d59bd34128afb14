"""The raw bucket: a folder or an S3 prefix, every fault of which becomes one of our errors. Calls obstore."""

from __future__ import annotations

import builtins
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import LocalStore

from training.errors import DataError, DeniedError, NightshiftError, StoreError, UnavailableError, shown, spec_error
from training.process import liveness
from training.sanitizing import masked
from training.store.durable_writes import LocalFiles
from training.store.open_bucket import HINTS, MAX_PARTS, MULTIPART_BYTES, NUM_PARTS_AT_ONCE, PART_BYTES, RANGE_BYTES, open_bucket

CHUNK_BYTES: Final = 8 * 1024 * 1024
CREATE_ATTEMPTS: Final = 8
CREATE_SECONDS: Final = 150.0
"""After which a create without an answer is not tried again: longer than two answers that hang until the read time-out. The last one's own
retries included, it fails within seven minutes."""
CONFLICT_WAIT_SECONDS: Final = 0.1
"""Mean wait after the first refusal of a create that nothing stands in the way of; doubles each time."""
NO_BUCKET_CODES: Final = ("NoSuchBucket", "ContainerNotFound")
REMAKE_HINT: Final = "trigger the run again with force: the stage that makes it replaces it; or restore it from a backup"
CONTENT: Final = ("objects/", "manifests/", "reports/")
"""What is named by its content."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a listing: key below the listed root, size, and what changes when the content does."""

    key: str
    size_bytes: int
    version: str
    """ETag, or modification time and size where the storage has none."""
    modified: datetime


OnPage = Callable[[list[Listed]], object]
"""Is called with each page of a listing."""


class Bucket:
    """A folder or an S3 bucket prefix: get, put, conditional create, list. Every fault becomes one of our errors."""

    def __init__(self, root_uri: str, *, retry_timeout: timedelta | None = None) -> None:
        """Open `root_uri` (`file:///…`, an absolute path, or `s3://bucket/prefix`); a folder is made on first use.

        Args:
            retry_timeout: after which a storage that does not answer is unavailable; None: minutes, as a stage needs it.

        Raises:
            SpecError: `store.location`; `storage.account`, `settings.identity`.
            DeniedError: `storage.identity`; `storage.denied`, the folder cannot be made.
        """
        self.root_uri = as_uri(root_uri)
        parts = urlsplit(self.root_uri)
        self.is_local = parts.scheme == "file"
        """Whether it is a folder of this machine."""
        if self.is_local:
            path = Path(unquote(parts.path))
            self._make_folder(path)
            self._store = LocalStore(path, mkdir=True)
            self._files = LocalFiles(path)
        else:
            limit: Any = {} if retry_timeout is None else {"retry_timeout": retry_timeout}
            self._store = open_bucket(self.root_uri, **limit)

    def _make_folder(self, path: Path) -> None:
        """Make the folder of a local store.

        Raises:
            SpecError: `store.location`, a file is in its place or above it.
            DeniedError, UnavailableError: it cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as err:
            in_the_way = next((place for place in (path, *path.parents) if os.path.lexists(place) and not place.is_dir()), path)
            message = f"{self.root_uri} cannot be a folder: {str(in_the_way)!r} is a file or a broken link"
            hint = "name a folder, or move the file away"
            raise spec_error("environment", "store.location", message, hint=hint, field="NIGHTSHIFT_STORE") from err
        except OSError as err:
            hint = "choose a folder that this user may write, or change its permissions"
            kind, code = (DeniedError, "storage.denied") if isinstance(err, PermissionError) else (UnavailableError, "storage.unavailable")
            raise kind(code, f"could not make the folder {self.root_uri}: {err.strerror}", hint=hint) from err

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
            raise self._missing(key)
        return found

    def find(self, key: str) -> bytes | None:
        """Return the bytes of `key`, or None where nothing is stored."""
        with self._faults("read", key):
            try:
                return b"".join(self._chunks(key))
            except FileNotFoundError as err:
                if _is_no_bucket(err):
                    raise
                self._refuse_folder(key)
                return None

    def exists(self, key: str) -> bool:
        return self.size_bytes(key) is not None

    def size_bytes(self, key: str) -> int | None:
        """Return the size of what is stored at `key`, or None where nothing is."""
        with self._faults("look up", key):
            try:
                size: int = obstore.head(self._store, key)["size"]
            except FileNotFoundError:
                return None
            return size

    def put(self, key: str, data: bytes) -> None:
        """Write `key`, over what is there. Only for what no reader trusts: heartbeats, logs, pages."""
        with self._faults("write", key):
            if self.is_local:
                self._files.replace(key, data, is_durable=False)
            else:
                obstore.put(self._store, key, data)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Write `key` if nothing is there; say whether this call did. The one primitive that every commit rests on.

        Raises:
            UnavailableError: `storage.conflict`, the storage refused again and again although nothing is there.
        """
        give_up_at = time.monotonic() + CREATE_SECONDS
        for attempt in range(CREATE_ATTEMPTS):
            try:
                if self._try_create(key, data):
                    return True
                # S3 may refuse writers who come at the same time with a 409, to be tried again: obstore takes it for "already exists".
                if self.is_local or self.exists(key):
                    return False
            except UnavailableError:
                # obstore repeats no conditional request whose answer timed out: whether the object was made, only a second request shows.
                if self.is_local or attempt == CREATE_ATTEMPTS - 1 or time.monotonic() > give_up_at:
                    raise
            time.sleep(random.uniform(0, 2 * CONFLICT_WAIT_SECONDS * 2**attempt))  # noqa: S311 - jitter, no secret
        raise UnavailableError(
            "storage.conflict", f"could not create {self.uri(key)}: refused {CREATE_ATTEMPTS} times as existing, and nothing is there"
        )

    def _try_create(self, key: str, data: bytes | memoryview) -> bool:
        with self._faults("create", key, size_bytes=len(data)):
            if self.is_local:
                return self._files.create(key, data)
            try:
                obstore.put(self._store, key, bytes(data), mode="create")
            except obstore_errors.AlreadyExistsError:
                return False
            return True

    def create_own(self, key: str, data: bytes) -> bool:
        """As `create`, for data that only one writer would write.

        The client repeats a request whose answer was lost, finds the object that its first request created, and reports a conflict:
        without comparing the content, the winner of a race would take itself for the loser.
        """
        return self.create(key, data) or (not self.is_local and self.find(key) == data)

    def replace(self, key: str, content: bytes | memoryview | Path) -> None:
        """Write `key` over what is there, durably: for an object or a manifest that no longer holds what its name says."""
        if isinstance(content, Path) and not self.is_local:
            self.upload(key, content)
            return
        with self._faults("write", key):
            if self.is_local:
                self._files.replace(key, content)
            else:
                obstore.put(self._store, key, bytes(content) if isinstance(content, memoryview) else content)

    def upload(self, key: str, path: Path) -> None:
        """Write a file's content to `key`; it appears whole or not at all. For keys named by their content."""
        size_bytes = path.stat().st_size
        with self._faults("write", key, size_bytes=size_bytes):
            if self.is_local:
                self._files.create(key, path)
                return
            part_bytes = max(PART_BYTES, -(-size_bytes // MAX_PARTS))
            try:
                # No condition: few storages know one for an upload in parts.
                obstore.put(
                    self._store,
                    key,
                    path,
                    use_multipart=size_bytes > MULTIPART_BYTES,
                    chunk_size=part_bytes,
                    max_concurrency=NUM_PARTS_AT_ONCE,
                )
            except FileNotFoundError as err:
                # An upload whose last answer got lost is finished again, and then it is no longer known.
                if _is_no_bucket(err) or not self.exists(key):
                    raise

    def delete(self, key: str, *, prune: bool = False) -> None:
        """Delete `key`; a no-op where nothing is.

        Args:
            prune: in a local folder, also remove the folders above it that are empty now. A bucket has none.
        """
        with self._faults("delete", key):
            if self.is_local:
                self._files.delete(key, prune=prune)
                return
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def list(self, prefix: str, *, after: str | None = None, seen: OnPage | None = None) -> list[Listed]:
        """List everything below the folder `prefix`, or only keys after `after`, sorted; keys are relative to the bucket's root.

        Args:
            seen: called with each page of the listing.
        """
        found: list[Listed] = []
        with self._faults("list", prefix):
            for page in obstore.list(self._store, prefix or None, offset=after):
                entries = [
                    Listed(
                        key=meta["path"],
                        size_bytes=meta["size"],
                        version=meta["e_tag"] or f"{meta['last_modified'].isoformat()}-{meta['size']}",
                        modified=meta["last_modified"],
                    )
                    for meta in page
                ]
                if seen is not None:
                    seen(entries)
                found += entries
        return sorted(found, key=lambda entry: entry.key)

    def delete_leftovers(self, older_than_seconds: float, *, dry_run: bool = False) -> tuple[int, int]:
        """Delete temporary files that writers of a local folder left when they were killed; return (how many, their bytes).

        Of a bucket, unfinished uploads in parts are removed by a lifecycle rule of the bucket (AbortIncompleteMultipartUpload).
        """
        with self._faults("clean", ""):
            return self._files.delete_leftovers(older_than_seconds, dry_run=dry_run) if self.is_local else (0, 0)

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
                yield from self._chunks(key)
            except FileNotFoundError as err:
                if _is_no_bucket(err):
                    raise
                self._refuse_folder(key)
                raise self._missing(key) from err

    def _missing(self, key: str) -> StoreError:
        return StoreError("object.missing", f"{self.uri(key)} does not exist", hint=REMAKE_HINT if key.startswith(CONTENT) else "")

    def _refuse_folder(self, key: str) -> None:
        if self.is_local and self._files.path(key).is_dir():
            raise self._folder_in_place(key)

    def _folder_in_place(self, key: str) -> StoreError:
        return StoreError("record.damaged", f"{self.uri(key)} is a folder, expected a file", hint="move the folder out of the store")

    def _chunks(self, key: str, etag: str | None = None) -> Iterator[bytes]:
        """Yield the bytes of `key`, all of one version (the one that `etag` names, if given), in chunks of 8 MiB.

        Raises:
            FileNotFoundError, PreconditionError and what else obstore raises.
        """
        response = obstore.get(self._store, key, options={"if_match": etag} if etag else {})
        size_bytes, version = response.meta["size"], response.meta["e_tag"]
        if self.is_local or version is None or size_bytes <= RANGE_BYTES:
            for chunk in response.stream(min_chunk_size=CHUNK_BYTES):
                liveness.moved()
                yield bytes(chunk)
            return
        del response
        for start in range(0, size_bytes, RANGE_BYTES):
            wanted = (start, min(start + RANGE_BYTES, size_bytes))
            for chunk in obstore.get(self._store, key, options={"if_match": version, "range": wanted}).stream(min_chunk_size=CHUNK_BYTES):
                liveness.moved()
                yield bytes(chunk)

    @contextmanager
    def _faults(self, verb: str, key: str, *, size_bytes: int = 0) -> Iterator[None]:
        try:
            with liveness.phase("transfer", f"{verb} {key}", size_bytes=size_bytes):
                yield
        except IsADirectoryError as err:
            raise self._folder_in_place(key) from err
        except (OSError, obstore_errors.BaseError) as err:
            # A trace shows the whole text of a cause: one that quotes a key or a signed address is left out.
            raise self._fault(err, verb, key) from (err if masked(str(err)) == str(err) else None)

    def _fault(self, err: Exception, verb: str, key: str) -> NightshiftError:
        what = f"{verb} {self.uri(key)}"
        if _is_denied(err):
            return DeniedError("storage.denied", f"not allowed to {what}: {_reason(err)}")
        if _is_no_bucket(err):
            return DataError(
                "storage.no_bucket",
                f"could not {what}: there is no bucket {shown(urlsplit(self.root_uri).netloc)}",
                hint="create it, or correct the URI of the store or of the source",
            )
        return UnavailableError("storage.unavailable", f"could not {what}: {_reason(err)}", hint=_hint(err))


def as_uri(location: str) -> str:
    """Return a store location as a URI without a trailing slash; absolute paths, also with blanks, become `file://` URIs.

    Raises:
        SpecError: neither a URI nor an absolute path.
    """
    if location.startswith("/"):
        return Path(os.path.normpath(location)).as_uri()
    if "://" not in location:
        raise spec_error(
            "NIGHTSHIFT_STORE",
            "store.location",
            "neither a URI nor an absolute path",
            hint="use file:///…, s3://bucket/prefix or /absolute/path",
        )
    return location.rstrip("/").replace(" ", "%20") if location.startswith("file:") else location.rstrip("/")


def _reason(err: BaseException) -> str:
    """Return an error's first line, and what S3 says in its answer's body instead of the XML."""
    text = str(err) or type(err).__name__
    line = text.splitlines()[0].partition("<?xml")[0].partition("<Error>")[0].rstrip(": ")
    said = [found.group(1) for tag in ("Code", "Message") if (found := re.search(f"<{tag}>([^<]{{1,200}})</{tag}>", text))]
    return masked(": ".join([line, *said]))


def _hint(err: BaseException) -> str:
    return next((hint for sign, hint in HINTS.items() if sign in str(err)), "")


def _is_denied(err: BaseException) -> bool:
    if isinstance(err, PermissionError | obstore_errors.UnauthenticatedError | obstore_errors.PermissionDeniedError):
        return True
    # A listing's refusal comes as a fault without a name.
    return re.search(r"status code: 40[13]\b", str(err)) is not None


def _is_no_bucket(err: BaseException) -> bool:
    return any(f"<Code>{code}</Code>" in str(err) for code in NO_BUCKET_CODES)
