"""URIs of sources: what a YAML may say, and how `${NAME_URI}` is filled in when a run starts.

Many people write YAML files and start runs, the operator sets the environment. So a place on this machine's disks can be named by the
environment alone, and a literal URI must be an object store's. A variable of others, as MLflow's, is refused by its name: nothing reads
it. No message has the value of a variable. Every check is made on every percent-decoding of the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as LocalPath
from typing import Final
from urllib.parse import unquote

from training.errors import Problem, SpecError, shown, spec_error
from training.installation import OTHER_PREFIXES, PLACEHOLDER_RULE, Variable, is_bucket, is_place_name
from training.spec.pipeline_spec import Alerts, PipelineSpec
from training.spec.reader.yaml import Path, dotted
from training.spec.rules.rule_problems import Violation
from training.spec.sections.data import Data

PLACES: Final = Variable(
    name="…_URI",
    kind="URI",
    default="as noted in `$NIGHTSHIFT_HOME/sources.json`, which the laptop's commands write",
    meaning="what YAML files name as `${…_URI}`, filled in when a run starts: where a source is (only names of `NIGHTSHIFT_PLACES` and "
    "of that file), or `alerts.webhook`",
)
"""A row of the reference: the names are those of the YAML files."""
MAX_DECODINGS: Final = 8
MAX_PATH_CHARS: Final = 4096
OF_OTHERS: Final = f"names a variable of others: {', '.join(f'{prefix}…' for prefix in OTHER_PREFIXES)}"

_PLACEHOLDER = re.compile(rf"\$\{{({PLACEHOLDER_RULE})\}}(?=/|$)", re.ASCII)
_IN_URI = re.compile(r"[%#? ]")
_STRANGE = re.compile(r"[\\#?@\x00-\x1f\x7f]|[^\S ]")
# `//host/share` is not this machine's; control characters and bytes that are not UTF-8 have no place in a URI or a log.
_PATH = re.compile(r"/(?!/)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*")
_WEBHOOK = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")
PLACE_HINT: Final = "name the place by an environment variable, ${SHOP_URI}/clicks, or write s3://bucket/…, gs://… or az://…"


def forbidden_uris(data: Data) -> Iterator[Violation]:
    """Yield a violation for each source whose URI a YAML may not name."""
    for path, uri in _uris(data):
        fault = place_fault(uri)
        if fault:
            yield Violation(path, "uri.forbidden", f"{shown(uri)} {fault}", PLACE_HINT)


def forbidden_webhook(alerts: Alerts, data: Data) -> Iterator[Violation]:
    """Yield a violation for a webhook that is not a placeholder, or whose variable is another's or that of a source."""
    match = _PLACEHOLDER.match(alerts.webhook or "")
    message = ""
    if alerts.webhook is not None and (match is None or match.end() != len(alerts.webhook)):
        message = "the address of a webhook is often a secret, and the file is none"
    elif match is not None and match[1].startswith(OTHER_PREFIXES):
        message = f"{match[0]} {OF_OTHERS}"
    elif match is not None and match[1] in _names_in(data):
        message = f"{match[1]} says where data is, and a webhook's address is no such place"
    if message:
        yield Violation(("alerts", "webhook"), "uri.forbidden", message, "put it in an environment variable and write ${ALERTS_URI}")


