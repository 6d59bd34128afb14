"""The ledger: append-only decisions, and each model's standing, moved by compare-and-set. SQLAlchemy only: operators read it too."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from training.contracts import MAX_CLOCK_SKEW, instant_text
from training.database.connect import connect, reading, with_zone, writing
from training.database.schema import LedgerDecisionRow, ModelPipelineRow, ModelStandingRow, RegisteredVersionRow
from training.errors import DeniedError
from training.registry.ledger.entries import (
    REQUEST,
    AliasHolder,
    Entry,
    ModelAliases,
    Move,
    decision_key,
    entry_of,
    name_of,
)
from training.registry.ledger.reasons import Reason, all_words
from training.registry.ledger.rows import add_decision, decision_row, endings, locked_standing, open_request_rows, outlined
from training.registry.ledger.version_weights import MLflowRegistration

__all__ = [
    "REQUEST",
    "AliasHolder",
    "Entry",
    "Ledger",
    "ModelAliases",
    "Move",
    "check_as_of",
    "decision_key",
    "name_of",
]

PAGE_ROWS: Final = 100
ABANDONED_AFTER: Final = timedelta(hours=1)
"""After which a process that has begun to write to MLflow and has not ended is dead."""
SEATED: Final[Mapping[str, str]] = {"promoted": "became champion", "canary": "became canary", "rolled_back": "is champion again"}
"""Actions that give a version an alias, in words."""
MOVED: Final[Mapping[str, str]] = {**SEATED, "canary_ended": "was settled as canary"}
"""Actions that move the standing, in words: what was measured against it before can no longer be approved."""


class Ledger:
    """The decisions of one database."""

    def __init__(self, database_url: str | None = None) -> None:
        """Open the database; None: the installation's."""
        self.database_url = database_url
        self.engine = connect(database_url)

    def standing(self, model: str) -> ModelAliases:
        """Return the holders of `model`'s aliases; none, at revision 0, for a model without decisions.

        Raises:
            UnavailableError: `database.unavailable`.
        """
        with reading(self.engine) as session:
            row = session.get(ModelStandingRow, model)
            if row is None:
                return ModelAliases(model=model)
            return ModelAliases(
                model=model,
                champion=_holder(session, model, row.champion),
                canary=_holder(session, model, row.canary),
                revision=row.revision,
                mirrored_revision=row.mirrored_revision,
                mirrored_decisions=row.mirrored_decisions,
                mirrors=row.mirrors,
            )

    def history(self, model: str) -> list[Entry]:
        """Return all decisions about `model`, oldest first."""
        with reading(self.engine) as session:
            rows = session.scalars(select(LedgerDecisionRow).where(LedgerDecisionRow.model == model).order_by(LedgerDecisionRow.id))
            return [entry_of(row) for row in rows]

    def outline(self, model: str, *, outcome: str | None = None) -> list[Entry]:
        """Return all decisions about `model`, oldest first, without their evidence: 3 KB of JSON each, most of the time of `history`.

        Args:
            outcome: only those with this one.
        """
        asked = outlined(model).order_by(LedgerDecisionRow.id)
        if outcome is not None:
            asked = asked.where(LedgerDecisionRow.outcome == outcome)
        with reading(self.engine) as session:
            return [entry_of(row, evidence={}) for row in session.execute(asked)]

    def newest_outlined(self, model: str, *, first: str | None = None, limit: int | None = None) -> list[Entry]:
        """Return decisions about `model`, newest first, without their evidence.

        Args:
            first: key of the decision to begin with, none where it is not there; None: the newest one.
            limit: how many at most; None: all.
        """
        asked = outlined(model).order_by(LedgerDecisionRow.id.desc()).limit(limit)
        if first is not None:
            wanted = select(LedgerDecisionRow.id).where(LedgerDecisionRow.model == model, LedgerDecisionRow.decision_key == first)
            asked = asked.where(LedgerDecisionRow.id <= wanted.scalar_subquery())
        with reading(self.engine) as session:
            return [entry_of(row, evidence={}) for row in session.execute(asked)]

    def newest_first(self, model: str) -> Iterator[Entry]:
        """Yield the decisions about `model`, newest first, read in pages: a caller that stops early reads little of a long history."""
        below: int | None = None
        while True:
            asked = select(LedgerDecisionRow).where(LedgerDecisionRow.model == model).order_by(LedgerDecisionRow.id.desc()).limit(PAGE_ROWS)
            with reading(self.engine) as session:
                rows = list(session.scalars(asked if below is None else asked.where(LedgerDecisionRow.id < below)))
                page = [entry_of(row) for row in rows]
                below = rows[-1].id if rows else None
            yield from page
            if len(page) < PAGE_ROWS:
                return

    def models(self) -> list[str]:
        """Return the names of all models that anything was decided about, sorted."""
        with reading(self.engine) as session:
            return sorted(session.scalars(select(ModelStandingRow.model).where(ModelStandingRow.decisions > 0)))

    def pipelines_of(self, model: str) -> list[str]:
        """Return the names of the pipelines that made the model's versions, sorted; none where nothing was decided."""
        with reading(self.engine) as session:
            return sorted(session.scalars(select(ModelPipelineRow.pipeline).where(ModelPipelineRow.model == model)))

    def decision(self, model: str, key: str) -> Entry | None:
        """Return the decision with this key."""
        with reading(self.engine) as session:
            return None if (row := decision_row(session, model, key)) is None else entry_of(row)

    def ending_of(self, model: str, request_key: str) -> Entry | None:
        """Return the decision that answered or ended a request for approval, None while it is open."""
        with reading(self.engine) as session:
            return None if (row := session.scalar(endings(model, request_key))) is None else entry_of(row)

    def open_requests(self, model: str) -> list[Entry]:
        """Return the requests for approval that nothing has ended, oldest first."""
        with reading(self.engine) as session:
            return [entry_of(row) for row in open_request_rows(session, model)]

    def unmirrored(self) -> dict[str, int]:
        """Return the models for which MLflow has to be looked at, to how many decisions it does not show yet.

        None are missing where a process has begun to write to MLflow and has not ended: it may have died.
        """
        missing = ModelStandingRow.decisions - ModelStandingRow.mirrored_decisions
        asked = select(ModelStandingRow.model, missing, ModelStandingRow.mirrors).order_by(ModelStandingRow.model)
        with reading(self.engine) as session:
            return {name: missing for name, missing, mirrors in session.execute(asked) if missing or mirrors}

    def begin_mirror(self, model: str, revision: int) -> str | None:
        """Note that this process writes to MLflow what this revision of the standing says; None, and no note, where it has moved on.

        So a reader of a later revision also reads the notes of all processes that may still write an earlier one.
        """
        name = secrets.token_hex(8)
        with writing(self.engine) as session:
            row = locked_standing(session, model)
            if row.revision != revision:
                return None
            row.mirrors = {**row.mirrors, name: {"revision": revision, "since": datetime.now(UTC).isoformat()}}
        return name

    def end_mirror(self, model: str, name: str | None, *, revision: int, decisions: int) -> None:
        """Note that MLflow agrees with a revision of the standing and shows so many decisions.

        Args:
            name: of the note that `begin_mirror` made; it goes, with those of other processes that are long dead.
        """
        abandoned = datetime.now(UTC) - ABANDONED_AFTER
        with writing(self.engine) as session:
            row = locked_standing(session, model)
            row.mirrored_revision = max(row.mirrored_revision, revision)
            row.mirrored_decisions = max(row.mirrored_decisions, decisions)
            others = {key: note for key, note in row.mirrors.items() if key != name}
            row.mirrors = {key: note for key, note in others.items() if datetime.fromisoformat(note["since"]) > abandoned}

    def registrations(self, model: str) -> dict[str, MLflowRegistration]:
        """Return where MLflow has the versions of `model`, by the digest of their weights, as of the last look."""
        with reading(self.engine) as session:
            rows = session.scalars(select(RegisteredVersionRow).where(RegisteredVersionRow.model == model))
            return {row.weights_digest: _registration(row) for row in rows}

    def note_registration(self, model: str, weights_digest: str, found: MLflowRegistration | None) -> None:
        """Note where MLflow has these weights; None: nowhere. The standing does not move by it."""
        with writing(self.engine) as session:
            if found is None:
                this = (RegisteredVersionRow.model == model, RegisteredVersionRow.weights_digest == weights_digest)
                session.execute(delete(RegisteredVersionRow).where(*this))
            else:
                session.merge(RegisteredVersionRow(model=model, weights_digest=weights_digest, **asdict(found)))

    def record(self, entry: Entry, move: Move | None = None) -> Entry:
        """Add a decision, and the change of the standing if there is one, in one transaction. MLflow follows by `registry.mlflow.mirror`.

        The same key twice is one decision: the first one's row is returned, and nothing moves. A request for approval and every move end
        the open requests of the model, as superseded. A canary that a move displaces ends likewise.

        Raises:
            DeniedError: `promotion.conflict`, the standing moved after the candidate was measured against it, for a move as for a request
                for approval; `as_of.future`, a move to a version whose `as_of` has not come; `approval.ended`, the request that the
                entry answers has ended otherwise; `approval.unknown`, there is no such request; `version.deleted`, a rollback to a
                version whose weights retention has deleted. Nothing is recorded.
            UnavailableError: `database.unavailable`.
        """
        with writing(self.engine) as session:
            standing = locked_standing(session, entry.model)
            known = decision_row(session, entry.model, entry.key)
            if known is not None:
                return entry_of(known)
            if entry.request_key is not None:
                _check_open(session, entry, entry.request_key)
            if entry.outcome == REQUEST:
                # No question about what an approval could not move any more.
                _check_revision(standing, int(entry.evidence.get("revision", 0)), entry)
            before = None if standing.canary is None else AliasHolder.from_json(standing.canary)
            if entry.action == "rolled_back":
                _check_kept(session, entry)
            if move is not None:
                _move(standing, move, entry)
            added = add_decision(session, standing, entry, revision=None if move is None else standing.revision)
            if move is not None and before is not None:
                _displace(session, standing, before, move, entry)
            if entry.outcome == REQUEST or move is not None:
                _supersede(session, standing, entry)
            return entry_of(added)


