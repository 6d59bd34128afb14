"""The section `evaluate`: how a model is measured, and what it must reach before it may replace another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from training.spec.descriptors.gate_descriptor import GateDescriptor, Severity
from training.spec.descriptors.metrics import is_metric
from training.spec.scalar_types import (
    ColumnName,
    Line,
    Many,
    PositiveDuration,
    Section,
    Setting,
)

Task = Literal["ranking", "binary", "multiclass", "regression", "language"]
Gain = Literal["linear", "exponential"]
_Bound = Annotated[float, Field(ge=-1e6, le=1e6)]
_Gap = Annotated[float, Field(gt=0, le=1)]
_Milliseconds = Annotated[float, Field(gt=0, le=1e6)]


class Improvement(Section):
    """How much better than the champion's the primary metric must be: in its own units, or as a share of the champion's."""

    absolute: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """The gain must be larger than this. Unit: of the primary metric."""
    relative: Annotated[float, Field(ge=0, le=100)] | None = None
    """The gain must be larger than this share of the champion's value; not together with `absolute`.
    Unit: share of the champion's value."""


class Fairness(Section):
    """The largest gap between the values of any column of `sensitive`; absent: reported, not gated."""

    equal_opportunity: _Gap | None = None
    """Between shares of positives that are found (Hardt et al., 2016)."""
    calibration: _Gap | None = None
    """Between calibration errors. Unit: calibration error, 0 to 1."""


class LatencyLimits(Section):
    """Of one prediction of one row (a group, for rankers), in milliseconds."""

    p50: _Milliseconds | None = None
    """Limit of the median. Unit: ms. Example: `5`."""
    p95: _Milliseconds | None = None
    """Limit of the time that 95 % of the calls keep to. Unit: ms."""
    p99: _Milliseconds | None = None
    """Limit of the time that 99 % of the calls keep to. Unit: ms. Example: `50`."""


class Checks(Section):
    """What is wrong with a result that looks good."""

    leakage: _Gap = 0.98
    """A feature that alone ranks the test labels this well (AUC, or correlation of ranks) is taken for the label.
    Unit: AUC, or absolute rank correlation."""
    overlap: _Gap | None = None
    """The largest share of the test rows' entities that the training rows may have; absent: reported, not gated."""
    drift: Annotated[float, Field(gt=0, le=100)] = 0.25
    """Population stability index of the predictions against the champion's, on the same rows. Unit: population stability index."""


class Baseline(Section):
    """The naive baselines that every evaluation scores in addition to the model."""

    enabled: bool = True
    """Whether baselines are scored and the gate `naive_baseline` judges."""
    season: PositiveDuration | None = None
    """Of a series (regression): the seasonal naive copies the value of this long before; absent: `1d` and `7d` are tried."""
    sql: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    """An additional baseline: one SQL expression over the row's columns. Example: `"seats_sold_last_week"`."""


GateName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,62}$")]