def resolve_uris(spec: PipelineSpec, places: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> PipelineSpec:
    """Return the spec with every `${NAME_URI}` filled in. A webhook whose variable is not set is dropped.

    Args:
        places: variables that a source may name: those of the installation; of a person's own shell, all.
        environ: has the webhook's.

    Raises:
        SpecError: `uri.unset`, naming the variable and what to set it to; `uri.forbidden`, its value is not a place for data, or the
            webhook's variable is a place.
    """
    problems: list[Problem] = []
    found = {path: _resolved(path, uri, places, problems) for path, uri in _uris(spec.data)}
    webhook = _webhook(spec.alerts, environ, problems)
    if problems:
        raise SpecError(spec.name, problems)
    union = tuple(
        table.model_copy(update={"uri": found.get(("data", "source", "union", index, "uri"))})
        for index, table in enumerate(spec.data.source.union)
    )
    source = spec.data.source.model_copy(update={"uri": found.get(("data", "source", "uri")), "union": union})
    features = tuple(
        table.model_copy(update={"uri": found.get(("data", "features", index, "uri"))}) for index, table in enumerate(spec.data.features)
    )
    data = spec.data.model_copy(update={"source": source, "features": features})
    return spec.model_copy(update={"data": data, "alerts": spec.alerts.model_copy(update={"webhook": webhook})})


def resolve_place(uri: str, field: str, places: Mapping[str, str]) -> tuple[str, str]:
    """Return a trigger's URI with its `${NAME_URI}` filled in, and the place that the variable names: what a path may not leave.

    Args:
        field: dotted path of the key that has the URI, for messages.
        places: the variables that the pipeline's own sources name.

    Raises:
        SpecError: `uri.unset`, `uri.forbidden`.
    """
    problems: list[Problem] = []
    path: Path = tuple(field.split("."))
    placeholder = _PLACEHOLDER.match(uri)
    if placeholder is not None and placeholder[1] not in places:
        named = ", ".join(f"${{{name}}}" for name in sorted(places)) or "none"
        message = f"{placeholder[0]} is not a place of this pipeline's data"
        hint = f"a trigger may name the variables that the pipeline's YAML names for its data: {named}; or write s3://bucket/…"
        raise spec_error("trigger", "uri.forbidden", message, hint=hint, field=field)
    found = _resolved(path, uri, places, problems)
    root = found if placeholder is None else _resolved(path, placeholder[0], places, [])
    if problems:
        raise SpecError("trigger", problems)
    return found, root


def names_of_places(spec: PipelineSpec) -> set[str]:
    """Return the environment variables that a spec's sources name."""
    return _names_in(spec.data)


def webhook_variable(webhook: str | None) -> str:
    """Return the variable that `alerts.webhook` names; empty where it names none, or one of others."""
    match = _PLACEHOLDER.fullmatch(webhook or "")
    return match[1] if match is not None and is_place_name(match[1]) else ""


def _names_in(data: Data) -> set[str]:
    return {found[1] for _path, uri in _uris(data) if (found := _PLACEHOLDER.match(uri))}


def _uris(data: Data) -> Iterator[tuple[Path, str]]:
    for path, table in data.tables():
        if table.uri is not None:
            yield (*path, "uri"), table.uri


def place_fault(uri: str) -> str:
    """Return what is wrong with a URI of a YAML or a trigger, or nothing."""
    placeholder = _PLACEHOLDER.match(uri)
    rest = uri[placeholder.end() :] if placeholder else uri
    if placeholder is not None and placeholder[1].startswith(OTHER_PREFIXES):
        return OF_OTHERS
    if "$" in rest:
        return f"has a $ that begins no placeholder: one stands at the start alone, and matches {PLACEHOLDER_RULE}"
    # A folder's name may have a blank; a bucket that turns out to be behind the placeholder refuses it.
    fault = _path_fault(rest, blanks=placeholder is not None)
    if fault or placeholder:
        return fault
    return "" if is_bucket(uri) else "is not a place that a YAML may name"


def _path_fault(text: str, *, blanks: bool = False) -> str:
    for _ in range(MAX_DECODINGS):
        found = _STRANGE.search(text) or (None if blanks else re.search(" ", text))
        if found:
            return f"has {shown(found[0])}"
        if ".." in text.split("/"):
            return "climbs by .."
        decoded = unquote(text)
        if decoded == text:
            return ""
        text = decoded
    return "is percent-encoded again and again"


def in_uri(path: str) -> str:
    """Return a path as a `file://` URI has it: what would end it, or be decoded, is percent-encoded."""
    return _IN_URI.sub(lambda found: f"%{ord(found[0]):02X}", path)


def _local_path(place: str) -> str:
    """Return the path that the value of a variable names: itself, or that of a `file:///` URI; empty where it names none."""
    if place.startswith("/"):
        return place
    path = unquote(place.removeprefix("file://"), errors="surrogateescape")
    is_one = place.startswith("file:///") and not re.search("[?#]", place) and ".." not in path.split("/")
    return path if is_one else ""


def _resolved(path: Path, uri: str, places: Mapping[str, str], problems: list[Problem]) -> str:
    placeholder = _PLACEHOLDER.match(uri)
    if placeholder is None:
        return uri
    name = placeholder[1]
    # By its name, before its value is looked at.
    root = places.get(name, "").strip() if is_place_name(name) else ""
    if not root:
        data = uri[placeholder.end() :].lstrip("/") or "the data"
        hint = (
            f"set {name} to the place that holds {data}: a folder, or s3://bucket/prefix; "
            "on a laptop, `make start` passes it to the services; elsewhere, name it in NIGHTSHIFT_PLACES too"
        )
        message = f"the environment variable {name} is not set as a place of data"
        problems.append(Problem(code="uri.unset", message=message, hint=hint, field=dotted(path)))
        return uri
    if not is_place(root):
        message = f"the environment variable {name} names no place for data"
        hint = "an absolute path, file:///…, s3://bucket/prefix, gs://… or az://…"
        problems.append(Problem(code="uri.forbidden", message=message, hint=hint, field=dotted(path)))
        return uri
    rest = uri[placeholder.end() :]
    if local := _local_path(root):
        # A path may have blanks, `#` and `?`: what it becomes is encoded, and has no `..`.
        return LocalPath(os.path.normpath(local)).as_uri().rstrip("/") + in_uri(unquote(rest))
    fault = _path_fault(rest)
    if fault:
        message, hint = f"{shown(uri)} {fault}, and {name} names a bucket", "rename what it names in the bucket"
        problems.append(Problem(code="uri.forbidden", message=message, hint=hint, field=dotted(path)))
    return root.rstrip("/") + rest


def is_place(text: str) -> bool:
    """Return whether the value of a variable names a place for data: an absolute path, or a URI without user, password or query."""
    if path := _local_path(text):
        return len(path) <= MAX_PATH_CHARS and bool(_PATH.fullmatch(path)) and os.path.normpath(path) != "/"
    return is_bucket(text) and not _path_fault(text)


def _webhook(alerts: Alerts, environ: Mapping[str, str], problems: list[Problem]) -> str | None:
    name = webhook_variable(alerts.webhook)
    if not name:
        return alerts.webhook
    url = environ.get(name, "").strip()
    if not url:
        return None
    if not _WEBHOOK.fullmatch(url):
        message = f"the environment variable {name} is not an http or https address"
        problems.append(Problem(code="uri.forbidden", message=message, hint="https://host/path", field="alerts.webhook"))
    return url


def unset_webhook(alerts: Alerts) -> str:
    """Return the environment variable that `alerts.webhook` names and that is not set; empty where there is none."""
    name = webhook_variable(alerts.webhook)
    return "" if not name or os.environ.get(name, "").strip() else name
