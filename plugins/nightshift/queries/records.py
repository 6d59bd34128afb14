"""The records that queries return. Pydantic only: the client imports them too, on machines without Airflow."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Record, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next: str | None = Field(description="Give it as `cursor` to get the items that follow; null: there are none.")


class Pipeline(Record):
    """A pipeline's DAG."""

    name: str
    description: str | None
    is_paused: bool = Field(description="Its schedule starts no runs. A run that a request starts waits until it is unpaused.")
    schedule: str | None = Field(description="In words, as Airflow shows it.")
    next_run_after: datetime | None
    tags: list[str]
    owners: list[str]


RunState = Literal["queued", "running", "success", "failed"]


class RunSummary(Record):
    """A run of a pipeline."""

    id: str = Field(description="`<pipeline>:<run_id>`; percent-encode it in a path.")
    pipeline: str
    run_id: str = Field(description="Airflow's, unique in the pipeline.")
    state: RunState
    run_type: str = Field(description="`scheduled`, `manual`, `backfill` …")
    triggered_by: str | None = Field(description="User who started it; null: no user did.")
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    note: str | None


class Artifact(Record):
    """What a stage made, in the store."""

    uri: str = Field(description="Of its manifest.")
    digest: str


class Stage(Record):
    """A task of a run."""

    name: str
    state: str | None = Field(description="Airflow's state of the task; null: it is not scheduled yet.")
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    attempts: int | None = Field(description="Attempts that the work took; null: there is no result.")
    reused_from: str | None = Field(description="Run whose result was found instead of doing the work again.")
    artifact: Artifact | None
    scalars: dict[str, Any] = Field(description="Rows, metrics, the decision: as the stage reported them.")
    timings: dict[str, float] = Field(description="Seconds by part; `total` always, where there is a result.")
    reports: dict[str, str] = Field(description="Name of a page to its URI in the store.")
    usage: dict[str, Any] | None = Field(description="CPU seconds, peak memory and more; null: not measured.")


class Run(RunSummary):
    """A run with its stages."""

    as_of: datetime | None = Field(description="Instant whose past the run sees; null: the first task has not settled it.")
    snapshot: str | None = Field(description="Snapshot that the trigger named instead of the sources.")
    parameters: dict[str, Any] = Field(description="What the trigger gave: `as_of`, `force`, `snapshot`, `train`, `evaluate`, `tune`.")
    stages: list[Stage]


class Holder(Record):
    """A version that holds an alias."""

    version: str
    semantic_version: str
    as_of: str
    since: str = Field(description="When it took the alias, ISO 8601; empty: unknown.")
    weights_digest: str
    artifact_digest: str = Field(description="For `load_verified`; empty: registered without one.")
    model_uri: str


class Model(Record):
    """A model's standing."""

    name: str
    pipelines: list[str] = Field(description="That made its versions.")
    champion: Holder | None
    canary: Holder | None
    revision: int = Field(description="How often champion or canary have changed.")
    awaiting_approval: list[str] = Field(description="Versions with an open request for approval.")


class Reason(Record):
    """What a gate found."""

    model_config = ConfigDict(extra="allow", frozen=True)

    gate: str
    passed: bool
    words: str


class DecisionSummary(Record):
    """A decision about a version."""

    key: str
    model: str
    version: str
    semantic_version: str
    action: str = Field(description="What moved: `promoted`, `canary`, `canary_ended`, `rolled_back`; `recorded`: nothing.")
    outcome: str
    reasons: list[Reason]
    decided_at: datetime
    decided_by: str
    weights_deleted_at: datetime | None = Field(description="When retention deleted the version's weights.")


class Decision(DecisionSummary):
    """A decision with its evidence."""

    evidence: dict[str, Any]


class ModelVersion(Record):
    """A version of a model."""

    model: str
    version: str
    semantic_version: str
    alias: Literal["champion", "canary"] | None
    decisions: list[DecisionSummary] = Field(description="About this version, the newest first.")


class StageOrder(Record):
    """What came of an order to change a version's stage."""

    model: str
    version: str
    stage: Literal["champion", "canary", "archived"] = Field(description="That the order asks for.")
    is_done: bool = Field(description="The version has this stage.")
    run: str | None = Field(description="Run of the DAG `rollback` that carries the order out; null: nothing had to be done.")
    run_state: RunState | None


class DatasetVersion(Record):
    """A snapshot of a pipeline's sources."""

    pipeline: str
    version: str
    uri: str = Field(description="Of its manifest.")
    rows: int = Field(description="Of the main table.")
    size_bytes: int
    schema_hash: str
    created_at: datetime
    created_by: str
    health: Literal["available", "deprecated", "deleted"] = Field(description="New runs accept an available one only.")
    changed_at: datetime | None = Field(description="When it was deprecated, or deleted by retention.")
    deprecated_by: str | None
    reason: str | None
