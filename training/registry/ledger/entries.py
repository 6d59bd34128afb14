"""What the ledger holds: decisions, the holders of a model's aliases, moves, and how they are kept in rows. SQLAlchemy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

from sqlalchemy import Row

from training.contracts import Instant, canonical_json, instant_of, instant_text, json_number, sha256_hex
from training.database.connect import with_zone
from training.database.schema import LedgerDecisionRow, RunningMirror
from training.registry.ledger.reasons import Reason

BY_GATES: Final = ("accepted", "rejected", "needs_approval")
"""Outcomes of a candidate or a canary."""
REQUEST: Final = "needs_approval"
DIGEST_CHARS: Final = 12
"""As many characters of a digest name weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AliasHolder:
    """A version that holds an alias: its weights are what it is, all else is what is known of it."""

    version: str
    """Its number in MLflow's registry, as of the ledger's last look."""
    weights_digest: str
    model_uri: str
    """The model artifact's manifest in the store."""
    as_of: Instant
    """Of its run."""
    bounds: Mapping[str, Sequence[str]]
    """Split to [start, end] of the rows it was made with."""
    semantic_version: str = ""
    since: str = ""
    """When it took the alias, ISO 8601; empty: not known."""
    decision_key: str = ""
    """Of the decision about its own evaluation."""
    artifact_digest: str = ""
    """SHA-256 of the list of the files in MLflow's registry, for `load_verified`."""

    def to_json(self) -> dict[str, Any]:
        """Return it as the ledger keeps it."""
        return asdict(self) | {"as_of": instant_text(self.as_of)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "as_of": instant_of(values["as_of"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAliases:
    """The versions that hold a model's aliases."""

    model: str
    champion: AliasHolder | None = None
    canary: AliasHolder | None = None
    revision: int = 0
    """How often the standing has moved; 0: never."""
    mirrored_revision: int = 0
    """The last revision that MLflow's aliases agreed with."""
    mirrored_decisions: int = 0
    """How many decisions about the model, the oldest ones, MLflow shows."""
    mirrors: Mapping[str, RunningMirror] = field(default_factory=dict)
    """Processes that may be writing to MLflow: name to `revision`, the one that each began at, and `since`, ISO 8601."""

    def alias_of(self, weights_digest: str) -> Literal["champion", "canary"] | None:
        """Return the alias that these weights hold."""
        if self.champion is not None and self.champion.weights_digest == weights_digest:
            return "champion"
        return "canary" if self.canary is not None and self.canary.weights_digest == weights_digest else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A standing to move to, from the revision that the decision was made against."""

    champion: AliasHolder | None
    canary: AliasHolder | None
    expected_revision: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One decision."""

    model: str
    key: str
    weights_digest: str
    version: str
    """The number that MLflow's registry had for these weights then."""
    action: str
    """`promoted`: a new champion; `canary`: a new canary; `canary_ended`; `rolled_back`: an earlier champion again; `recorded`: nothing
    moved."""
    outcome: str
    """One of `BY_GATES`; of a request for approval `approved`, `declined`, `expired`, `superseded`, `bypassed` or `stale`; of a person's
    order `rolled_back`."""
    reasons: Sequence[Reason]
    evidence: Mapping[str, Any]
    decided_by: str
    decided_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    semantic_version: str = ""
    request_key: str | None = None
    """Key of the request for approval that this one ends."""
    revision: int | None = None
    """Of the standing after the move; None where this decision moved nothing. The ledger fills it in."""
    deleted_at: datetime | None = None
    """When retention deleted the version's weights; None while they are kept."""


def decision_key(*parts: str) -> str:
    """Return the idempotency key of a decision: of a candidate (model, weights' digest, evaluation's digest)."""
    return sha256_hex(canonical_json(list(parts)))


def name_of(version: AliasHolder | Entry) -> str:
    """Return what names a version to people and to commands: its semantic version, else the beginning of its weights' digest.

    Never its number: MLflow may give the number to another version once the first one is deleted.
    """
    return version.semantic_version or version.weights_digest[:DIGEST_CHARS]


def columns_of(entry: Entry) -> dict[str, object]:
    """Return the columns of an entry's row, but for `revision`."""
    return {
        "model": entry.model,
        "decision_key": entry.key,
        "weights_digest": entry.weights_digest,
        "version": entry.version,
        "semantic_version": entry.semantic_version,
        "action": entry.action,
        "outcome": entry.outcome,
        "reasons": _json([reason.to_json() for reason in entry.reasons]),
        "evidence": _json(entry.evidence),
        "decided_at": entry.decided_at,
        "decided_by": entry.decided_by[:512],
        "request_key": entry.request_key,
    }


def _json(value: Any) -> Any:
    """Return what both databases keep and give back alike: PostgreSQL takes no NaN and no NUL, and a decision must not fail by a number."""
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else json_number(value)


def entry_of(row: LedgerDecisionRow | Row[Any], evidence: Mapping[str, Any] | None = None) -> Entry:
    """Return the entry of a row; with `evidence`, that one instead of the row's."""
    return Entry(
        model=row.model,
        key=row.decision_key,
        weights_digest=row.weights_digest,
        version=row.version,
        action=row.action,
        outcome=row.outcome,
        reasons=[Reason.from_json(reason) for reason in row.reasons],
        evidence=row.evidence if evidence is None else evidence,
        decided_by=row.decided_by,
        decided_at=with_zone(row.decided_at),
        semantic_version=row.semantic_version,
        request_key=row.request_key,
        revision=row.revision,
        deleted_at=None if row.deleted_at is None else with_zone(row.deleted_at),
    )
