"""MLflow's aliases `champion` and `canary`: which weights they serve, which the ledger names, and what is done about a difference.

An alias that was moved by another hand is never followed. One that serves what was never decided is set back at once. `champion` on a
former champion stays for a day, with an alert: in an emergency, going back comes first and its record second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from training.errors import DataError
from training.registry.ledger.alias_findings import Kind, RecordedFinding
from training.registry.ledger.decisions import CHAMPIONS, former_champions
from training.registry.ledger.entries import DIGEST_CHARS
from training.registry.ledger.ledger import AliasHolder, name_of
from training.registry.mlflow.comparison import MLflowState
from training.registry.mlflow.restoring import origin_of, registered_again

ALIASES: Final = ("champion", "canary")
KEPT: Final = timedelta(hours=24)
"""How long a former champion that a person has set keeps the alias without a record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AliasFinding:
    """What there is to alert about an alias."""

    alias: str
    kind: Kind
    served: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What MLflow says otherwise than the ledger."""

    model: str
    what: str
    """`alias champion`, `tag lifecycle of version 3`."""
    found: str | None
    expected: str | None
    mend: Callable[[], object] | None
    """None: it stays for now."""
    finding: AliasFinding | None = None

    def __str__(self) -> str:
        kept = "" if self.mend is not None or self.finding is None else f" ({self.finding.words})"
        return f"{self.model}: {self.what} is {_brief(self.found) or 'not there'}, the ledger says {_brief(self.expected) or 'none'}{kept}"


def _brief(text: str | None) -> str:
    """Return the first line of a text, at most 200 characters: a description has tables."""
    line = (text or "").partition("\n")[0][:200]
    return line if line == (text or "") else f"{line} …"


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstances:
    """What a judgement about an alias takes into account besides the look."""

    now: datetime
    findings: list[RecordedFinding]
    """Of the model, that have not ended."""
    lost: Mapping[str, str]
    """Weights that could not be registered again in this comparison, and why."""
    is_ordered: bool = False
    """A person orders that the aliases are set back."""


def alias_differences(look: MLflowState, given: Circumstances) -> list[Difference]:
    """Return how MLflow's aliases differ from the ledger: by weights, whatever the numbers of the versions are."""
    return [difference for alias in ALIASES if (difference := _difference(look, alias, given)) is not None]


def _difference(look: MLflowState, alias: str, given: Circumstances) -> Difference | None:
    holder: AliasHolder | None = getattr(look.standing, alias)
    number = look.aliases.get(alias)
    place = None if holder is None else look.registration(holder.weights_digest)
    if (holder is None and number is None) or (place is not None and number == place.number):
        return None
    served = None if number is None else look.weights_at(number)
    found = None if number is None else f"version {number} ({_weights(served)})"
    expected = None if holder is None else f"version {name_of(holder)} (weights {holder.weights_digest[:DIGEST_CHARS]})"
    difference = Difference(model=look.model, what=f"alias {alias}", found=found, expected=expected, mend=_setter(look, alias, holder))
    # Else late or lost: no such version, or another one of the same weights, whose logged model may be gone.
    is_other = number is not None and served is not None and (holder is None or served != holder.weights_digest)
    finding = _moved_by_hand(look, alias, str(number), str(served), holder, given) if is_other else None
    if finding is not None and finding.kind == "former_champion" and not given.is_ordered:
        first_seen = next((known.first_seen_at for known in given.findings if _is_same(known, finding)), given.now)
        if given.now < first_seen + KEPT:
            ends = f"; without a record it is set back after {first_seen + KEPT:%Y-%m-%d %H:%M} UTC"
            return replace(difference, mend=None, finding=replace(finding, words=finding.words + ends))
    if holder is not None and place is None and holder.weights_digest in given.lost:
        return _unserved(look, alias, number, holder, difference, given.lost[holder.weights_digest])
    return replace(difference, finding=finding)


