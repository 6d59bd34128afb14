"""The tables. A change here needs a migration; a test compares the two."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from sqlalchemy import JSON, BigInteger, DateTime, Double, Index, Integer, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class RunningMirror(TypedDict):
    """A process that may be writing to MLflow: the revision of the standing that it began at, and since when (ISO 8601)."""

    revision: int
    since: str


class Base(DeclarativeBase):
    """Base of all of our tables."""


class DatasetVersionRow(Base):
    """One snapshot that some run made. A row stays for good, also when retention has deleted the snapshot's files."""

    __tablename__ = "dataset_version"
    __table_args__ = (
        UniqueConstraint("name", "version", name="uq_dataset_version_name_version"),
        Index("ix_dataset_version_name_id", "name", "id"),
    )

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
    """When a person deprecated it, or retention deleted its files."""
    deprecated_by: Mapped[str | None] = mapped_column(String(512))
    """The person; absent where retention deleted it: the next run with the same data makes it again."""
    deprecated_reason: Mapped[str | None] = mapped_column(String(2000))


class ErasureRow(Base):
    """One erasure that a person has ordered, written before its deletions. Rows are only ever added: triggers refuse the rest."""

    __tablename__ = "erasure"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    pipeline: Mapped[str] = mapped_column(String(63))
    target: Mapped[str] = mapped_column(String(512))
    """`snapshot <digest>`, or the columns of a key."""
    key_hash: Mapped[str | None] = mapped_column(String(64))
    """HMAC-SHA-256 of the key's columns and values, by a secret of the store (`collector/erasures`)."""
    erased_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    erased_by: Mapped[str] = mapped_column(String(512))
    reason: Mapped[str] = mapped_column(String(2000))
    counts: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Kind to number, and the rows."""
    digests: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Kind to the digests of its manifests; `part`: of the snapshots' files."""


_IS_REQUEST = text("outcome = 'needs_approval'")


