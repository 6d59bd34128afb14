"""The file that `NIGHTSHIFT_RETENTION` names: how long an installation keeps what it writes. docs/retention.md has the table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationError

from training.errors import SpecError, spec_error
from training.installation import Variable
from training.spec.reader.problems import in_order, problems_of
from training.spec.reader.yaml import read_document
from training.spec.scalar_types import PositiveDuration, Section, refusal
from training.store.reachability import KeepRules

RETENTION: Final = Variable(
    name="NIGHTSHIFT_RETENTION",
    kind="path",
    default="none: the defaults",
    meaning="path of a YAML file with the retention settings (docs/retention.md)",
)
LEAST_GRACE: Final = timedelta(hours=1)
LEAST_KEPT: Final = timedelta(days=1)


def _grace(value: timedelta) -> timedelta:
    if value < LEAST_GRACE:
        raise refusal("field.range", "must be at least 1h", hint="longer than any stage takes from its first write to its commit")
    return value


def _kept(value: timedelta) -> timedelta:
    # `30m` for thirty days is thirty minutes: runs under way would lose what their next stage reads.
    if value < LEAST_KEPT:
        raise refusal("field.range", "must be at least 1d", hint="d is for days; m is for minutes")
    return value


class Retention(Section):
    """How long things stay; the checkpoints of a training are its pipeline's (`train.checkpoint.keep`)."""

    runs: Annotated[PositiveDuration, AfterValidator(_kept)] = Field(default="30d", validate_default=True)
    """Runs and their work after the last change: snapshots, datasets, models, evaluations, reports, studies."""
    champions: Annotated[int, Field(ge=0, le=1000)] = 5
    """Former champions of each model that stay, with what they were made of, however old they are. Unit: versions."""
    attempts: PositiveDuration = Field(default="14d", validate_default=True)
    """Failed attempts of finished work: requests, logs, errors."""
    airflow: Annotated[PositiveDuration, AfterValidator(_kept)] = Field(default="30d", validate_default=True)
    """Runs in Airflow's database, and their task logs, on a laptop."""
    grace: Annotated[PositiveDuration, AfterValidator(_grace)] = Field(default="2d", validate_default=True)
    """Time between the mark of unneeded content and its deletion."""
    every: PositiveDuration = Field(default="1d", validate_default=True)
    """Housekeeping collects when the last collection is so long ago."""

    def rules(self) -> KeepRules:
        return KeepRules(runs=self.runs, attempts=self.attempts, grace=self.grace)


def load_retention(environ: Mapping[str, str] = os.environ) -> Retention:
    """Read the file, as strictly as a pipeline's; without one the defaults hold.

    Raises:
        SpecError: `settings.path`, `settings.retention` (the file cannot be read), or every problem, in the order of its lines.
    """
    source = RETENTION.text(environ)
    if not source:
        return Retention()
    if not source.startswith("/"):
        # Services, tasks and shells have different working folders.
        message, hint = "is not an absolute path", "begin it with /"
        raise spec_error("the environment", "settings.path", message, hint=hint, field=RETENTION.name)
    try:
        text = Path(source).read_bytes()
    except OSError as err:
        message = f"cannot be read: {err.strerror}"
        raise spec_error(source, "settings.retention", message, hint=f"{RETENTION.name} names the file") from err
    document = read_document(text, source)
    try:
        found = Retention.model_validate(document.value)
    except ValidationError as err:
        raise SpecError(source, in_order([*document.problems, *problems_of(err, Retention, document)])) from err
    if document.problems:
        raise SpecError(source, in_order(document.problems))
    return found
