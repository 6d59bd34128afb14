"""MLflow's aliases and tags follow the ledger: every difference is corrected, after a death of a writer at any step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from training.errors import DataError, UnavailableError
from training.format import moment
from training.registry.ledger.alias_findings import RecordedFindings
from training.registry.ledger.ledger import Entry, Ledger, ModelAliases
from training.registry.ledger.reasons import all_words, headline, reason_table
from training.registry.mlflow.alias_differences import ALIASES, AliasFinding, Circumstances, Difference, alias_differences
from training.registry.mlflow.comparison import MLflowState
from training.registry.mlflow.schema import is_schema_alone, schema_part
from training.registry.mlflow.versions import LIFECYCLE_TAG, registry_faults, set_by_two
from training.sanitizing import for_markdown
from training.store import Store

logger = logging.getLogger(__name__)

MAX_TAG_CHARS: Final = 5000
MAX_DESCRIPTION_CHARS: Final = 5000
"""MLflow's column holds no more."""
DECIDED_BY: Final = "\n\nDecided by "
"""What the descriptions hold that are ours to renew."""
MAX_ROUNDS: Final = 20
"""Rounds of comparing and correcting: two suffice for one writer, concurrent writers need some more."""


def mirror(
    ledger: Ledger, store: Store, model: str, *, is_ordered: bool = False, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> ModelAliases:
    """Set MLflow's aliases, tags and descriptions of `model` to what the ledger says; nothing is written where they agree.

    All is compared by the digest of weights. A version that is missing and holds an alias is registered again, any other one that is
    missing stays away. What another hand did to an alias becomes a finding (`training.registry.ledger.alias_findings`).

    Of two processes at once, one may overwrite what the other has just set to something newer; so each looks again after its last write,
    and ends on a look that found nothing to set right. Before its first write it notes in the ledger which revision it writes: one that
    dies leaves that note, and the work, to the next process.

    Args:
        is_ordered: a person orders it: an alias on a former champion is set back at once, too.
        now: the clock.

    Raises:
        UnavailableError: `database.unavailable`, `mlflow.unavailable`, `mlflow.denied`; nothing is lost, the next call continues.
    """
    findings, noted, lost = RecordedFindings(ledger.database_url), None, dict[str, str]()
    remaining = "its standing moves"
    for _ in range(MAX_ROUNDS):
        given = Circumstances(now=now(), findings=findings.open(model), lost=lost, is_ordered=is_ordered)
        look, found = _compared(ledger, store, model, given)
        if ledger.standing(model).revision != look.standing.revision:
            continue
        kept = [_kept(findings, model, difference.finding, given.now) for difference in found if difference.finding is not None]
        wrong = [difference for difference in found if difference.mend is not None]
        if not wrong:
            if {finding.number for finding in given.findings} - set(kept):
                findings.end(model, now=given.now, but=kept)
            _end(ledger, look, noted)
            return look.standing
        remaining = wrong[0].what
        noted = noted or ledger.begin_mirror(model, look.standing.revision)
        if noted is not None:
            lost |= _mended(wrong, look.standing)
    message = f"after {MAX_ROUNDS} rounds MLflow still says otherwise than the ledger: {remaining}"
    raise UnavailableError("mlflow.unavailable", message, hint="find the other process that sets aliases and tags of this model")


def differences(ledger: Ledger, store: Store, model: str, *, now: datetime | None = None) -> list[Difference]:
    """Return what MLflow says otherwise than the ledger; empty where they agree.

    Raises:
        UnavailableError: `database.unavailable`, `mlflow.unavailable`, `mlflow.denied`.
    """
    given = Circumstances(now=now or datetime.now(UTC), findings=RecordedFindings(ledger.database_url).open(model), lost={})
    return _compared(ledger, store, model, given)[1]


def _compared(ledger: Ledger, store: Store, model: str, given: Circumstances) -> tuple[MLflowState, list[Difference]]:
    """Return a look at the model, and the differences, aliases last."""
    with registry_faults():
        look = MLflowState(ledger, store, model)
        shown = {entry.weights_digest: version for entry in look.history if (version := look.shown(entry)) is not None}
        by_alias = alias_differences(look, given)
    return look, [*_tags(look, shown), *_descriptions(look, shown), *by_alias]


def _end(ledger: Ledger, look: MLflowState, noted: str | None) -> None:
    """Note that MLflow agrees. What is kept is said of this revision, too: an alias that is moved later was moved by another hand."""
    standing, decisions = look.standing, len(look.history)
    if noted or standing.mirrors or (standing.mirrored_revision, standing.mirrored_decisions) != (standing.revision, decisions):
        ledger.end_mirror(look.model, noted, revision=standing.revision, decisions=decisions)


def _kept(findings: RecordedFindings, model: str, found: AliasFinding, now: datetime) -> int:
    """Note a finding before anything is done about it: a process that dies afterwards has left the alert to the next one."""
    return findings.see(model, found.alias, found.kind, served=found.served, words=found.words, now=now).number


def _mended(wrong: Sequence[Difference], standing: ModelAliases) -> dict[str, str]:
    """Set differences right; return the weights that could not be registered again, and why."""
    lost = {}
    for difference in wrong:
        # Of tags and descriptions only the name: they have people's reasons, and users of other models may read this log.
        logger.info("%s", difference if difference.what.startswith("alias ") else f"{difference.model}: {difference.what} is set right")
        try:
            _mend(difference)
        except DataError as err:
            holder = getattr(standing, difference.what.removeprefix("alias "), None)
            if holder is None:
                raise
            logger.error("%s: %s", difference.model, err)
            lost[holder.weights_digest] = str(err)
    return lost


def _mend(difference: Difference) -> None:
    if difference.mend is not None:
        # What another process has set at the same moment, the next round compares.
        with registry_faults(), set_by_two():
            difference.mend()


def expected_tags(history: Sequence[Entry], standing: ModelAliases) -> dict[str, dict[str, str]]:
    """Return weights to the tags of their version, as the ledger wants them."""
    expected: dict[str, dict[str, str]] = {}
    for entry in history:
        tags = expected.setdefault(entry.weights_digest, {LIFECYCLE_TAG: "candidate"})
        tags |= {
            "nightshift.decision": entry.outcome,
            "nightshift.reasons": all_words(entry.reasons)[:MAX_TAG_CHARS],
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


def _tags(look: MLflowState, shown: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(
            model=look.model,
            what=f"tag {name} of version {shown[weights].version}",
            found=shown[weights].tags.get(name),
            expected=value,
            mend=partial(look.writer.set_model_version_tag, look.model, str(shown[weights].version), name, value),
        )
        for weights, tags in expected_tags(look.history, look.standing).items()
        if weights in shown
        for name, value in tags.items()
        if shown[weights].tags.get(name) != value
    ]


def _descriptions(look: MLflowState, shown: Mapping[str, Any]) -> list[Difference]:
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
            mend=partial(look.writer.update_model_version, look.model, str(shown[weights].version), text),
        )
        for weights, text in expected.items()
        if found[weights] != text and (not found[weights] or DECIDED_BY in found[weights] or is_schema_alone(found[weights]))
    ]


def description_of(entry: Entry, *, schema: str = "", rebuilt_at: datetime | None = None) -> str:
    """Return a version's description: the last decision about it in one line, who decided and when, and the reason of each gate.

    Args:
        schema: what follows it (`training.registry.mlflow.schema`).
        rebuilt_at: when the model was made from the store; None: in its evaluation.
    """
    tail = f"\n\n{schema}" if schema else ""
    at = moment(entry.decided_at.isoformat(timespec="seconds"))
    made = [] if rebuilt_at is None else [f"Registered again from the store on {rebuilt_at:%Y-%m-%d}, with the code of that day.", ""]
    first = f"{for_markdown(headline(entry))}{DECIDED_BY}{for_markdown(entry.decided_by)}, {at}."
    lines = [first, "", *made, *reason_table(entry.reasons)]
    # Whole lines: half a row of the table would be shown as text.
    while len("\n".join(lines)) + len(tail) > MAX_DESCRIPTION_CHARS:
        lines.pop()
    return "\n".join(lines) + tail
