"""MLflow's aliases and tags follow the ledger: every difference is corrected, after a death of a writer at any step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import mlflow
from mlflow.exceptions import MlflowException

from training.errors import DeniedError, UnavailableError
from training.format import moment
from training.registry.decisions import CHAMPIONS
from training.registry.headline import headline
from training.registry.ledger import Entry, Ledger, ModelAliases, Pending
from training.registry.mlflow_schema import is_schema_alone, schema_part
from training.registry.mlflow_versions import LIFECYCLE_TAG, registry_faults
from training.registry.verdicts import verdict

logger = logging.getLogger(__name__)

ALIASES: Final = ("champion", "canary")
MAX_TAG_CHARS: Final = 5000
MAX_DESCRIPTION_CHARS: Final = 5000
"""MLflow's column holds no more."""
DECIDED_BY: Final = "\n\nDecided by "
"""What the descriptions hold that are ours to renew."""
ABANDONED_AFTER: Final = timedelta(hours=1)
PAGE_VERSIONS: Final = 2000
MAX_ROUNDS: Final = 20
"""Rounds of comparing and correcting: two suffice for one writer, concurrent writers need some more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What MLflow says otherwise than the ledger."""

    model: str
    what: str
    """`alias champion`, `tag lifecycle of version 3`."""
    found: str | None
    expected: str | None
    mend: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.model}: {self.what} is {_brief(self.found) or 'not there'}, the ledger says {_brief(self.expected) or 'none'}"


def _brief(text: str | None) -> str:
    """Return the first line of a text, at most 200 characters: a description has tables."""
    line = (text or "").partition("\n")[0][:200]
    return line if line == (text or "") else f"{line} …"


def follow(ledger: Ledger, model: str, *, whole: bool = True) -> ModelAliases:
    """Set MLflow's aliases and tags of `model` to what the ledger says, and mark the outbox.

    With `whole` all versions are compared. Without it only those that decisions in the outbox have touched and those that hold an alias:
    the next whole comparison (housekeeping, once a day by default) finds what was changed in MLflow about the others.

    A note in the outbox says that a process is at work. Of two writers at once, one may overwrite what the other has just set to something
    newer; so each looks again after its last write, and ends on a look that found nothing to set right. One that died leaves its note,
    and the work, to the next process.

    Raises:
        UnavailableError: `database.unavailable`, `mlflow.unavailable`; nothing is lost, the next one continues.
        DeniedError: `registry.version_missing`, the ledger names a version that MLflow does not have; all else is set right.
    """
    note = ledger.add_note(model)
    found: list[Difference] = []
    seen: dict[int, Pending] = {}
    for _ in range(MAX_ROUNDS):
        pending = ledger.pending(model)
        # All that were seen: a faster writer may have marked some since, and this one may just have written something older over its work.
        seen |= {entry.number: entry for entry in pending}
        found = differences(ledger, model, pending=None if whole else list(seen.values()))
        if not found:
            # Other writers' notes are theirs to take away, unless they are long dead.
            abandoned = datetime.now(UTC) - ABANDONED_AFTER
            ledger.mark_told([entry.number for entry in pending if not entry.is_note or entry.number == note or entry.since < abandoned])
            return ledger.standing(model)
        for difference in found:
            logger.info("%s", difference)
            with registry_faults():
                _mend(difference)
    message = f"after {MAX_ROUNDS} rounds MLflow still says otherwise than the ledger: {found[0]}"
    raise UnavailableError("mlflow.unavailable", message, hint="find the other process that sets aliases and tags of this model")


def differences(ledger: Ledger, model: str, *, pending: Sequence[Pending] | None = None) -> list[Difference]:
    """Return what MLflow says otherwise than the ledger; empty where they agree. What cannot be set right comes last.

    Args:
        pending: only what these have touched is compared, and what holds an alias; None: everything.

    Raises:
        UnavailableError: `database.unavailable`, `mlflow.unavailable`.
    """
    standing, history = ledger.standing(model), ledger.outline(model)
    with registry_faults():
        client = mlflow.MlflowClient()
        try:
            aliases = dict(client.get_registered_model(model).aliases)
        except MlflowException as err:
            if err.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            aliases = {}
        compared = None if pending is None else _touched(history, standing, pending) | {str(holder) for holder in aliases.values()}
        found = _versions(client, model, compared)
        versions = {str(version.version): dict(version.tags) for version in found}
        described = {str(version.version): str(version.description or "") for version in found}
    by_alias = _aliases(client, model, aliases, standing, versions)
    by_alias.sort(key=lambda difference: difference.expected not in (None, *versions))
    tags = _tags(client, model, versions, expected_tags(history, standing))
    return [*tags, *_descriptions(client, model, described, history), *by_alias]


def _mend(difference: Difference) -> None:
    try:
        difference.mend()
    except MlflowException as err:
        # Two writers of the same tag at the same moment both add it, and the database refuses one: the next round compares again.
        if err.error_code != "BAD_REQUEST":
            raise
        logger.info("not set right yet: %s", err)


