"""The tables. A change here needs a migration; a test compares the two."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, TypedDict

from sqlalchemy import JSON, BigInteger, DateTime, Double, Index, Integer, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class RunningMirror(TypedDict):
    """A process that may be writing to MLflow: the revision of the standing that it began at, and since when (ISO 8601)."""

    revision: int
    since: str


String63 = Annotated[str, mapped_column(String(63))]
String64 = Annotated[str, mapped_column(String(64))]
String32 = Annotated[str, mapped_column(String(32))]
String512 = Annotated[str, mapped_column(String(512))]
# SQLite numbers rows only by a column of exactly the type INTEGER.
RowNumber = Annotated[int, mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)]


class Base(DeclarativeBase):
    """Base of all of our tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BigInteger,
        datetime: DateTime(timezone=True),
        **dict.fromkeys((dict[str, Any], dict[str, str], list[Any]), JSON),
    }


class DatasetVersionRow(Base):
    """One snapshot that some run made. A row stays for good, also when retention has deleted the snapshot's files."""

    __tablename__ = "dataset_version"
    __table_args__ = (
        UniqueConstraint("name", "version", name="uq_dataset_version_name_version"),
        Index("ix_dataset_version_name_id", "name", "id"),
    )

    id: Mapped[RowNumber]
    name: Mapped[String63]
    """The pipeline's name."""
    version: Mapped[String64]
    """First 16 hex digits of the snapshot's digest."""
    storage_uri: Mapped[str] = mapped_column(String(2048))
    row_count: Mapped[int]
    """Rows of the main table."""
    size_bytes: Mapped[int]
    """Sum over the snapshot's files."""
    schema_hash: Mapped[String64]
    """Of the main table: SHA-256 over its sorted (name, type) pairs."""
    split_config: Mapped[dict[str, Any]]
    split_config_hash: Mapped[String64]
    created_at: Mapped[datetime]
    created_by: Mapped[String512]
    """The task instance that made it first."""
    deprecated_at: Mapped[datetime | None]
    """When a person deprecated it, or retention deleted its files."""
    deprecated_by: Mapped[String512 | None]
    """The person; absent where retention deleted it: the next run with the same data makes it again."""
    deprecated_reason: Mapped[str | None] = mapped_column(String(2000))


class ErasureRow(Base):
    """One erasure that a person has ordered, written before its deletions. Rows are only ever added: triggers refuse the rest."""

    __tablename__ = "erasure"

    id: Mapped[RowNumber]
    pipeline: Mapped[String63]
    target: Mapped[String512]
    """`snapshot <digest>`, or the columns of a key."""
    key_hash: Mapped[String64 | None]
    """HMAC-SHA-256 of the key's columns and values, by a secret of the store (`collector/erasures`)."""
    erased_at: Mapped[datetime]
    erased_by: Mapped[String512]
    reason: Mapped[str] = mapped_column(String(2000))
    counts: Mapped[dict[str, Any]]
    """Kind to number, and the rows."""
    digests: Mapped[dict[str, Any]]
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

    id: Mapped[RowNumber]
    model: Mapped[String63]
    decision_key: Mapped[String64]
    """SHA-256 over what was decided about, and on which evidence: the same request twice is one decision."""
    weights_digest: Mapped[String64]
    """SHA-256 of the weights: what the decision is about."""
    version: Mapped[String32]
    """The number that MLflow's registry had for these weights when it was decided. It may have another one now, and other weights may have
    had this one: see `RegisteredVersionRow`."""
    action: Mapped[String32]
    """What moved: see `training.registry.ledger.entries.Entry`."""
    outcome: Mapped[String32]
    """See `training.registry.ledger.entries.Entry`."""
    reasons: Mapped[list[Any]]
    """`registry.ledger.reasons.Reason` each."""
    evidence: Mapped[dict[str, Any]]
    decided_at: Mapped[datetime]
    decided_by: Mapped[String512]
    semantic_version: Mapped[String32] = mapped_column(default="")
    request_key: Mapped[String64 | None]
    """Key of the request for approval that this decision ends: one ending each."""
    revision: Mapped[int | None]
    """Of the standing after the move, one decision each; absent where this decision moved nothing."""
    deleted_at: Mapped[datetime | None]
    """When retention deleted the version's weights: the only field that is set later, once."""


class ModelStandingRow(Base):
    """The versions that hold a model's aliases; moves by compare-and-set on `revision`, in the transaction that adds the decision."""

    __tablename__ = "model_standing"

    model: Mapped[String63] = mapped_column(primary_key=True)
    champion: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """See `training.registry.ledger.entries.AliasHolder`."""
    canary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    revision: Mapped[int]
    decisions: Mapped[int] = mapped_column(default=0, server_default="0")
    """How many there are about the model."""
    mirrored_revision: Mapped[int] = mapped_column(default=0, server_default="0")
    """The last one that MLflow's aliases agreed with: an alias that differs from this one was moved by another hand."""
    mirrored_decisions: Mapped[int] = mapped_column(default=0, server_default="0")
    """How many decisions about the model, in their order, MLflow shows."""
    mirrors: Mapped[dict[str, RunningMirror]] = mapped_column(JSON, default=dict)
    """Processes that may be writing to MLflow: name to the revision that each began at, and since when. One that dies leaves its entry."""