def _holder(session: Session, model: str, values: Mapping[str, Any] | None) -> AliasHolder | None:
    """Return the holder in a column of the standing, with what it has in MLflow now."""
    if values is None:
        return None
    return holder_now(values, session.get(RegisteredVersionRow, (model, values["weights_digest"])))


def holder_now(values: Mapping[str, Any], place: RegisteredVersionRow | None) -> AliasHolder:
    """Return the holder in a column of the standing, with the number and the artifact that it has in MLflow now."""
    holder = AliasHolder.from_json(values)
    return holder if place is None else replace(holder, version=place.number, artifact_digest=place.artifact_digest)


def _registration(row: RegisteredVersionRow) -> MLflowRegistration:
    at = row.rebuilt_at
    return MLflowRegistration(
        number=row.number,
        logged_model=row.logged_model,
        artifact_digest=row.artifact_digest,
        rebuilt_at=None if at is None else with_zone(at),
    )


def check_as_of(holder: AliasHolder, model: str) -> None:
    """Refuse a version of a run that has not come: as champion it would keep every run before it from being compared.

    Raises:
        DeniedError: `as_of.future`.
    """
    now = datetime.now(UTC)
    if holder.as_of > now + MAX_CLOCK_SKEW:
        raise DeniedError(
            "as_of.future",
            f"version {name_of(holder)} of {model} is as of {instant_text(holder.as_of)}, which is later than now "
            f"({now.isoformat(timespec='seconds')}): no later run could be compared with it",
            hint="start the run again with an as_of in the past",
        )


