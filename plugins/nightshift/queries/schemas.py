"""The records that queries return. Pydantic only: the client imports them too, on machines without Airflow."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from training.spec.scalar_types import InstantText

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
    schedule: str | None = Field(description="As Airflow shows it; null: runs are started by hand.")
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
    waits_for: str | None = Field(description="Its paused pipeline, and the command that lets it run; null: not paused, or it has ended.")
    run_type: str = Field(description="`scheduled`, `manual`, `backfill` …")
    triggered_by: str | None = Field(description="User who started it; null: no user did.")
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    note: str | None


class PipelineWithRun(Pipeline):
    """A pipeline's DAG, and its newest run."""

    last_run: RunSummary | None = Field(description="Null: there is none, or the user may not see it.")


class FailedHelper(Pipeline):
    """A helper DAG, whose newest run that has ended failed."""

    last_run: RunSummary = Field(description="That run; its note says which task failed, and why.")
    failed_since: datetime | None = Field(description="When the first one failed after the last that succeeded; null: not known.")


class Artifact(Record):
    """What a stage made, in the store."""

    uri: str = Field(description="Of its manifest.")
    digest: str


class StageRun(Record):
    """A task of a run."""

    name: str
    state: str | None = Field(description="Airflow's state of the task; null: it is not scheduled yet.")
    waits_for: str | None = Field(description="A slot of its pool, or a process; null: it has started, or other tasks come first.")
    progress: str | None = Field(description="Of `trials` while it runs: how many trials of the study are finished, `3 of 8 trials`.")
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
    parameters: dict[str, Any] = Field(description="What the trigger gave: `as_of`, `force`, `snapshot`, `registration`, `train`, …")
    from_checkpoint: str | None = Field(description="SHA-256 of the checkpoint at which its training begins; null: at the start.")
    stages: list[StageRun]


class Trial(Record):
    """A finished trial of a study."""

    number: int = Field(description="From 0, which has the champion's settings, or those of the spec.")
    state: Literal["complete", "pruned", "failed"]
    value: float | None = Field(description="Of the objective; null: failed or pruned.")
    settings: dict[str, Any]
    epochs: int
    steps: int = Field(description="Optimizer steps, or boosting rounds.")
    reason: str = Field(description="Why it failed; empty: it did not.")


class Study(RunSummary):
    """A search for settings, and its trials so far."""

    digest: str | None = Field(description="SHA-256; equal searches over equal data are one study and share trials. Null: not planned yet.")
    objective: str | None = Field(description="`validation_loss`, or a metric on the validation rows; null: not settled yet.")
    lower_is_better: bool | None = Field(description="Of the objective's values; null: not settled yet.")
    space: dict[str, Any] = Field(description="Parameter to what is searched, as the YAML has it.")
    num_trials: int | None = Field(description="Trials that it will have at most; null: not settled yet.")
    trials: list[Trial]
    best: Trial | None = Field(description="The complete trial with the best value; null: there is none.")


class Holder(Record):
    """A version that holds an alias."""

    version: str
    semantic_version: str
    as_of: InstantText
    since: str = Field(description="When it took the alias, ISO 8601; empty: unknown.")
    weights_digest: str
    artifact_digest: str = Field(description="For `load_verified`; empty: registered without one.")
    model_uri: str
    bounds: dict[str, list[str]] = Field(description="Split to its begin and its end, which is not in it.")


class Model(Record):
    """A model's standing."""

    name: str
    pipelines: list[str] = Field(description="That made its versions.")
    champion: Holder | None
    canary: Holder | None
    revision: int = Field(description="How often champion or canary have changed.")
    awaiting_approval: list[str] = Field(
        description="Versions with an open request for approval: semantic, else the first 12 digits of the weights' digest."
    )
    not_in_mlflow: int = Field(description="How many of the newest decisions MLflow does not show yet.")
    shows_gains_above: float | None = Field(
        description="Half of the width of the interval of the gain over the champion in the gates' newest decision, in units of the "
        "primary metric: on this test split a smaller gain looks like chance. null: that decision has no interval, or an unbounded one."
    )


class ModelDetails(Model):
    """A model's standing, and how often to retrain it."""

    retraining: list[str] = Field(
        description="What weekly, daily and hourly retraining costs and gains, in words; empty before the first decision."
    )


class GateReason(Record):
    """What a gate found."""

    model_config = ConfigDict(extra="allow", frozen=True)

    gate: str
    passed: bool
    words: str


class DecisionSummary(Record):
    """A decision about a version."""

    key: str
    model: str
    weights_digest: str = Field(description="SHA-256 of the weights: what the decision is about.")
    version: str = Field(description="Their number in MLflow when it was decided; it may stand for other weights today.")
    semantic_version: str
    action: str = Field(description="What moved: `promoted`, `canary`, `canary_ended`, `rolled_back`; `recorded`: nothing.")
    outcome: str
    reasons: list[GateReason]
    decided_at: datetime
    decided_by: str
    weights_deleted_at: datetime | None = Field(description="When retention deleted the version's weights.")


class DecisionDetails(DecisionSummary):
    """A decision with its evidence."""

    evidence: dict[str, Any]


class ModelVersion(Record):
    """A version of a model."""

    model: str
    version: str = Field(description="Its number in MLflow, as of the last comparison.")
    semantic_version: str
    weights_digest: str = Field(description="SHA-256: what the version is.")
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