class ModelPipelineRow(Base):
    """A pipeline that made a version of a model: as the evidence of the model's decisions says."""

    __tablename__ = "model_pipeline"

    model: Mapped[String63] = mapped_column(primary_key=True)
    pipeline: Mapped[String63] = mapped_column(primary_key=True)


class RegisteredVersionRow(Base):
    """Where MLflow has the weights of a version now. A hint: each use compares the version's source, and what the store noted of it."""

    __tablename__ = "registered_version"

    model: Mapped[String63] = mapped_column(primary_key=True)
    weights_digest: Mapped[String64] = mapped_column(primary_key=True)
    number: Mapped[String32]
    """Of the version in MLflow's registry."""
    logged_model: Mapped[String64]
    """Id of the logged model that is the version's source."""
    artifact_digest: Mapped[String64]
    """SHA-256 of the list of the logged model's files, for `load_verified`."""
    rebuilt_at: Mapped[datetime | None]
    """When it was made from the store, with the code of that time; absent: the logged model is the one of its evaluation."""


class RegistryFindingRow(Base):
    """An alias in MLflow that serves other weights than the ledger says, or none. Rows stay as a record."""

    __tablename__ = "registry_finding"

    id: Mapped[RowNumber]
    model: Mapped[String63] = mapped_column(index=True)
    alias: Mapped[String32]
    kind: Mapped[String32]
    """See `training.registry.ledger.alias_findings.Kind`."""
    served: Mapped[String64]
    """Digest of the weights that the alias served; empty: none, or weights that the ledger does not know."""
    words: Mapped[str] = mapped_column(Text)
    first_seen_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    """When the alias agreed with the ledger; absent: it does not yet."""
    announced_at: Mapped[datetime | None]
    """When an alert was sent last."""


class RollbackOrderRow(Base):
    """An order to roll a model back, which the REST route has checked: the DAG `rollback` is given its id alone."""

    __tablename__ = "rollback_order"

    order_id: Mapped[String32] = mapped_column(primary_key=True)
    """SHA-256 over model, weights and revision, its first 32 digits."""
    model: Mapped[String63]
    weights_digest: Mapped[String64]
    revision: Mapped[int]
    """Of the standing that the order is about."""
    reason: Mapped[str] = mapped_column(Text)
    ordered_by: Mapped[String512]
    ordered_at: Mapped[datetime]


class ModelVersionRow(Base):
    """One version of a model: unique weights, a semantic version, and what it was made of."""

    __tablename__ = "model_version"
    __table_args__ = (
        UniqueConstraint("model", "weights_digest", name="uq_model_version_weights"),
        UniqueConstraint("model", "semantic_version", name="uq_model_version_semantic"),
    )

    id: Mapped[RowNumber]
    model: Mapped[String63]
    weights_digest: Mapped[String64]
    semantic_version: Mapped[String32]
    input_schema: Mapped[dict[str, str]]
    """Column of a raw frame to its type."""
    output_schema: Mapped[dict[str, Any]]
    """The label and the task."""
    recipe_digest: Mapped[String64]
    """Over code, features and settings: equal, and only the data is new."""
    framework: Mapped[str] = mapped_column(String(200))
    snapshot_digest: Mapped[String64]
    code_version: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]


class RunMetricRow(Base):
    """A point of a training's journal of metrics in the store, copied for SQL clients."""

    __tablename__ = "run_metric"
    __table_args__ = (Index("ix_run_metric_run_name_step", "run_id", "metric_name", "step"),)

    run_id: Mapped[str] = mapped_column(String(320), primary_key=True)
    """`<pipeline>:<run_id>`, as the REST API has it."""
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """In the journal: a point that is copied again is the same row."""
    attempt: Mapped[int] = mapped_column(Integer)
    """Of the training, from 1."""
    metric_name: Mapped[str] = mapped_column(String(250))
    step: Mapped[int]
    value: Mapped[float | None] = mapped_column(Double)
    """Absent where it is not finite."""
    logged_at: Mapped[datetime]


class PipelineRow(Base):
    """A pipeline as its newest run found it."""

    __tablename__ = "pipeline"

    name: Mapped[String63] = mapped_column(primary_key=True)
    description: Mapped[str] = mapped_column(Text)
    schedule: Mapped[str | None] = mapped_column(String(200))
    owner: Mapped[str] = mapped_column(String(1000))
    dag_config: Mapped[dict[str, Any]]
    """The YAML with its defaults; variables of the environment by their names."""
    updated_at: Mapped[datetime]


class PipelineRunRow(Base):
    """A run of a pipeline: one that a request queued, or whose first task has settled what it works with."""

    __tablename__ = "pipeline_run"

    run_id: Mapped[str] = mapped_column(String(320), primary_key=True)
    """`<pipeline>:<run_id>`, as the REST API has it."""
    pipeline: Mapped[String63]
    state: Mapped[str] = mapped_column(String(16), index=True)
    """Airflow's: `queued`, `running`, `success`, `failed`; `lost`: Airflow does not have the run any more."""
    as_of: Mapped[datetime | None]
    """Absent until the first task has settled it, as `started_at`."""
    started_at: Mapped[datetime | None]
    """When the first task settled it."""
    ended_at: Mapped[datetime | None]
    """When its end was noted."""
    git_commit: Mapped[String64]
    parameters: Mapped[dict[str, Any]]
    """Keys that the trigger gave, and their values."""
    resource_spec: Mapped[dict[str, Any]]
    """`train.placement` and `resources` of the YAML."""