def _move(standing: ModelStandingRow, move: Move, entry: Entry) -> None:
    _check_revision(standing, move.expected_revision, entry)
    for holder, before in ((move.champion, standing.champion), (move.canary, standing.canary)):
        if holder is not None and (before is None or holder.weights_digest != before["weights_digest"]):
            check_as_of(holder, entry.model)
    standing.champion = None if move.champion is None else move.champion.to_json()
    standing.canary = None if move.canary is None else move.canary.to_json()
    standing.revision = move.expected_revision + 1


def _check_revision(standing: ModelStandingRow, expected: int, entry: Entry) -> None:
    if standing.revision != expected:
        raise DeniedError(
            "promotion.conflict",
            f"{entry.model} has moved on to revision {standing.revision} from {expected}, which version {name_of(entry)} was compared with",
            hint="clear the evaluate task: the candidate is then compared with the new champion",
        )


def _check_kept(session: Session, entry: Entry) -> None:
    """Refuse to roll back to deleted weights. A deletion locks the standing's row, too, so neither can overtake the other."""
    rows = select(LedgerDecisionRow).where(LedgerDecisionRow.model == entry.model, LedgerDecisionRow.weights_digest == entry.weights_digest)
    newest = session.scalars(rows.order_by(LedgerDecisionRow.id.desc())).first()
    if newest is None or newest.deleted_at is None:
        return
    as_of = (entry.evidence.get("holder") or {}).get("as_of")
    message = f"the weights of version {name_of(entry)} of {entry.model} were deleted by retention"
    raise DeniedError(
        "version.deleted",
        f"{message} on {with_zone(newest.deleted_at):%Y-%m-%d}",
        hint=f"name a version that is kept (nightshift show {entry.model}), or trigger the run as of {as_of} again",
    )


