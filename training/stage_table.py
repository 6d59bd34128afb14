"""Every stage in one table. A further stage is its module in training/stages/ and one row here.

Standard library only: DAG files, spec rules, operators, backends and the summary of a run read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

TRIAL: Final = "trial"
"""One trial of a study: a stage with a work of its own, many of them before `tune`."""
REFIT: Final = "refit"
"""Fits the model that `train` found once more, on the validation rows too."""
CANARY: Final = "canary"
"""Scores a canary and its champion on new rows."""
REPAIR: Final = "repair"
"""Makes MLflow agree with the ledger, for all models."""


class Place(StrEnum):
    """The DAG that a stage belongs to."""

    CHAIN = "chain"
    """The pipeline's own, one task after the other in the order of the table."""
    STUDY = "study"
    """The mapped tasks before `tune`."""
    CANARY = "canary"
    """`<pipeline>.canary`."""
    HOUSEKEEPING = "housekeeping"
    """That of all pipelines: none of them sizes it."""


class Need(StrEnum):
    """A service that a stage opens."""

    STORE = "store"
    DATABASE = "database"
    """`NIGHTSHIFT_DATABASE`: dataset versions, the ledger, the storage of studies."""
    MLFLOW = "mlflow"
    """`MLFLOW_TRACKING_URI` and the account for it."""


class Named(StrEnum):
    """Code that a stage imports by a name in the spec or in a model, which no import statement shows."""

    FAMILY = "family"
    """The model family of the spec."""
    OTHER_FAMILIES = "other families"
    """Those of champion and canary."""
    METRICS = "metrics"
    """The metrics of the user's own."""
    GATES = "gates"
    """The gates, those of other distributions that the spec names among them."""
    SOURCES = "sources"
    """The kinds of the spec's sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One row."""

    name: str
    """Of the module in training/stages/, of the task, and of the work in the store."""
    place: Place = Place.CHAIN
    section: str = ""
    """Section or key of the spec without which a pipeline has no such stage, dotted; empty: every pipeline has it."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name of an input to the stage that makes it. An input of a stage that a pipeline does not have is left out."""
    in_place_of: str = ""
    """Stage whose result the later stages of a pipeline take from this one."""
    services: frozenset[Need] = frozenset({Need.STORE})
    """A backend gives the stage's process nothing else; tests compare them with what the stage imports."""
    imports: frozenset[Named] = frozenset()
    sections: tuple[str, ...] = ()
    """Sections of the spec that the result depends on, for stages that have no function of their own in training/spec/covered_keys.py."""
    pool: Literal["cpu", "train"] = "cpu"
    """`train`: it is placed, sized and pooled as the spec's `train.placement` states."""
    sized_like: str = ""
    """Stage whose resources it has where an installation states none of its own."""
    summary: tuple[str, ...] = ()
    """Scalars of its result that `make run` prints, besides rows."""


_STORE_AND_MLFLOW: Final = frozenset({Need.STORE, Need.MLFLOW})
_ALL_SERVICES: Final = frozenset(Need)
_ROWS: Final = (
    Stage(
        name="ingest",
        services=frozenset({Need.STORE, Need.DATABASE}),
        imports=frozenset({Named.SOURCES}),
        summary=("files", "version"),
    ),
    Stage(name="validate", inputs={"snapshot": "ingest"}, summary=("checks", "warnings")),
    Stage(
        name="prepare",
        inputs={"snapshot": "ingest", "validation": "validate"},
        summary=("features", "rows_train", "rows_validation", "rows_test"),
    ),
    Stage(name="tune", section="tune", inputs={"dataset": "prepare"}, services=_STORE_AND_MLFLOW),
    Stage(
        name="train",
        inputs={"dataset": "prepare", "snapshot": "ingest", "tuning": "tune"},
        services=_STORE_AND_MLFLOW,
        imports=frozenset({Named.FAMILY}),
        pool="train",
        summary=("steps", "best_epoch", "validation_loss", "stragglers"),
    ),
    Stage(
        name=REFIT,
        section="train.refit",
        inputs={"model": "train", "dataset": "prepare", "snapshot": "ingest", "tuning": "tune"},
        in_place_of="train",
        services=_STORE_AND_MLFLOW,
        imports=frozenset({Named.FAMILY}),
        pool="train",
        sized_like="train",
        summary=("steps", "learned_until", "stragglers"),
    ),
    Stage(
        name="evaluate",
        inputs={"model": "train", "dataset": "prepare", "validation": "validate"},
        services=_STORE_AND_MLFLOW,
        imports=frozenset({Named.FAMILY, Named.OTHER_FAMILIES, Named.METRICS, Named.GATES}),
    ),
    Stage(
        name="promote",
        inputs={"model": "train", "evaluation": "evaluate", "snapshot": "ingest", "dataset": "prepare"},
        services=_ALL_SERVICES,
        imports=frozenset({Named.GATES}),
        sections=("promote", "evaluate"),
    ),
    Stage(
        name=TRIAL,
        place=Place.STUDY,
        section="tune",
        inputs={"dataset": "prepare"},
        services=_ALL_SERVICES,
        imports=frozenset({Named.FAMILY, Named.METRICS}),
        pool="train",
        sized_like="train",
    ),
    Stage(
        name=CANARY,
        place=Place.CANARY,
        section="promote.canary",
        inputs={"dataset": "prepare"},
        imports=frozenset({Named.OTHER_FAMILIES, Named.METRICS}),
        sized_like="evaluate",
    ),
    Stage(name=REPAIR, place=Place.HOUSEKEEPING, services=_ALL_SERVICES, sized_like="promote"),
)

TABLE: Final[Mapping[str, Stage]] = {row.name: row for row in _ROWS}
ALL_STAGES: Final = tuple(TABLE)
"""Names that an installation may size, and give Secrets."""
STAGES: Final = tuple(row.name for row in _ROWS if row.place is Place.CHAIN)
"""Those of the chain, in order; a pipeline has those of `PipelineSpec.stages`."""
TRAININGS: Final = frozenset(row.name for row in _ROWS if row.pool == "train")
"""Those that are placed as the spec's `train.placement` states."""


def upstream(stage: str) -> tuple[str, ...]:
    """Return the stages whose results a stage needs, directly or not, in the order of the table."""
    found: set[str] = set()
    waiting = [stage]
    while waiting:
        makers = set(TABLE[waiting.pop()].inputs.values()) - found
        found |= makers
        waiting += makers
    return tuple(name for name in TABLE if name in found)
