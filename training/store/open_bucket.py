"""How buckets are opened: S3 and what speaks it, by the environment that every AWS client reads.

`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; without keys, the platform's identity
where its variables are set (web identity, container); an instance's role only where an operator allows it (`training.store.credentials`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from obstore.store import from_url

from training.installation import Variable
from training.store.credentials import identity_options

S3_ENDPOINT: Final = Variable(
    name="AWS_ENDPOINT_URL_S3", kind="URI", default="Amazon's", set_by="others", meaning="AWS: address of S3 alone, before the next two"
)
ENDPOINT: Final = Variable(
    name="AWS_ENDPOINT_URL",
    kind="URI",
    default="Amazon's",
    set_by="others",
    meaning="AWS: address of a store that speaks S3; `http://` allows plain HTTP",
)
OLD_ENDPOINT: Final = Variable(
    name="AWS_ENDPOINT", kind="URI", default="Amazon's", set_by="others", meaning="AWS: the same, as older clients name it"
)
REGION: Final = Variable(name="AWS_REGION", set_by="others", meaning="AWS: region of the bucket; read by obstore")
KEY_ID: Final = Variable(
    name="AWS_ACCESS_KEY_ID",
    default="the platform's identity, see `NIGHTSHIFT_CLOUD_IDENTITY`",
    set_by="others",
    meaning="AWS: account of the store, with `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`; read by obstore",
)
REGION_HINT: Final = "set AWS_REGION to the bucket's region"
HINTS: Final = {
    "AuthorizationHeaderMalformed": REGION_HINT,
    "PermanentRedirect": REGION_HINT,
    "incorrectly configured region": REGION_HINT,
    "169.254.169.254": "the machine has no role: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine or pod an identity",
}
"""Part of an error's text to what can be done about it."""
CONNECT_TIMEOUT: Final = timedelta(seconds=10)
REQUEST_TIMEOUT: Final = timedelta(minutes=5)
"""Of one request, its whole body included: no answer carries more than `RANGE_BYTES`, which fit from 110 kB/s on."""
READ_TIMEOUT: Final = timedelta(seconds=60)
"""Without a byte from the storage, the sending of the request's body included: a body that hangs is requested again."""
MAX_RETRIES: Final = 1000
"""More than fit into `RETRY_TIMEOUT`: time decides."""
FIRST_WAIT: Final = timedelta(milliseconds=250)
"""Before the first retry; later ones wait longer, up to `LONGEST_WAIT`."""
LONGEST_WAIT: Final = timedelta(seconds=15)
WAIT_GROWTH: Final = 3
"""A wait is drawn between the first one and so many times the last one."""
RETRY_TIMEOUT: Final = timedelta(minutes=3)
"""After which a storage that answers nothing, or 503, is unavailable: two minutes without it cost no stage."""
MULTIPART_BYTES: Final = 16 * 2**20
"""Larger objects are uploaded in parts, and appear when the last one is there."""
PART_BYTES: Final = 8 * 2**20
"""Of a part, unless the object has too many of them. S3 takes none below 5 MiB."""
NUM_PARTS_AT_ONCE: Final = 4
"""32 MiB under way, which fit into the read timeout from 560 kB/s on."""
MAX_PARTS: Final = 10_000
RANGE_BYTES: Final = 32 * 2**20
"""Larger objects are read in ranges of so many bytes: read at once, one would have to arrive within `REQUEST_TIMEOUT`."""


def open_bucket(uri: str, environ: Mapping[str, str] = os.environ, *, retry_timeout: timedelta = RETRY_TIMEOUT) -> Any:
    """Return obstore's store for `s3://bucket/prefix`, `gs://…` or `az://…`.

    Retries wait with jitter, from 0.25 s to 15 s. Plain HTTP is used only for an endpoint with that scheme.

    Raises:
        DeniedError: `storage.identity`.
        SpecError: `storage.account`, `settings.identity`.
    """
    options = identity_options(uri, environ)
    client: Any = {"connect_timeout": CONNECT_TIMEOUT, "timeout": REQUEST_TIMEOUT, "read_timeout": READ_TIMEOUT}
    endpoints = (variable.text(environ) for variable in (S3_ENDPOINT, ENDPOINT, OLD_ENDPOINT))
    if next(filter(None, endpoints), "").startswith("http://"):
        client["allow_http"] = True
    backoff: Any = {"init_backoff": FIRST_WAIT, "max_backoff": LONGEST_WAIT, "base": WAIT_GROWTH}
    retries: Any = {"max_retries": MAX_RETRIES, "retry_timeout": retry_timeout, "backoff": backoff}
    return from_url(uri, client_options=client, retry_config=retries, **options)