class Evaluate(Section):
    """How a model is measured, and what it must reach."""

    task: Task
    """What the label is: a choice among a group's rows, one of two classes, one of several, a number, or text."""
    primary: Line
    """Metric by which models are compared."""
    metrics: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,62}$")], Line] = Field(default_factory=dict)
    """Custom metrics: name to `package.module:function` of an allowed package; higher is better.
    Example: `{profit: "shop_models.metrics:profit"}`."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """At which a probability counts as a yes. Unit: probability."""
    gain: Gain = "linear"
    """Of a label in NDCG: the label itself, or 2 to its power less 1."""
    minimum: dict[str, _Bound] = Field(default_factory=dict)
    """Metric to the least that it must reach. Unit: of the metric."""
    maximum: dict[str, _Bound] = Field(default_factory=dict)
    """The same for metrics of which lower is better. Unit: of the metric. Example: `{log_loss: 0.6}`."""
    improvement: Improvement = Field(default_factory=Improvement)
    confidence: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.95
    """Of the interval whose lower end must be above zero. Unit: share, 0 to 1."""
    block: PositiveDuration = Field(default="1d", validate_default=True)
    """The shortest block of time that counts as one observation in that interval; the rows may require longer ones."""
    slices: Many[ColumnName] = ()
    """Columns by whose values the primary metric is also computed."""
    slice_pairs: bool = True
    """Also the pairs of those columns."""
    slice_support: Annotated[int, Field(ge=1, le=10**9)] = 100
    """A slice of fewer rows is reported and judges nothing. Unit: rows."""
    slice_drop: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """How much worse than the champion any slice may be, in the primary metric's units; absent: reported, not gated; needs `slices`.
    Unit: of the primary metric."""
    sensitive: Many[ColumnName] = ()
    """Columns between whose values fairness is measured."""
    fairness: Fairness = Field(default_factory=Fairness)
    entities: Many[ColumnName] = ()
    """Columns that together identify the entity of a row; absent: the source's key."""
    latency_ms: LatencyLimits = Field(default_factory=LatencyLimits)
    checks: Checks = Field(default_factory=Checks)
    baseline: Baseline = Field(default_factory=Baseline)
    gates: dict[GateName, dict[str, Setting]] = Field(default_factory=dict)
    """Gates of other distributions: name to settings. A gate judges where it is named here. Example: `{steady: {max_share: 0.2}}`."""
    severity: dict[GateName, Severity] = Field(default_factory=dict)
    """Effect of a gate that is not passed: fail, warn, or approve (a person decides). `maximum` inherits the severity of `minimum`."""

    @property
    def judges_bias(self) -> bool:
        """Whether the mean error says something: a quantile is meant to lie above or below most labels."""
        return self.task == "regression" and not self.primary.startswith("pinball_loss@")

    def is_metric(self, name: str) -> bool:
        """Return whether `name` is a metric of the task, or one of the spec's own."""
        return name in self.metrics or is_metric(self.task, name)


BUILT_IN_GATES: Final[Mapping[str, GateDescriptor]] = {
    "finite": GateDescriptor(module="absolute", has_severity=False),
    "minimum": GateDescriptor(
        module="bounds",
        is_on=lambda rules: bool(rules.minimum or rules.maximum),
        switch="set evaluate.minimum or evaluate.maximum",
    ),
    "maximum": GateDescriptor(module="bounds", inherits="minimum", is_on=lambda rules: bool(rules.maximum), switch="set evaluate.maximum"),
    "constant": GateDescriptor(module="absolute", has_severity=False),
    "naive_baseline": GateDescriptor(
        module="naive_baseline",
        is_on=lambda rules: rules.baseline.enabled and rules.task != "language",
        switch="set evaluate.baseline.enabled, for another task than language",
    ),
    "bias": GateDescriptor(
        module="absolute",
        severity="warn",
        is_on=lambda rules: rules.judges_bias,
        switch="set evaluate.task: regression and another primary metric than pinball_loss",
    ),
    "baseline": GateDescriptor(module="champion", has_severity=False),
    "improvement": GateDescriptor(module="champion", applies="champion"),
    "significance": GateDescriptor(module="significance", applies="champion"),
    "slices": GateDescriptor(
        module="champion",
        applies="champion",
        is_on=lambda rules: bool(rules.slices) and rules.slice_drop is not None,
        switch="set evaluate.slices and evaluate.slice_drop",
    ),
    "drift": GateDescriptor(module="champion", applies="champion", severity="warn"),
    "fairness": GateDescriptor(
        module="absolute",
        is_on=lambda rules: bool(rules.sensitive) and (rules.fairness.equal_opportunity, rules.fairness.calibration) != (None, None),
        switch="set evaluate.sensitive and a limit in evaluate.fairness",
    ),
    "latency": GateDescriptor(
        module="absolute",
        is_on=lambda rules: rules.latency_ms != LatencyLimits(),
        switch="set a limit in evaluate.latency_ms",
    ),
    "leakage": GateDescriptor(
        module="absolute",
        is_on=lambda rules: rules.task != "language",
        switch="set another evaluate.task than language",
    ),
    "overlap": GateDescriptor(
        module="absolute",
        severity="warn",
        is_on=lambda rules: rules.checks.overlap is not None,
        switch="set evaluate.checks.overlap",
    ),
    "canary": GateDescriptor(module="champion", applies="canary", has_severity=False),
}
"""The gates of this repository, in the order of a decision's reasons. `naive_baseline` only warns once there is a champion."""
