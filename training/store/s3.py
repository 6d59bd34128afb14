"""How buckets are opened: S3 and what speaks it, by the environment that every AWS client reads.

`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; without keys, the platform's identity
(web identity, container or instance role).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from obstore.store import from_url

CONNECT_TIMEOUT: Final = timedelta(seconds=10)
REQUEST_TIMEOUT: Final = timedelta(minutes=5)
"""Of one request, its whole body included: no request carries more than `MULTIPART_BYTES`, which fit from 220 kB/s on."""
READ_TIMEOUT: Final = timedelta(seconds=60)
"""Without a byte: a body that hangs is asked for again."""
MAX_RETRIES: Final = 8
FIRST_WAIT: Final = timedelta(milliseconds=100)
"""Before the first retry; later ones wait longer, up to `LONGEST_WAIT`."""
LONGEST_WAIT: Final = timedelta(seconds=15)
RETRY_TIMEOUT: Final = timedelta(minutes=3)
"""After which a storage that answers nothing, or 503, is unavailable."""
MULTIPART_BYTES: Final = 64 * 2**20
"""Larger objects are uploaded in parts, and appear when the last one is there."""
PART_BYTES: Final = 5 * 2**20
"""Of a part, unless the object has too many of them. S3 takes no smaller ones."""
MAX_PARTS: Final = 10_000
RANGE_BYTES: Final = 32 * 2**20
"""Larger objects are read in ranges of so many bytes: read at once, one would have to arrive within `REQUEST_TIMEOUT`."""


def open_bucket(uri: str, environ: Mapping[str, str] = os.environ, *, retry_timeout: timedelta = RETRY_TIMEOUT) -> Any:
    """Return obstore's store for `s3://bucket/prefix`, `gs://…` or `az://…`.

    Retries wait with jitter, from 0.1 s to 15 s. Plain HTTP is spoken only to an endpoint that says so.
    """
    client: Any = {"connect_timeout": CONNECT_TIMEOUT, "timeout": REQUEST_TIMEOUT, "read_timeout": READ_TIMEOUT}
    if _endpoint(environ).startswith("http://"):
        client["allow_http"] = True
    backoff: Any = {"init_backoff": FIRST_WAIT, "max_backoff": LONGEST_WAIT, "base": 2}
    retries: Any = {"max_retries": MAX_RETRIES, "retry_timeout": retry_timeout, "backoff": backoff}
    return from_url(uri, client_options=client, retry_config=retries)


def _endpoint(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT") or ""
