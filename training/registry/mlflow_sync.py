"""MLflow's aliases and tags follow the ledger: every difference is corrected, after a death of a writer at any step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from mlflow.exceptions import MlflowException

from training.errors import DataError, UnavailableError
from training.escapes import for_markdown
from training.format import moment
from training.registry.findings import Findings
from training.registry.headline import headline
from training.registry.ledger import Entry, Ledger, ModelAliases, Pending
from training.registry.mlflow_aliases import ALIASES, AliasFinding, Circumstances, Difference, alias_differences
from training.registry.mlflow_look import Look, touched
from training.registry.mlflow_schema import is_schema_alone, schema_part
from training.registry.mlflow_versions import LIFECYCLE_TAG, registry_faults
from training.registry.verdicts import verdict
from training.store import Store

logger = logging.getLogger(__name__)

MAX_TAG_CHARS: Final = 5000
MAX_DESCRIPTION_CHARS: Final = 5000
"""MLflow's column holds no more."""
DECIDED_BY: Final = "\n\nDecided by "
"""What the descriptions hold that are ours to renew."""
ABANDONED_AFTER: Final = timedelta(hours=1)
MAX_ROUNDS: Final = 20
"""Rounds of comparing and correcting: two suffice for one writer, concurrent writers need some more."""


def follow(
    ledger: Ledger,
    store: Store,
    model: str,
    *,
    whole: bool = True,
    is_ordered: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> ModelAliases:
    """Set MLflow's aliases and tags of `model` to what the ledger says, and mark the outbox.

    With `whole` all versions are compared. Without it only those that decisions in the outbox have touched and those that hold an alias:
    the next whole comparison (housekeeping, once a day by default) finds what was changed in MLflow about the others. A version that is
    missing and holds an alias is registered again. What another hand did to an alias becomes a finding (`training.registry.findings`).

    A note in the outbox says that a process is at work. Of two writers at once, one may overwrite what the other has just set to something
    newer; so each looks again after its last write, and ends on a look that found nothing to set right. One that died leaves its note,
    and the work, to the next process.

    Args:
        is_ordered: a person orders it: an alias on a former champion is set back at once, too.
        now: the clock.

    Raises:
        UnavailableError: `database.unavailable`, `mlflow.unavailable`; nothing is lost, the next one continues.
    """
    note, findings = ledger.add_note(model), Findings(ledger.database_url)
    seen: dict[int, Pending] = {}
    given = Circumstances(now=now(), findings=[], lost={}, is_ordered=is_ordered)
    has_written = False
    for _ in range(MAX_ROUNDS):
        pending, moved = ledger.pending(model), ledger.last_move(model)
        # All that were seen: a faster writer may have marked some since, and this one may just have written something older over its work.
        seen |= {entry.number: entry for entry in pending}
        # Who began after the last move, dead or alive, can have set nothing older.
        others = any(entry.is_note and entry.number != note and entry.number < moved for entry in pending)
        given = replace(given, findings=findings.open(model), is_contended=has_written or others)
        found, standing = _compared(ledger, store, model, given, pending=None if whole else list(seen.values()))
        if ledger.standing(model).revision != standing.revision:
            continue
        kept = [_noted(findings, model, difference.finding, given.now) for difference in found if difference.finding is not None]
        wrong = [difference for difference in found if difference.mend is not None]
        if not wrong:
            findings.end(model, now=given.now, but=kept)
            # What is kept is said of this revision, too: an alias that is moved later was moved by another hand.
            ledger.note_mirrored(model, standing.revision)
            # Other writers' notes are theirs to take away, unless they are long dead.
            abandoned = datetime.now(UTC) - ABANDONED_AFTER
            ledger.mark_told([entry.number for entry in pending if not entry.is_note or entry.number == note or entry.since < abandoned])
            return standing
        for difference in wrong:
            given = _mended(difference, standing, given)
            has_written = has_written or difference.what.startswith("alias ")
    message = f"after {MAX_ROUNDS} rounds MLflow still says otherwise than the ledger: {found[0].what if found else 'its standing moves'}"
    raise UnavailableError("mlflow.unavailable", message, hint="find the other process that sets aliases and tags of this model")


def differences(ledger: Ledger, store: Store, model: str, *, now: datetime | None = None) -> list[Difference]:
    """Return what MLflow says otherwise than the ledger; empty where they agree.

    Raises:
        UnavailableError: `database.unavailable`, `mlflow.unavailable`.
    """
    given = Circumstances(now=now or datetime.now(UTC), findings=Findings(ledger.database_url).open(model), lost={})
    return _compared(ledger, store, model, given, pending=None)[0]


def _compared(
    ledger: Ledger, store: Store, model: str, given: Circumstances, *, pending: Sequence[Pending] | None
) -> tuple[list[Difference], ModelAliases]:
    """Return the differences, aliases last, and the standing that they were compared with.

    Args:
        pending: only what these have touched is compared, and what holds an alias; None: everything.
    """
    with registry_faults():
        look = Look(ledger, store, model)
        if pending is None:
            look.read_all()
            entries = look.history
        else:
            holders = {holder.weights_digest for holder in (look.standing.champion, look.standing.canary) if holder is not None}
            weights = touched(look.history, {entry.key for entry in pending}) | holders
            entries = [entry for entry in look.history if entry.weights_digest in weights]
        shown = {entry.weights_digest: version for entry in entries if (version := look.shown(entry)) is not None}
        by_alias = alias_differences(look, given)
    return [*_tags(look, shown), *_descriptions(look, shown), *by_alias], look.standing


def _noted(findings: Findings, model: str, found: AliasFinding, now: datetime) -> int:
    """Note a finding before anything is done about it: a process that dies afterwards has left the alert to the next one."""
    return findings.see(model, found.alias, found.kind, served=found.served, words=found.words, now=now).number


def _mended(difference: Difference, standing: ModelAliases, given: Circumstances) -> Circumstances:
    """Set a difference right; return the circumstances of the next look."""
    # Of tags and descriptions only the name: they have people's reasons, and users of other models may read this log.
    logger.info("%s", difference if difference.what.startswith("alias ") else f"{difference.model}: {difference.what} is set right")
    try:
        with registry_faults():
            _mend(difference)
    except DataError as err:
        holder = getattr(standing, difference.what.removeprefix("alias "), None)
        if holder is None:
            raise
        logger.error("%s: %s", difference.model, err)
        return replace(given, lost={**given.lost, holder.weights_digest: str(err)})
    return given


def _mend(difference: Difference) -> None:
    try:
        if difference.mend is not None:
            difference.mend()
    except MlflowException as err:
        # Two writers of the same tag at the same moment both add it, and the database refuses one: the next round compares again.
        if err.error_code != "BAD_REQUEST":
            raise
        logger.info("not set right yet: %s", err)


def expected_tags(history: Sequence[Entry], standing: ModelAliases) -> dict[str, dict[str, str]]:
    """Return weights to the tags of their version, as the ledger wants them."""
    expected: dict[str, dict[str, str]] = {}
    for entry in history:
        tags = expected.setdefault(entry.weights_digest, {LIFECYCLE_TAG: "candidate"})
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
            expected.setdefault(holder.weights_digest, {})[LIFECYCLE_TAG] = alias
    return expected


def _tags(look: Look, shown: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(
            model=look.model,
            what=f"tag {name} of version {shown[weights].version}",
            found=shown[weights].tags.get(name),
            expected=value,
            mend=partial(look.client.set_model_version_tag, look.model, str(shown[weights].version), name, value),
        )
        for weights, tags in expected_tags(look.history, look.standing).items()
        if weights in shown
        for name, value in tags.items()
        if shown[weights].tags.get(name) != value
    ]


def _descriptions(look: Look, shown: Mapping[str, Any]) -> list[Difference]:
    """Compare the versions' descriptions; a person's stays, which is one without `DECIDED_BY`.

    The schema, which the registration has written, stays below the decision.
    """
    newest = {entry.weights_digest: entry for entry in look.history if entry.weights_digest in shown}
    found = {weights: str(shown[weights].description or "") for weights in newest}
    expected = {
        weights: description_of(entry, schema=schema_part(found[weights]), rebuilt_at=look.hints[weights].rebuilt_at)
        for weights, entry in newest.items()
    }
    return [
        Difference(
            model=look.model,
            what=f"description of version {shown[weights].version}",
            found=found[weights],
            expected=text,
            mend=partial(look.client.update_model_version, look.model, str(shown[weights].version), text),
        )
        for weights, text in expected.items()
        if found[weights] != text and (not found[weights] or DECIDED_BY in found[weights] or is_schema_alone(found[weights]))
    ]


def description_of(entry: Entry, *, schema: str = "", rebuilt_at: datetime | None = None) -> str:
    """Return a version's description: the last decision about it in one line, who decided and when, and the reason of each gate.

    Args:
        schema: what follows it (`training.registry.mlflow_schema`).
        rebuilt_at: when the model was made from the store; None: in its evaluation.
    """
    tail = f"\n\n{schema}" if schema else ""
    at = moment(entry.decided_at.isoformat(timespec="seconds"))
    gates = [f"| {for_markdown(reason['gate'])} | {verdict(reason)} | {for_markdown(reason['words'])} |" for reason in entry.reasons]
    made = [] if rebuilt_at is None else [f"Registered again from the store on {rebuilt_at:%Y-%m-%d}, with the code of that day.", ""]
    first = f"{for_markdown(headline(entry))}{DECIDED_BY}{for_markdown(entry.decided_by)}, {at}."
    lines = [first, "", *made, "| gate | verdict | reason |", "| --- | --- | --- |", *gates]
    # Whole lines: half a row of the table would be shown as text.
    while len("\n".join(lines)) + len(tail) > MAX_DESCRIPTION_CHARS:
        lines.pop()
    return "\n".join(lines) + tail