def _check_open(session: Session, entry: Entry, request_key: str) -> None:
    ending = session.scalar(endings(entry.model, request_key))
    if ending is not None:
        raise _ended(entry, entry_of(ending))
    request = decision_row(session, entry.model, request_key)
    if request is None or request.outcome != REQUEST:
        message = f"version {name_of(entry)} of {entry.model} cannot be {entry.outcome}: the ledger has no request {request_key}"
        raise DeniedError("approval.unknown", message, hint="the two processes have different values of NIGHTSHIFT_DATABASE")


def _displace(session: Session, standing: ModelStandingRow, canary: AliasHolder, move: Move, entry: Entry) -> None:
    """End the canary that a move about another version displaces: no canary ends without a row."""
    seated = {holder.weights_digest for holder in (move.champion, move.canary) if holder is not None}
    if canary.weights_digest in seated or canary.weights_digest == entry.weights_digest:
        return
    words = f"version {name_of(entry)} {SEATED.get(entry.action, entry.action)} before this canary was settled"
    ending = Entry(
        model=entry.model,
        key=decision_key(entry.model, canary.weights_digest, "displaced", str(move.expected_revision)),
        weights_digest=canary.weights_digest,
        version=canary.version,
        semantic_version=canary.semantic_version,
        action="canary_ended",
        outcome="superseded",
        reasons=[Reason.said("canary", words, passed=False)],
        evidence={"holder": canary.to_json(), "weights_digest": canary.weights_digest, "by": entry.key},
        decided_by=entry.decided_by,
        decided_at=entry.decided_at,
    )
    add_decision(session, standing, ending)


def _supersede(session: Session, standing: ModelStandingRow, entry: Entry) -> None:
    by = f"version {name_of(entry)}"
    words = f"{by} asks now" if entry.outcome == REQUEST else f"{by} {MOVED[entry.action]} meanwhile"
    for request in open_request_rows(session, entry.model):
        if request.decision_key in (entry.key, entry.request_key):
            continue
        ending = Entry(
            model=entry.model,
            key=decision_key(entry.model, request.decision_key, "superseded"),
            weights_digest=request.weights_digest,
            version=request.version,
            semantic_version=request.semantic_version,
            action="recorded",
            outcome="superseded",
            reasons=[Reason.said("approval", words, passed=False)],
            evidence=request.evidence,
            decided_by=entry.decided_by,
            decided_at=entry.decided_at,
            request_key=request.decision_key,
        )
        add_decision(session, standing, ending)


def _ended(entry: Entry, ending: Entry) -> DeniedError:
    how = f"{ending.outcome} by {ending.decided_by} ({all_words(ending.reasons)})"
    message = f"the request for version {name_of(entry)} of {entry.model} has ended: {how}"
    return DeniedError("approval.ended", message, hint="only the newest request can be answered, once")
