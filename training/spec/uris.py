"""URIs of sources: what a YAML may say, and how `${NAME_URI}` is filled in when a run starts.

Many people write YAML files, the operator sets the environment. So a place on this machine's disks can be named by
the environment alone, and a literal URI must be an object store's. Every check is made on every percent-decoding of the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as LocalPath
from typing import Final
from urllib.parse import unquote

from training.errors import Problem, SpecError, shown
from training.installation import Variable
from training.spec.models import Alerts, PipelineSpec
from training.spec.rules.findings import Finding
from training.spec.sections.data import Data
from training.spec.yaml_reader import Path, dotted

PLACES: Final = Variable(
    name="…_URI",
    kind="URI",
    default="as noted in `$NIGHTSHIFT_HOME/sources.json`, which the laptop's commands write",
    meaning="the places that YAML files name as `${…_URI}`, filled in when a run starts: where a source is, or `alerts.webhook`",
)
"""A row of the reference: the names are those of the YAML files."""
PLACEHOLDER_RULE: Final = "[A-Z][A-Z0-9_]*_URI"
MAX_DECODINGS: Final = 8
MAX_PATH_CHARS: Final = 4096

_PLACEHOLDER = re.compile(rf"\$\{{({PLACEHOLDER_RULE})\}}(?=/|$)", re.ASCII)
_BUCKET = re.compile(r"(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/.*)?", re.ASCII | re.DOTALL)
_LOCAL = re.compile(r"file:///[^/].*", re.DOTALL)
# `//host/share` is not this machine's; control characters and bytes that are not UTF-8 have no place in a URI or a log.
_PATH = re.compile(r"/(?!/)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*")
_WEBHOOK = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")
PLACE_HINT: Final = "name the place by an environment variable, ${SHOP_URI}/clicks, or write s3://bucket/…, gs://… or az://…"


def forbidden_uris(data: Data) -> Iterator[Finding]:
    """Yield a finding for each source whose URI a YAML may not name."""
    for path, uri in _uris(data):
        fault = place_fault(uri)
        if fault:
            yield Finding(path, "uri.forbidden", f"{shown(uri)} {fault}", PLACE_HINT)


def forbidden_webhook(alerts: Alerts) -> Iterator[Finding]:
    """Yield a finding for a webhook that is not a placeholder."""
    match = _PLACEHOLDER.match(alerts.webhook or "")
    if alerts.webhook is not None and (match is None or match.end() != len(alerts.webhook)):
        message = "the address of a webhook is often a secret, and the file is none"
        yield Finding(("alerts", "webhook"), "uri.forbidden", message, "put it in an environment variable and write ${ALERTS_URI}")


def resolve_uris(spec: PipelineSpec, environ: Mapping[str, str] = os.environ) -> PipelineSpec:
    """Return the spec with every `${NAME_URI}` filled in. A webhook whose variable is not set is dropped.

    Raises:
        SpecError: `uri.unset`, naming the variable and what to set it to; `uri.forbidden`, its value is not a place for data.
    """
    problems: list[Problem] = []
    places = {path: _resolved(path, uri, environ, problems) for path, uri in _uris(spec.data)}
    webhook = _webhook(spec.alerts, environ, problems)
    if problems:
        raise SpecError(spec.name, problems)
    union = tuple(
        table.model_copy(update={"uri": places.get(("data", "source", "union", index, "uri"))})
        for index, table in enumerate(spec.data.source.union)
    )
    source = spec.data.source.model_copy(update={"uri": places.get(("data", "source", "uri")), "union": union})
    features = tuple(
        table.model_copy(update={"uri": places.get(("data", "features", index, "uri"))}) for index, table in enumerate(spec.data.features)
    )
    data = spec.data.model_copy(update={"source": source, "features": features})
    return spec.model_copy(update={"data": data, "alerts": spec.alerts.model_copy(update={"webhook": webhook})})


def resolve_place(uri: str, field: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return a URI with its `${NAME_URI}` filled in, and the place that the variable names: what a path may not leave.

    Args:
        field: dotted path of the key that has the URI, for messages.

    Raises:
        SpecError: `uri.unset`, `uri.forbidden`.
    """
    problems: list[Problem] = []
    path: Path = tuple(field.split("."))
    placeholder = _PLACEHOLDER.match(uri)
    found = _resolved(path, uri, environ, problems)
    root = found if placeholder is None else _resolved(path, placeholder[0], environ, [])
    if problems:
        raise SpecError("trigger", problems)
    return found, root