class ApprovalAnswer(Record):
    """A person's answer to the request about a version."""

    model: str
    version: str
    request: str = Field(description="Key of the decision that asks.")
    answer: Literal["approve", "decline"]
    answered_by: str
    run: str | None = Field(description="Run that asked, and records the answer; null: it is recorded.")


class DatasetVersion(Record):
    """A snapshot of a pipeline's sources."""

    pipeline: str
    version: str
    uri: str = Field(description="Of its manifest.")
    rows: int = Field(description="Of the main table.")
    size_bytes: int
    schema_hash: str
    split: dict[str, Any] = Field(description="Of the YAML of the run that took it first; keys with their default value are left out.")
    split_hash: str
    created_at: datetime
    created_by: str
    health: Literal["available", "deprecated", "deleted"] = Field(description="New runs accept an available one only.")
    changed_at: datetime | None = Field(description="When it was deprecated, or deleted by retention.")
    deprecated_by: str | None
    reason: str | None


class DatasetDetails(DatasetVersion):
    """A snapshot with its columns."""

    tables: dict[str, dict[str, str]] | None = Field(description="Table to column to type; null: its manifest is gone.")


class ComparedSide(Record):
    """One of two that are compared."""

    name: str = Field(description="`<model>@<version>`, or a run's id.")
    pipeline: str
    run: str | None
    version: str | None = None
    semantic_version: str | None = None
    as_of: InstantText | None
    outcome: str = Field(description="Of the newest decision, or of the run.")
    snapshot: str | None = Field(description="Digest of the data's manifest.")
    weights_digest: str | None = Field(default=None, description="Of the candidate; equal digests: the same weights, bit for bit.")
    code_version: str | None = Field(default=None, description="Of the training.")
    rows: int | None = Field(default=None, description="Test rows of its own evaluation.")


class KeyDifference(Record):
    """A key whose value differs."""

    key: str = Field(description="Dotted.")
    a: Any
    b: Any


class ComparedMetric(Record):
    """A metric; null: not measured."""

    name: str
    a: float | None
    b: float | None


class PairedGain(Record):
    """By how much `b` is better than `a` in the primary metric, measured row by row; positive is better."""

    gain: float | None
    low: float | None = Field(description="Of the confidence interval.")
    high: float | None
    units: int | None = Field(description="Rows, or groups.")
    decided_by: str | None = Field(description="`rows` or `blocks`: which interval is the wider one.")
    rows_of: str = Field(description="Whose evaluation measured it.")


class ComparedSlice(Record):
    """The rows with one value of a column, or of each of two."""

    columns: dict[str, str]
    rows: int | None
    a: float | None
    b: float | None


class ComparedStage(Record):
    """What a stage's work cost."""

    name: str
    a_seconds: float | None
    a_cpu_seconds: float | None
    a_peak_memory_bytes: int | None
    b_seconds: float | None
    b_cpu_seconds: float | None
    b_peak_memory_bytes: int | None


class SideBySide(Record):
    """Two versions or runs side by side."""

    a: ComparedSide
    b: ComparedSide
    settings: list[KeyDifference] = Field(description="Keys of the YAML, overrides included.")
    code: list[KeyDifference] = Field(description="Family, architecture, device and libraries of the trainings.")
    metrics: list[ComparedMetric]
    is_same_rows: bool = Field(description="Metrics were measured on the same rows; else each has the test rows of its own evaluation.")
    gain: PairedGain | None = Field(description="Null: neither was the champion that the other one was measured against.")
    slices: list[ComparedSlice] = Field(description="In the primary metric, on the same rows.")
    stages: list[ComparedStage]
    missing: list[str] = Field(description="What is not in the store any more, or never was.")


class SavedCheckpoint(Record):
    """A checkpoint of a run's training."""

    name: str = Field(description="One that stays its own: `epoch_3`, else `step_400`.")
    names: list[str] = Field(description="All that it has now: `epoch_3`, `best`, `step_400`, `newest`. Empty: it was withdrawn.")
    run: str = Field(description="`run_id` of the run that trained; an earlier one where its training was reused.")
    step: int
    epoch: int
    created_at: datetime
    size_bytes: int | None = Field(description="Null: it is deleted.")
    layout: str = Field(description="How its processes shared the model, `data=2 tensor=2`; empty: not known.")
    is_restorable: bool = Field(description="A training can begin at it.")
    fault: str = Field(description="Why none can; empty: one can.")
    uri: str = Field(description="Of its manifest.")


class MetricPoint(Record):
    """A value of a metric of a training."""

    id: str = Field(description="`<attempt>-<number>`: rises over all attempts. Give the last one as `after`, or as `Last-Event-ID`.")
    attempt: int = Field(description="Of the training, from 1. An attempt that resumes repeats the steps after its checkpoint.")
    name: str
    step: int
    value: float | str = Field(description="`nan`, `inf` and `-inf` are words.")
    logged_at: datetime


class MetricPage(Record):
    """Points that follow another one."""

    items: list[MetricPoint]
    last: str | None = Field(description="Give it as `after` to get the points that follow; null: there are none yet.")
    is_complete: bool = Field(description="The training has ended, and no point follows.")
