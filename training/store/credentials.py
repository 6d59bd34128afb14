"""With which identity a bucket may be opened: keys and token files of the environment, unless an operator allows more.

Without keys, clients of object stores ask the metadata service of the cloud for the machine's identity: a place that a YAML names would be
opened with rights that nobody gave it. What is not configured is refused before a client exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from training.errors import DeniedError, spec_error
from training.installation import Variable

IDENTITY: Final = Variable(
    name="NIGHTSHIFT_CLOUD_IDENTITY",
    kind="names",
    default="none: keys and token files of the environment alone",
    meaning="identities that a bucket may be opened with where the environment has neither keys nor token files, comma-separated: "
    "`metadata`, the machine's own, which the cloud's metadata service gives; `anonymous`, requests without a signature",
)
METADATA: Final = "metadata"
ANONYMOUS: Final = "anonymous"
ACCOUNT: Final = Variable(
    name="AZURE_STORAGE_ACCOUNT_NAME", set_by="others", meaning="Azure: the account of containers, `az://container`; read by obstore"
)
EMULATOR: Final = Variable(name="AZURE_STORAGE_USE_EMULATOR", set_by="others", meaning="Azure: use the local emulator; read by obstore")
CONFIGURED: Final[Mapping[str, tuple[frozenset[str], ...]]] = {
    "s3": (
        frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
        frozenset({"AWS_WEB_IDENTITY_TOKEN_FILE"}),
        frozenset({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}),
        frozenset({"AWS_CONTAINER_CREDENTIALS_FULL_URI"}),
    ),
    "gs": (
        frozenset({"GOOGLE_SERVICE_ACCOUNT"}),
        frozenset({"GOOGLE_SERVICE_ACCOUNT_PATH"}),
        frozenset({"GOOGLE_SERVICE_ACCOUNT_KEY"}),
        frozenset({"GOOGLE_APPLICATION_CREDENTIALS"}),
        frozenset({"GOOGLE_BEARER_TOKEN"}),
    ),
    "az": (
        frozenset({"AZURE_STORAGE_ACCOUNT_KEY"}),
        frozenset({"AZURE_STORAGE_ACCESS_KEY"}),
        frozenset({"AZURE_STORAGE_MASTER_KEY"}),
        frozenset({"AZURE_STORAGE_SAS_KEY"}),
        frozenset({"AZURE_STORAGE_SAS_TOKEN"}),
        frozenset({"AZURE_STORAGE_TOKEN"}),
        frozenset({"AZURE_CLIENT_SECRET"}),
        frozenset({"AZURE_STORAGE_CLIENT_SECRET"}),
        frozenset({"AZURE_FEDERATED_TOKEN_FILE"}),
        frozenset({"AZURE_USE_AZURE_CLI"}),
        frozenset({EMULATOR.name}),
    ),
}
"""Scheme to the sets of variables each of which is an identity; obstore reads them."""
KEYS_HINT: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY",
}


def identity_options(uri: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the client's option for requests without a signature, if that is the identity of a bucket; else nothing.

    Args:
        uri: of the bucket.

    Raises:
        DeniedError: `storage.identity`, there is none, and an operator has allowed no other.
        SpecError: `storage.account`, the bucket is Azure's, and no account is set; `settings.identity`.
    """
    scheme, allowed = urlsplit(uri).scheme, _allowed(environ)
    if scheme == "az" and not ACCOUNT.text(environ) and not EMULATOR.text(environ):
        message, hint = f"{uri} has no account", f"set {ACCOUNT.name} to the account that the container is in"
        raise spec_error("environment", "storage.account", message, hint=hint, field=ACCOUNT.name)
    if METADATA in allowed or _is_configured(scheme, environ):
        return {}
    if ANONYMOUS in allowed:
        return {"skip_signature": True}
    hint = (
        f"set {KEYS_HINT[scheme]}; where the machine's own identity may open it, {IDENTITY.name}={METADATA}; for a public one, {ANONYMOUS}"
    )
    raise DeniedError("storage.identity", f"{uri} cannot be opened: the environment has neither keys nor a token file for it", hint=hint)


def _allowed(environ: Mapping[str, str]) -> set[str]:
    found = {part for piece in IDENTITY.text(environ).split(",") if (part := piece.strip())}
    if not found <= {METADATA, ANONYMOUS}:
        message, hint = "has what is no identity", f"{METADATA}, {ANONYMOUS}, or both, comma-separated"
        raise spec_error("environment", "settings.identity", message, hint=hint, field=IDENTITY.name)
    return found


def _is_configured(scheme: str, environ: Mapping[str, str]) -> bool:
    known = {name for name, value in environ.items() if value.strip()}
    if any(names <= known for names in CONFIGURED[scheme]):
        return True
    # A person's own login, as `gcloud auth application-default login` writes it; clients of Google look there first.
    return scheme == "gs" and (Path.home() / ".config" / "gcloud" / "application_default_credentials.json").is_file()
