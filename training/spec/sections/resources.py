"""The section `resources`: CPUs and memory of single stages. A training is sized by `train.placement`, and only there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from pydantic import Field

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import Bytes, Section, in_yaml
from training.spec.sections.promotion import Promote
from training.spec.sections.tuning import Tune
from training.stage_table import TABLE, TRAININGS, Place

SIZED: Final = tuple(stage for stage, row in TABLE.items() if stage not in TRAININGS and row.place is not Place.HOUSEKEEPING)


class StageResources(Section):
    """What the pod of one stage is given; an absent key: as the installation's placement file states."""

    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Cores that are requested. Unit: cores."""
    memory: Bytes | None = None
    """Limit of the pod's memory."""


def resources_fit(resources: Mapping[str, StageResources], tune: Tune | None, promote: Promote) -> Iterator[Violation]:
    """Yield a violation for each entry that would size nothing, or that another key sizes."""
    absent = {key for key, section in (("tune", tune), ("promote.canary", promote.canary)) if section is None}
    for stage, asked in resources.items():
        path: Path = ("resources", stage)
        if stage in TRAININGS:
            message = f"{stage} is sized by train.placement"
            yield Violation(path, "resources.twice", message, "write cpus and memory under train.placement: trials have the same")
        elif stage not in SIZED:
            yield Violation(path, "stage.unknown", f"there is no stage {in_yaml(stage)}", f"one of {', '.join(SIZED)}")
        elif (section := TABLE[stage].section) in absent:
            yield Violation(path, "stage.unknown", f"this pipeline has no stage {stage}", f"add the section {section}, or remove the entry")
        elif asked.cpus is None and asked.memory is None:
            yield Violation(path, "field.missing", f"{stage} has neither cpus nor memory", "write one of the two, or remove the entry")
