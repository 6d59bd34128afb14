"""The whole of one pipeline's YAML. Its sections are in `sections`, the rules that join them in `rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError

from training.contracts import JsonValue
from training.errors import spec_error
from training.spec.key_types import TimeZone
from training.spec.scalar_types import (
    FROZEN,
    ONE_LINE,
    Day,
    FreeText,
    Line,
    Many,
    Name,
    PositiveDuration,
    Section,
    TimeOfDay,
    in_yaml,
)
from training.spec.sections.data import Data
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.prepare import Prepare
from training.spec.sections.promotion import Promote
from training.spec.sections.resources import StageResources
from training.spec.sections.timeout import Timeout
from training.spec.sections.train import Train
from training.spec.sections.tuning import Tune
from training.spec.sections.validation import Validate
from training.stage_table import STAGES, TABLE

FORMAT_VERSION: Final = 1
"""Version of a frozen spec."""


class Retries(Section):
    """How often a stage is tried again, by what ended it."""

    failures: Annotated[int, Field(ge=0, le=100)] = 2
    """How often a failure of the pipeline's own making is tried again. Unit: retries."""
    infrastructure: Annotated[int, Field(ge=0, le=100)] = 8
    """How often a killed or lost stage is started again. Unit: relaunches."""
    backoff: PositiveDuration = Field(default="10s", validate_default=True)
    """Pause before the first retry; each later one is twice as long, at most an hour."""


Event = Literal["failure", "deadline", "success", "rejected", "needs_approval", "canary", "promoted", "rolled_back"]


class Slack(Section):
    """A channel of Slack that gets the alerts."""

    connection: Line = "slack_default"
    """Airflow connection with the token."""
    channel: Line
    """Name or id of the channel. Example: `"#models"`."""


class Email(Section):
    """Addresses that get the alerts."""

    connection: Line = "smtp_default"
    """Airflow connection of the mail server."""
    to: Annotated[tuple[Line, ...], Field(strict=False, min_length=1, max_length=50)]
    """Addresses of the receivers. Example: `[ops@example.com]`."""


class Alerts(Section):
    """What is announced, and where."""

    on: Many[Event] = (
        "failure",
        "deadline",
        "rejected",
        "needs_approval",
        "canary",
        "promoted",
        "rolled_back",
    )
    """Events that are announced: `failure` of a task, a missed `deadline`, `success` of a run, and what became of a candidate or canary."""
    webhook: Line | None = None
    """`${NAME_URI}`: an address is often a secret, so it is never in the file."""
    slack: Slack | None = None
    email: Email | None = None


class Costs(Section):
    """What a training costs; `nightshift show` derives from it what retraining costs in a year."""

    run: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Of one run; absent: its hours times `hour`. Unit: currency. Example: `12`."""
    hour: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Of one hour of one process's placement. Unit: currency per hour of a process. Example: `2.5`."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    """Code of three letters, shown with the amounts."""


class PipelineSpec(Section):
    """One pipeline."""

    name: Name
    """Of the DAG, and of the experiment in MLflow; that of the file."""
    description: Annotated[FreeText, Field(max_length=2000)] = ""
    """What is predicted and for whom; its first line is the description of the DAG."""
    owner: Line
    """Of the DAG and of the runs in MLflow; in a cluster, queues are assigned by it."""
    tags: Many[Annotated[str, Field(min_length=1, max_length=100), ONE_LINE]] = ()
    """Of the DAG."""
    schedule: Annotated[str, Field(max_length=200)] | None = None
    """Cron with five fields; absent: started by hand only."""
    timezone: TimeZone = "UTC"
    """Of the schedule, the deadline and the days of partitions."""
    start: Day | None = None
    """First day of the schedule. Example: `2026-01-31`."""
    deadline: TimeOfDay | None = None
    """An alert goes out when a run is not done by then."""
    priority: Annotated[int, Field(ge=1, le=100)] = 1
    """How much earlier its tasks get a slot than those of other pipelines, where slots are scarce. A task's weight is this number times
    its place in the run: 1 for the first task, 8 for `promote` after a `wait`. With 20, each task goes before all of pipelines with 1.
    Unit: none."""
    retries: Retries = Field(default_factory=Retries)
    timeout: Timeout = Field(default_factory=Timeout)
    alerts: Alerts = Field(default_factory=Alerts)
    data: Data
    validate_: Validate = Field(default_factory=Validate, alias="validate")
    prepare: Prepare
    tune: Tune | None = None
    train: Train
    evaluate: Evaluate
    promote: Promote
    resources: dict[str, StageResources] = Field(default_factory=dict)
    """Stage to what its pod is given, instead of what the installation's file states. Not of trainings: train.placement."""
    costs: Costs = Field(default_factory=Costs)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that this pipeline has, in order."""
        return tuple(stage for stage in STAGES if not TABLE[stage].section or self._has(TABLE[stage].section))

    def _has(self, section: str) -> bool:
        found: object = self
        for key in section.split("."):
            found = getattr(found, key)
        return found not in (None, "none")

    @classmethod
    def thaw(cls, frozen: Mapping[str, object]) -> Self:
        """Return the spec that `freeze` wrote.

        Raises:
            SpecError: `spec.format`, written by a newer version, or not a frozen spec.
        """
        values = dict(frozen)
        version = values.pop("format_version", None)
        if not isinstance(version, int) or version > FORMAT_VERSION:
            message = f"frozen spec has format {in_yaml(version)}, this version reads up to {FORMAT_VERSION}"
            raise spec_error("frozen spec", "spec.format", message, hint="upgrade Nightshift")
        try:
            return cls.model_validate(values, context=FROZEN)
        except ValidationError as err:
            where = ", ".join(".".join(map(str, error["loc"])) for error in err.errors(include_input=False)[:5])
            message = f"frozen spec does not hold what this version reads: {where}"
            raise spec_error("frozen spec", "spec.format", message, hint="start a new run") from err


def freeze(spec: PipelineSpec) -> dict[str, JsonValue]:
    """Return the spec as JSON with its format version. The alerts' webhook is left out: stages need none, and it is often a secret."""
    values = spec.model_dump(mode="json", by_alias=True)
    values["alerts"]["webhook"] = None
    return {"format_version": FORMAT_VERSION, **values}