def names_of_places(spec: PipelineSpec) -> set[str]:
    """Return the environment variables that a spec's sources name."""
    return {found[1] for _path, uri in _uris(spec.data) if (found := _PLACEHOLDER.match(uri))}


def _uris(data: Data) -> Iterator[tuple[Path, str]]:
    for path, table in data.tables():
        if table.uri is not None:
            yield (*path, "uri"), table.uri


def place_fault(uri: str) -> str:
    """Return what is wrong with a URI of a YAML or a trigger, or nothing."""
    placeholder = _PLACEHOLDER.match(uri)
    rest = uri[placeholder.end() :] if placeholder else uri
    if "$" in rest:
        return f"has a $ that begins no placeholder: one stands at the start alone, and matches {PLACEHOLDER_RULE}"
    fault = _path_fault(rest)
    if fault or placeholder:
        return fault
    return "" if _BUCKET.fullmatch(uri) else "is not a place that a YAML may name"


def _path_fault(text: str) -> str:
    for _ in range(MAX_DECODINGS):
        found = re.search(r"[\\#?@\s\x00-\x1f\x7f]", text)
        if found:
            return f"has {shown(found[0])}"
        if ".." in text.split("/"):
            return "climbs by .."
        decoded = unquote(text)
        if decoded == text:
            return ""
        text = decoded
    return "is percent-encoded again and again"


def _resolved(path: Path, uri: str, environ: Mapping[str, str], problems: list[Problem]) -> str:
    placeholder = _PLACEHOLDER.match(uri)
    if placeholder is None:
        return uri
    name = placeholder[1]
    root = environ.get(name, "").strip()
    if not root:
        data = uri[placeholder.end() :].lstrip("/") or "the data"
        hint = (
            f"set {name} to the place that holds {data}: a folder, or s3://bucket/prefix; "
            "on a laptop, `make start` passes it to the services"
        )
        problems.append(Problem(code="uri.unset", message=f"the environment variable {name} is not set", hint=hint, field=dotted(path)))
        return uri
    if not is_place(root):
        message = f"the environment variable {name} names no place for data: {shown(root)}"
        hint = "an absolute path, file:///…, s3://bucket/prefix, gs://… or az://…"
        problems.append(Problem(code="uri.forbidden", message=message, hint=hint, field=dotted(path)))
    elif root.startswith("/"):
        # A path may have blanks, `#` and `?`: what it becomes is encoded, and has no `..`.
        return LocalPath(os.path.normpath(root)).as_uri().rstrip("/") + uri[placeholder.end() :]
    return root.rstrip("/") + uri[placeholder.end() :]


def is_place(text: str) -> bool:
    """Return whether the value of a variable names a place for data: an absolute path, or a URI without user, password or query."""
    if text.startswith("/"):
        return len(text) <= MAX_PATH_CHARS and bool(_PATH.fullmatch(text)) and os.path.normpath(text) != "/"
    return bool((_LOCAL.fullmatch(text) or _BUCKET.fullmatch(text)) and not _path_fault(text))


def _webhook(alerts: Alerts, environ: Mapping[str, str], problems: list[Problem]) -> str | None:
    placeholder = _PLACEHOLDER.match(alerts.webhook or "")
    if placeholder is None:
        return alerts.webhook
    url = environ.get(placeholder[1], "").strip()
    if not url:
        return None
    if not _WEBHOOK.fullmatch(url):
        # The value stays out of the message: it is often a secret.
        message = f"the environment variable {placeholder[1]} is not an http or https address"
        problems.append(Problem(code="uri.forbidden", message=message, hint="https://host/path", field="alerts.webhook"))
    return url


def unset_webhook(alerts: Alerts, environ: Mapping[str, str] = os.environ) -> str:
    """Return the environment variable that `alerts.webhook` names and that is not set; empty where there is none."""
    placeholder = _PLACEHOLDER.match(alerts.webhook or "")
    return "" if placeholder is None or environ.get(placeholder[1], "").strip() else placeholder[1]
