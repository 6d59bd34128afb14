"""Names of places of data: of the variables that say where data is, and of buckets. Standard library only: settings read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

PLACEHOLDER_RULE: Final = "[A-Z][A-Z0-9_]*_URI"
"""Of a variable that a YAML may name, as a regular expression."""
OTHER_PREFIXES: Final = ("NIGHTSHIFT_", "AIRFLOW_", "MLFLOW_", "AWS_", "AZURE_", "GOOGLE_", "KUBERNETES_", "DOCKER_")
"""Of names that end in _URI and are read by others: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI looks like a path."""

_NAME: Final = re.compile(PLACEHOLDER_RULE, re.ASCII)
_BUCKET: Final = re.compile(r"(?P<scheme>s3|gs|az)://(?P<name>[^/]*)(/.*)?", re.DOTALL)
_BUCKET_NAMES: Final[Mapping[str, re.Pattern[str]]] = {
    "s3": re.compile(r"[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]", re.ASCII),
    "gs": re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){1,220}[a-z0-9]", re.ASCII),
    "az": re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", re.ASCII),
}
"""Each cloud's rule."""
_ADDRESS: Final = re.compile(r"(0x[0-9a-f]+|[0-9]+)(\.(0x[0-9a-f]+|[0-9]+))*", re.ASCII)
"""A machine's, in each way of writing one: 169.254.169.254, 0xa9fea9fe, 2852039166."""


def is_place_name(name: str) -> bool:
    """Return whether a variable of this name may say where data is."""
    return _NAME.fullmatch(name) is not None and not name.startswith(OTHER_PREFIXES)


def is_bucket(uri: str) -> bool:
    """Return whether a URI is an object store's, with a name that its cloud allows. An address of a machine is none."""
    found = _BUCKET.fullmatch(uri)
    if found is None or _ADDRESS.fullmatch(found["name"]):
        return False
    return _BUCKET_NAMES[found["scheme"]].fullmatch(found["name"]) is not None