def _moved_by_hand(
    look: MLflowState, alias: str, number: str, served: str, holder: AliasHolder | None, given: Circumstances
) -> AliasFinding | None:
    """Return the finding about an alias that serves other weights than the ledger says; None where MLflow is only late."""
    is_known = any((known.alias, known.served) == (alias, served) for known in given.findings)
    # A process that has noted an earlier revision, this one or another, may have set what that said.
    is_contended = any(note["revision"] < look.standing.revision for note in look.standing.mirrors.values())
    is_late = _has_moved(look, alias) or (is_contended and not is_known)
    was_champion = served in former_champions(look.history)
    if is_late and (was_champion or served in {entry.weights_digest for entry in look.history if entry.action == "canary"}):
        return None
    names = {entry.weights_digest: name_of(entry) for entry in look.history}
    known = names.get(served, "not in the ledger")
    now = f"the alias {alias} of {look.model} serves version {number} of MLflow ({known}, {_weights(served)})"
    ledger = "none" if holder is None else f"version {name_of(holder)} (weights {holder.weights_digest[:DIGEST_CHARS]})"
    back = f"python -m training.registry check {look.model} --repair"
    if alias == "champion" and was_champion and holder is not None:
        record = f'nightshift rollback {look.model} --to {names[served]} --reason "…"'
        words = f"{now}, a former champion; the ledger's champion is {ledger}. `{record}` records it, `{back}` sets it back"
        return AliasFinding(alias=alias, kind="former_champion", served=served, words=words)
    words = f"{now}, which the ledger never made {alias}; the ledger says {ledger}. It is set back at once (`{back}` does the same)"
    return AliasFinding(alias=alias, kind="not_decided", served=served, words=words)


def _has_moved(look: MLflowState, alias: str) -> bool:
    """Return whether the ledger has decided about the alias since MLflow last agreed: a canary's decision says nothing of the champion."""
    moves = [entry for entry in look.history if entry.revision is not None and entry.revision > look.standing.mirrored_revision]
    return any(alias == "canary" or entry.action in CHAMPIONS for entry in moves)


def _unserved(look: MLflowState, alias: str, number: str | None, holder: AliasHolder, difference: Difference, why: str) -> Difference:
    """Return the difference of an alias whose version cannot be served: the alias goes, as it would serve other weights, or none."""
    words = (
        f"the {alias} of {look.model}, version {name_of(holder)} (weights {holder.weights_digest[:DIGEST_CHARS]}), is not in MLflow and "
        f"cannot be registered again: {why}. The alias is removed; "
        f"`nightshift rollback {look.model} --to … --reason …` names another version"
    )
    finding = AliasFinding(alias=alias, kind="missing", served="", words=words)
    mend = None if number is None else partial(look.writer.delete_registered_model_alias, look.model, alias)
    return replace(difference, mend=mend, finding=finding)


def _setter(look: MLflowState, alias: str, holder: AliasHolder | None) -> Callable[[], object]:
    if holder is None:
        return partial(look.writer.delete_registered_model_alias, look.model, alias)
    return partial(_seat, look, alias, holder)


def _seat(look: MLflowState, alias: str, holder: AliasHolder) -> None:
    """Set an alias to the weights of its holder, registered again where MLflow does not have them.

    Raises:
        DataError: `registry.rebuild`.
    """
    place = look.registration(holder.weights_digest)
    if place is None:
        deleted = next((entry.deleted_at for entry in reversed(look.history) if entry.weights_digest == holder.weights_digest), None)
        if deleted is not None:
            raise DataError("registry.rebuild", f"retention deleted the weights on {deleted:%Y-%m-%d}")
        origin = origin_of(look.ledger, look.model, holder)
        place = registered_again(look.store, look.client, look.model, origin, look.hints.get(holder.weights_digest))
        look.note(holder.weights_digest, place)
    look.writer.set_registered_model_alias(look.model, alias, place.number)


def _is_same(known: RecordedFinding, finding: AliasFinding) -> bool:
    return (known.alias, known.kind, known.served) == (finding.alias, finding.kind, finding.served)


def _weights(served: str | None) -> str:
    if served is None:
        return "deleted"
    return f"weights {served[:DIGEST_CHARS]}" if served else "weights that Nightshift did not register"
