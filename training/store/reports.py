"""Reports: the HTML pages of stages at `reports/<pipeline>/<digest>`, gzipped, named by the SHA-256 of what is stored.

The pipeline is part of the key because a user who may read one pipeline may not read all. What is below it was published as a report by one
of its stages; no other content of the store is ever served as a page.
"""

from __future__ import annotations

import gzip

from training.contracts import sha256_hex
from training.errors import StoreError
from training.store.bucket import REMAKE_HINT, Bucket
from training.store.condemned import Condemned
from training.store.work_folder import StoreUri


class Reports:
    """The reports of one store."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._condemned = Condemned(bucket)

    def put(self, pipeline: str, html: bytes) -> str:
        """Store a self-contained page; return its URI."""
        data = gzip.compress(html, mtime=0)
        return self._condemned.put(_key(pipeline, sha256_hex(data)), data)

    def get(self, uri: str) -> bytes:
        """Return the page that `uri` names. The root of the URI does not count, as with manifests.

        Raises:
            DataError: `object.missing`, `artifact.erased` or `object.altered`.
            DeniedError: `store.foreign_uri`.
        """
        key = StoreUri(uri).content_key or self._bucket.key(uri)
        with self._condemned.naming_erased(key):
            return self._checked(key, self._bucket.get(key))

    def find(self, pipeline: str, digest: str) -> bytes | None:
        """Return a page of a pipeline, None where the pipeline has no such report.

        Raises:
            DataError: `object.altered`.
        """
        key = _key(pipeline, digest)
        data = self._bucket.find(key)
        return None if data is None else self._checked(key, data)

    def _checked(self, key: str, data: bytes) -> bytes:
        actual = sha256_hex(data)
        if actual != StoreUri(key).digest:
            message = f"{self._bucket.uri(key)} holds other bytes than its name says: SHA-256 {actual}"
            raise StoreError("object.altered", message, hint=REMAKE_HINT)
        return gzip.decompress(data)


def _key(pipeline: str, digest: str) -> str:
    return f"reports/{pipeline}/{digest}"