def expected_tags(history: Sequence[Entry], standing: ModelAliases) -> dict[str, dict[str, str]]:
    """Return version to its tags, as the ledger wants them."""
    expected: dict[str, dict[str, str]] = {}
    for entry in history:
        tags = expected.setdefault(entry.version, {LIFECYCLE_TAG: "candidate"})
        words = "; ".join(str(reason["words"]) for reason in entry.reasons)
        tags |= {
            "nightshift.decision": entry.outcome,
            "nightshift.reasons": words[:MAX_TAG_CHARS],
            "nightshift.decided_by": entry.decided_by,
        }
        if entry.semantic_version:
            tags["nightshift.semantic_version"] = entry.semantic_version
        if entry.action != "recorded":
            # The present holder of an alias gets its name below; a former holder is archived.
            tags[LIFECYCLE_TAG] = "archived"
            if entry.action in ("promoted", "rolled_back"):
                tags |= {"promoted_by": entry.decided_by, "promoted_at": entry.decided_at.isoformat(timespec="seconds")}
    for alias in ALIASES:
        holder = getattr(standing, alias)
        if holder is not None:
            expected.setdefault(holder.version, {})[LIFECYCLE_TAG] = alias
    return expected


def _aliases(
    client: Any, model: str, found: Mapping[str, object], standing: ModelAliases, versions: Mapping[str, Mapping[str, str]]
) -> list[Difference]:
    wrong = []
    for alias in ALIASES:
        holder, holding = getattr(standing, alias), found.get(alias)
        expected = None if holder is None else holder.version
        held = None if holding is None else str(holding)
        if expected == held:
            continue
        if expected is None:
            mend = _call(client.delete_registered_model_alias, model, alias)
        elif expected in versions:
            mend = _call(client.set_registered_model_alias, model, alias, expected)
        else:
            mend = _call(_refuse_missing, model, alias, expected)
        wrong.append(Difference(model=model, what=f"alias {alias}", found=held, expected=expected, mend=mend))
    return wrong


def _refuse_missing(model: str, alias: str, version: str) -> None:
    message = f"version {version} of {model} is {alias} in the ledger, and MLflow's registry does not have it"
    raise DeniedError("registry.version_missing", message, hint="bring it back from MLflow's backup, or roll back to another version")


def _tags(
    client: Any, model: str, versions: Mapping[str, Mapping[str, str]], expected: Mapping[str, Mapping[str, str]]
) -> list[Difference]:
    return [
        Difference(
            model=model,
            what=f"tag {name} of version {version}",
            found=versions[version].get(name),
            expected=value,
            mend=_call(client.set_model_version_tag, model, version, name, value),
        )
        for version, tags in expected.items()
        if version in versions
        for name, value in tags.items()
        if versions[version].get(name) != value
    ]


def _descriptions(client: Any, model: str, found: Mapping[str, str], history: Sequence[Entry]) -> list[Difference]:
    """Compare the versions' descriptions; a person's stays, which is one without `DECIDED_BY`.

    The schema, which the registration has written, stays below the decision.
    """
    expected = {
        entry.version: description_of(entry, schema=schema_part(found[entry.version])) for entry in history if entry.version in found
    }
    return [
        Difference(
            model=model,
            what=f"description of version {version}",
            found=found[version],
            expected=text,
            mend=_call(client.update_model_version, model, version, text),
        )
        for version, text in expected.items()
        if found[version] != text and (not found[version] or DECIDED_BY in found[version] or is_schema_alone(found[version]))
    ]


def description_of(entry: Entry, *, schema: str = "") -> str:
    """Return a version's description: the last decision about it in one line, who decided and when, and the reason of each gate.

    Args:
        schema: what follows it (`training.registry.mlflow_schema`).
    """
    tail = f"\n\n{schema}" if schema else ""
    at = moment(entry.decided_at.isoformat(timespec="seconds"))
    gates = [f"| {_cell(reason['gate'])} | {verdict(reason)} | {_cell(reason['words'])} |" for reason in entry.reasons]
    lines = [f"{headline(entry)}{DECIDED_BY}{entry.decided_by}, {at}.", "", "| gate | verdict | reason |", "| --- | --- | --- |", *gates]
    # Whole lines: half a row of the table would be shown as text.
    while len("\n".join(lines)) + len(tail) > MAX_DESCRIPTION_CHARS:
        lines.pop()
    return "\n".join(lines) + tail


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _call(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments)


def _touched(history: Sequence[Entry], standing: ModelAliases, pending: Sequence[Pending]) -> set[str]:
    """Return the versions that decisions have touched since the oldest pending one, itself included."""
    keys = {entry.key for entry in pending}
    start = next((place for place, entry in enumerate(history) if entry.key in keys), len(history))
    touched = {entry.version for entry in history[start:]}
    # The former holder of an alias may have to be archived.
    for actions in (CHAMPIONS, {"canary"}):
        touched.update([entry.version for entry in history[:start] if entry.action in actions][-1:])
    holders = (standing.champion, standing.canary)
    return touched | {holder.version for holder in holders if holder is not None}


def _versions(client: Any, model: str, compared: Collection[str] | None) -> list[Any]:
    """Return MLflow's versions of a model, or those of `compared` that there are."""
    if compared is not None:
        one_by_one = [_version(client, model, version) for version in sorted(compared)]
        return [version for version in one_by_one if version is not None]
    found, token = [], None
    while True:
        page = client.search_model_versions(f"name = '{model}'", max_results=PAGE_VERSIONS, page_token=token)
        found += list(page)
        token = page.token
        if not token:
            return found


def _version(client: Any, model: str, version: str) -> Any | None:
    try:
        return client.get_model_version(model, version)
    except MlflowException as err:
        if err.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
