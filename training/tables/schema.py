"""The tables. A change here needs a migration beside it; a test compares the two."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Integer, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Base of all of our tables."""


class DatasetVersion(Base):
    """One snapshot that some run made: immutable, deprecated but never deleted."""

    __tablename__ = "dataset_version"
    __table_args__ = (UniqueConstraint("name", "version", name="uq_dataset_version_name_version"),)

    # SQLite numbers rows only by a column of exactly the type INTEGER.
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    """The pipeline's name."""
    version: Mapped[str] = mapped_column(String(64))
    """First 16 hex digits of the snapshot's digest."""
    storage_uri: Mapped[str] = mapped_column(String(2048))
    row_count: Mapped[int] = mapped_column(BigInteger)
    """Rows of the main table."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """Sum over the snapshot's files."""
    schema_hash: Mapped[str] = mapped_column(String(64))
    """Of the main table: SHA-256 over its sorted (name, type) pairs."""
    split_config: Mapped[dict[str, Any]] = mapped_column(JSON)
    split_config_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    created_by: Mapped[str] = mapped_column(String(512))
    """The task instance that made it first."""
    deprecated_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class LedgerDecision(Base):
    """One decision about a model version. Rows are only ever added."""

    __tablename__ = "ledger_decision"
    __table_args__ = (UniqueConstraint("model", "decision_key", name="uq_ledger_decision_model_key"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    model: Mapped[str] = mapped_column(String(63))
    decision_key: Mapped[str] = mapped_column(String(64))
    """SHA-256 of (model, weights' digest, evaluation's digest): the same request twice is one decision."""
    version: Mapped[str] = mapped_column(String(32))
    """The registry's version number."""
    action: Mapped[str] = mapped_column(String(32))
    """`promoted`, or `recorded` for a decision that changed nothing."""
    outcome: Mapped[str] = mapped_column(String(32))
    """`accepted`, `rejected`, `needs_approval`."""
    reasons: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON)
    decided_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    decided_by: Mapped[str] = mapped_column(String(512))


class ModelStanding(Base):
    """Who is champion of a model; moves by compare-and-set on `revision`, in the transaction that adds the decision."""

    __tablename__ = "model_standing"

    model: Mapped[str] = mapped_column(String(63), primary_key=True)
    version: Mapped[str] = mapped_column(String(32))
    weights_digest: Mapped[str] = mapped_column(String(64))
    model_uri: Mapped[str] = mapped_column(String(2048))
    as_of: Mapped[str] = mapped_column(String(40))
    bounds: Mapped[dict[str, Any]] = mapped_column(JSON)
    revision: Mapped[int] = mapped_column(BigInteger)
