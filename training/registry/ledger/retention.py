"""What the ledger needs of the store, and what it notes of weights that are deleted. SQLAlchemy only: operators import it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from training.contracts import sha256_hex
from training.database.connect import connect, reading, with_zone, writing
from training.database.schema import DatasetVersionRow, LedgerDecisionRow
from training.registry.ledger.alias_findings import open_served
from training.registry.ledger.decisions import CHAMPIONS, HOLDER
from training.registry.ledger.ledger import Entry, Ledger
from training.registry.ledger.rows import locked_standing, open_request_rows
from training.store.reachability import content_keys, texts_of

NAMED: Final = ("model_uri", "dataset_uri", "snapshot_uri", "evaluation_uri", "spec_uri", "report_uri")
"""What a decision names of the run that made its version."""


class LedgerRoots:
    """Champion, canary, the former champions, and versions with an open request for approval, with the inputs of their runs."""

    def __init__(self, database_url: str | None = None, *, champions: int) -> None:
        """Open the ledger.

        Args:
            champions: how many former champions of each model stay.
        """
        self._url = database_url
        self._ledger = Ledger(database_url)
        self._champions = champions

    def identity(self) -> str | None:
        """Return the SHA-256 of the first decision, None while there is none: rows are never deleted, and a backup has the same.

        Raises:
            UnavailableError: `database.unavailable`.
        """
        with reading(connect(self._url)) as session:
            row = session.scalars(select(LedgerDecisionRow).order_by(LedgerDecisionRow.id).limit(1)).first()
            if row is None:
                return None
            # Two installations may do the same work and come to the same decision, but not in the same microsecond.
            return sha256_hex(f"{row.model}/{row.decision_key}/{_instant(row.decided_at)}".encode())

    def uris(self) -> list[str]:
        """Return the URIs that have to stay.

        Raises:
            UnavailableError: `database.unavailable`.
        """
        return [uri for model in self._ledger.models() for uri in self._of_model(model)]

    def _of_model(self, model: str) -> Iterator[str]:
        standing, history = self._ledger.standing(model), self._ledger.history(model)
        holders = [holder for holder in (standing.champion, standing.canary) if holder is not None]
        with reading(connect(self._url)) as session:
            kept = {holder.weights_digest for holder in holders} | open_served(session, model)
        kept |= newest_former(history, kept, self._champions)
        yield from (holder.model_uri for holder in holders)
        for entry in history:
            if entry.weights_digest in kept:
                yield from _named(entry)
        # Housekeeping uses the spec of the newest decision, accepted or not.
        yield from [str(entry.evidence["spec_uri"]) for entry in history if "spec_uri" in entry.evidence][-1:]
        for request in self._ledger.open_requests(model):
            yield from texts_of(request.evidence)  # which keeps everything that it names

    def release(self, uris: Collection[str]) -> set[str]:
        """Note that these manifests are deleted next: in the decisions about their models, and in the index of snapshots.

        Returns:
            Those that have to stay: their version got an alias or a request for approval a moment ago.
        """
        gone = {key: uri for uri in uris for key in content_keys(uri)}
        stay: set[str] = set()
        for model in self._ledger.models():
            with writing(connect(self._url)) as session:
                stay |= {gone[key] for key in _release(session, model, set(gone))}
        with writing(connect(self._url)) as session:
            rows = session.scalars(select(DatasetVersionRow).where(DatasetVersionRow.deprecated_at.is_(None)))
            for row in rows:
                if any(key in gone and gone[key] not in stay for key in content_keys(row.storage_uri)):
                    row.deprecated_at = datetime.now(UTC)
        return stay


def newest_former(history: list[Entry], holding: Collection[str], count: int) -> set[str]:
    """Return the weights of the newest `count` champions that hold no alias now, those that were rolled back included."""
    found: list[str] = []
    for entry in reversed(history):
        if entry.action in CHAMPIONS and entry.weights_digest not in (*holding, *found):
            found.append(entry.weights_digest)
    return set(found[:count])


def _release(session: Session, model: str, gone: set[str]) -> set[str]:
    """Return the keys of `gone` that an alias or an open request of the model needs; note the deletion in the others' decisions.

    A decision is about one manifest: the same weights, made again, are in another one, which stays.
    """
    # From here to the commit no decision about the model moves anything.
    standing = locked_standing(session, model)
    holding = {holder["weights_digest"] for holder in (standing.champion, standing.canary) if holder} | open_served(session, model)
    needed = {key for holder in (standing.champion, standing.canary) if holder for key in content_keys(holder["model_uri"])}
    asked = {request.weights_digest for request in open_request_rows(session, model)}
    rows = session.scalars(select(LedgerDecisionRow).where(LedgerDecisionRow.model == model, LedgerDecisionRow.deleted_at.is_(None))).all()
    lost = set()
    for row in rows:
        found = set(content_keys([row.evidence.get("model_uri"), (row.evidence.get(HOLDER) or {}).get("model_uri")])) & gone
        if row.weights_digest in holding or row.weights_digest in asked:
            needed |= found
        elif found:
            lost.add(row.id)
    if lost:
        noted = update(LedgerDecisionRow).where(LedgerDecisionRow.model == model, LedgerDecisionRow.id.in_(lost))
        session.execute(noted.where(LedgerDecisionRow.deleted_at.is_(None)).values(deleted_at=datetime.now(UTC)))
    return needed & gone


def _instant(instant: datetime) -> str:
    # PostgreSQL returns it with the zone of its session.
    return with_zone(instant).astimezone(UTC).isoformat(timespec="microseconds")


def _named(entry: Entry) -> Iterator[str]:
    for values in (entry.evidence, entry.evidence.get(HOLDER) or {}):
        yield from (str(values[name]) for name in NAMED if values.get(name))