class LedgerDecisionRow(Base):
    """One decision about a model version. Rows are only ever added: triggers refuse to delete one, or to change it but for `deleted_at`."""

    __tablename__ = "ledger_decision"
    __table_args__ = (
        UniqueConstraint("model", "decision_key", name="uq_ledger_decision_model_key"),
        UniqueConstraint("model", "request_key", name="uq_ledger_decision_model_request"),
        UniqueConstraint("model", "revision", name="uq_ledger_decision_model_revision"),
        Index("ix_ledger_decision_model_weights", "model", "weights_digest"),
        Index("ix_ledger_decision_model_id", "model", "id"),
        Index("ix_ledger_decision_requests", "model", "id", sqlite_where=_IS_REQUEST, postgresql_where=_IS_REQUEST),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    model: Mapped[str] = mapped_column(String(63))
    decision_key: Mapped[str] = mapped_column(String(64))
    """SHA-256 over what was decided about, and on which evidence: the same request twice is one decision."""
    weights_digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the weights: what the decision is about."""
    version: Mapped[str] = mapped_column(String(32))
    """The number that MLflow's registry had for these weights when it was decided. It may have another one now, and other weights may have
    had this one: see `RegisteredVersionRow`."""
    action: Mapped[str] = mapped_column(String(32))
    """What moved: see `training.registry.ledger.entries.ACTIONS`."""
    outcome: Mapped[str] = mapped_column(String(32))
    """See `training.registry.ledger.entries.OUTCOMES`."""
    reasons: Mapped[list[Any]] = mapped_column(JSON)
    """`registry.ledger.reasons.Reason` each."""
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON)
    decided_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    decided_by: Mapped[str] = mapped_column(String(512))
    semantic_version: Mapped[str] = mapped_column(String(32), default="")
    request_key: Mapped[str | None] = mapped_column(String(64))
    """Key of the request for approval that this decision ends: one ending each."""
    revision: Mapped[int | None] = mapped_column(BigInteger)
    """Of the standing after the move, one decision each; absent where this decision moved nothing."""
    deleted_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """When retention deleted the version's weights: the only field that is set later, once."""


class ModelStandingRow(Base):
    """The versions that hold a model's aliases; moves by compare-and-set on `revision`, in the transaction that adds the decision."""

    __tablename__ = "model_standing"

    model: Mapped[str] = mapped_column(String(63), primary_key=True)
    champion: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """See `training.registry.ledger.entries.AliasHolder`."""
    canary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    revision: Mapped[int] = mapped_column(BigInteger)
    decisions: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """How many there are about the model."""
    mirrored_revision: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """The last one that MLflow's aliases agreed with: an alias that differs from this one was moved by another hand."""
    mirrored_decisions: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """How many decisions about the model, in their order, MLflow shows."""
    mirrors: Mapped[dict[str, RunningMirror]] = mapped_column(JSON, default=dict)
    """Processes that may be writing to MLflow: name to the revision that each began at, and since when. One that dies leaves its entry."""


class ModelPipelineRow(Base):
    """A pipeline that made a version of a model: as the evidence of the model's decisions says."""

    __tablename__ = "model_pipeline"

    model: Mapped[str] = mapped_column(String(63), primary_key=True)
    pipeline: Mapped[str] = mapped_column(String(63), primary_key=True)


class RegisteredVersionRow(Base):
    """Where MLflow has the weights of a version now. A hint: each use compares the version's source, and what the store noted of it."""

    __tablename__ = "registered_version"

    model: Mapped[str] = mapped_column(String(63), primary_key=True)
    weights_digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[str] = mapped_column(String(32))
    """Of the version in MLflow's registry."""
    logged_model: Mapped[str] = mapped_column(String(64))
    """Id of the logged model that is the version's source."""
    artifact_digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the list of the logged model's files, for `load_verified`."""
    rebuilt_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """When it was made from the store, with the code of that time; absent: the logged model is the one of its evaluation."""


class RegistryFindingRow(Base):
    """An alias in MLflow that serves other weights than the ledger says, or none. Rows stay as a record."""

    __tablename__ = "registry_finding"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    model: Mapped[str] = mapped_column(String(63), index=True)
    alias: Mapped[str] = mapped_column(String(32))
    kind: Mapped[str] = mapped_column(String(32))
    """See `training.registry.ledger.alias_findings.Kind`."""
    served: Mapped[str] = mapped_column(String(64))
    """Digest of the weights that the alias served; empty: none, or weights that the ledger does not know."""
    words: Mapped[str] = mapped_column(Text)
    first_seen_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """When the alias agreed with the ledger; absent: it does not yet."""
    announced_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """When an alert was sent last."""


class RollbackOrderRow(Base):
    """An order to roll a model back, which the REST route has checked: the DAG `rollback` is given its id alone."""

    __tablename__ = "rollback_order"

    order_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """SHA-256 over model, weights and revision, its first 32 digits."""
    model: Mapped[str] = mapped_column(String(63))
    weights_digest: Mapped[str] = mapped_column(String(64))
    revision: Mapped[int] = mapped_column(BigInteger)
    """Of the standing that the order is about."""
    reason: Mapped[str] = mapped_column(Text)
    ordered_by: Mapped[str] = mapped_column(String(512))
    ordered_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class ModelVersionRow(Base):
    """One version of a model: unique weights, a semantic version, and what it was made of."""

    __tablename__ = "model_version"
    __table_args__ = (
        UniqueConstraint("model", "weights_digest", name="uq_model_version_weights"),
        UniqueConstraint("model", "semantic_version", name="uq_model_version_semantic"),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    model: Mapped[str] = mapped_column(String(63))
    weights_digest: Mapped[str] = mapped_column(String(64))
    semantic_version: Mapped[str] = mapped_column(String(32))
    input_schema: Mapped[dict[str, str]] = mapped_column(JSON)
    """Column of a raw frame to its type."""
    output_schema: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The label and the task."""
    recipe_digest: Mapped[str] = mapped_column(String(64))
    """Over code, features and settings: equal, and only the data is new."""
    framework: Mapped[str] = mapped_column(String(200))
    snapshot_digest: Mapped[str] = mapped_column(String(64))
    code_version: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class RunMetricRow(Base):
    """A point of a training's journal of metrics in the store, copied for SQL clients."""

    __tablename__ = "run_metric"
    __table_args__ = (Index("ix_run_metric_run_name_step", "run_id", "metric_name", "step"),)

    run_id: Mapped[str] = mapped_column(String(320), primary_key=True)
    """`<pipeline>:<run_id>`, as the REST API has it."""
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """In the journal: a point that is copied again is the same row."""
    attempt: Mapped[int] = mapped_column(Integer)
    """Of the training, from 1."""
    metric_name: Mapped[str] = mapped_column(String(250))
    step: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[float | None] = mapped_column(Double)
    """Absent where it is not finite."""
    logged_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PipelineRow(Base):
    """A pipeline as its newest run found it."""

    __tablename__ = "pipeline"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    description: Mapped[str] = mapped_column(Text)
    schedule: Mapped[str | None] = mapped_column(String(200))
    owner: Mapped[str] = mapped_column(String(1000))
    dag_config: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The YAML with its defaults; variables of the environment by their names."""
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PipelineRunRow(Base):
    """A run of a pipeline: one that a request queued, or whose first task has settled what it works with."""

    __tablename__ = "pipeline_run"

    run_id: Mapped[str] = mapped_column(String(320), primary_key=True)
    """`<pipeline>:<run_id>`, as the REST API has it."""
    pipeline: Mapped[str] = mapped_column(String(63))
    state: Mapped[str] = mapped_column(String(16), index=True)
    """Airflow's: `queued`, `running`, `success`, `failed`; `lost`: Airflow does not have the run any more."""
    as_of: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """Absent until the first task has settled it, as `started_at`."""
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """When the first task settled it."""
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    """When its end was noted."""
    git_commit: Mapped[str] = mapped_column(String(64))
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Keys that the trigger gave, and their values."""
    resource_spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    """`train.placement` and `resources` of the YAML."""
