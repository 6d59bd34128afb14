"""The section `evaluate`: how a model is measured, and what it must reach before it may replace another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.metrics import is_metric
from training.spec.types import ColumnName, Line, PositiveDuration, Section

Task = Literal["ranking", "binary", "multiclass", "regression", "language"]
Severity = Literal["fail", "warn", "approve"]
Gain = Literal["linear", "exponential"]
Gate = Literal[
    "minimum",
    "maximum",
    "improvement",
    "significance",
    "slices",
    "fairness",
    "latency",
    "leakage",
    "overlap",
    "drift",
    "naive_baseline",
]

SEVERITIES: Final[Mapping[str, Severity]] = {"overlap": "warn", "drift": "warn"}
"""Of the gates that do not fail by themselves. `naive_baseline` fails a first champion, and warns once there is one."""

_Bound = Annotated[float, Field(ge=-1e6, le=1e6)]
_Gap = Annotated[float, Field(gt=0, le=1)]
_Milliseconds = Annotated[float, Field(gt=0, le=1e6)]


class Improvement(Section):
    """How much better than the champion's the primary metric must be: in its own units, or as a share of the champion's."""

    absolute: Annotated[float, Field(ge=0, le=1e6)] | None = None
    relative: Annotated[float, Field(ge=0, le=100)] | None = None


class Fairness(Section):
    """The largest gap between the values of any column of `sensitive`; absent: reported, not gated."""

    equal_opportunity: _Gap | None = None
    """Between shares of positives that are found (Hardt et al., 2016)."""
    calibration: _Gap | None = None
    """Between calibration errors."""


class LatencyLimits(Section):
    """Of one prediction of one row (a group, for rankers), in milliseconds."""

    p50: _Milliseconds | None = None
    p95: _Milliseconds | None = None
    p99: _Milliseconds | None = None


class Checks(Section):
    """What is wrong with a result that looks good."""

    leakage: _Gap = 0.98
    """A feature that alone ranks the test labels this well (AUC, or correlation of ranks) is taken for the label."""
    overlap: _Gap | None = None
    """The largest share of the test rows' entities that the training rows may have; absent: reported, not gated."""
    drift: Annotated[float, Field(gt=0, le=100)] = 0.25
    """Population stability index of the predictions against the champion's, on the same rows."""


class Baseline(Section):
    """The naive baselines that every evaluation scores beside the model."""

    enabled: bool = True
    season: PositiveDuration | None = None
    """Of a series (regression): the seasonal naive copies the value of this long before; absent: `1d` and `7d` are tried."""
    sql: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    """A baseline of one's own: one SQL expression over the row's columns, besides the others."""


class Evaluate(Section):
    task: Task
    primary: Line
    metrics: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,62}$")], Line] = Field(default_factory=dict)
    """Metrics of one's own: name to `package.module:function` of an allowed package; more is better."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """At which a probability counts as a yes."""
    gain: Gain = "linear"
    """Of a label in NDCG: the label itself, or 2 to its power less 1."""
    minimum: dict[str, _Bound] = Field(default_factory=dict)
    """Metric to the least that it must reach."""
    maximum: dict[str, _Bound] = Field(default_factory=dict)
    """The same for metrics of which less is better."""
    improvement: Improvement = Field(default_factory=Improvement)
    confidence: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.95
    """Of the interval whose lower end must be above zero."""
    block: PositiveDuration = Field(default="1d", validate_default=True)
    """The shortest block of time that counts as one observation in that interval; the rows may ask for longer ones."""
    slices: Annotated[tuple[ColumnName, ...], Field(strict=False)] = ()
    slice_pairs: bool = True
    """Also the pairs of those columns."""
    slice_support: Annotated[int, Field(ge=1, le=10**9)] = 100
    """A slice of fewer rows is reported and judges nothing."""
    slice_drop: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """How much worse than the champion any slice may be, in the primary metric's units; absent: reported, not gated; needs `slices`."""
    sensitive: Annotated[tuple[ColumnName, ...], Field(strict=False)] = ()
    fairness: Fairness = Field(default_factory=Fairness)
    entities: Annotated[tuple[ColumnName, ...], Field(strict=False)] = ()
    """Columns that together name who or what a row is about; absent: the source's key."""
    latency_ms: LatencyLimits = Field(default_factory=LatencyLimits)
    checks: Checks = Field(default_factory=Checks)
    baseline: Baseline = Field(default_factory=Baseline)
    severity: dict[Gate, Severity] = Field(default_factory=dict)
    """What a gate that is not passed does: reject, say so, or ask a person. `maximum` inherits the severity of `minimum`."""

    def severity_of(self, gate: str) -> Severity:
        """Return what `gate` does where it is not passed; a gate without a severity fails."""
        severities: dict[str, Severity] = {**SEVERITIES, **{str(name): severity for name, severity in self.severity.items()}}
        inherited = severities.get("minimum", "fail") if gate == "maximum" else "fail"
        return severities.get(gate, inherited)

    def is_metric(self, name: str) -> bool:
        """Return whether `name` is a metric of the task, or one of the spec's own."""
        return name in self.metrics or is_metric(self.task, name)
