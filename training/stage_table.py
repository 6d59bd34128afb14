"""Every stage in one table, with the services that it opens. Standard library only: spec rules, backends and manifests read it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from training.contracts import STAGES, TRIAL

CANARY: Final = "canary"
"""Scores a canary and its champion on new rows; the stage of `<pipeline>.canary`, not of the nightly chain."""


class Need(StrEnum):
    """A service that a stage opens."""

    STORE = "store"
    DATABASE = "database"
    """`NIGHTSHIFT_DATABASE`: dataset versions, the ledger, the storage of studies."""
    MLFLOW = "mlflow"
    """`MLFLOW_TRACKING_URI` and the account for it."""


STAGE_NEEDS: Final[Mapping[str, frozenset[Need]]] = {
    "ingest": frozenset({Need.STORE, Need.DATABASE}),
    "validate": frozenset({Need.STORE}),
    "prepare": frozenset({Need.STORE}),
    TRIAL: frozenset({Need.STORE, Need.DATABASE, Need.MLFLOW}),
    "tune": frozenset({Need.STORE, Need.MLFLOW}),
    "train": frozenset({Need.STORE, Need.MLFLOW}),
    "evaluate": frozenset({Need.STORE, Need.MLFLOW}),
    CANARY: frozenset({Need.STORE}),
    "promote": frozenset({Need.STORE, Need.DATABASE, Need.MLFLOW}),
}
"""Stage to what it opens. A backend gives a stage's process nothing else; tests compare the table with what the stages do."""

ALL_STAGES: Final = (*STAGES, TRIAL, CANARY)
"""Names that an installation may size, and give Secrets."""
