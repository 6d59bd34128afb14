"""What the commands read without a server: ledger and database of this installation, as the records that a server answers with."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from nightshift.mlflow_account import laptop_variables
from nightshift.queries import models
from nightshift.queries.datasets import record_of
from nightshift.queries.schemas import DatasetDetails, DatasetVersion, DecisionSummary, Model, ModelDetails, ModelVersion, StageOrder
from nightshift.settings import Settings
from training.database import connect
from training.database.datasets import columns_of, datasets, deprecate, find_dataset
from training.errors import DeniedError, shown, spec_error
from training.installation import DATABASE, HOME, TRACKING
from training.registry.ledger.ledger import Ledger
from training.store import installed_store


class LocalReader:
    """The installation of this machine. Methods are those of `Client`; who may use its files may read all of it.

    Each raises SpecError `command.ledger` where neither a variable nor a checkout says where the ledger is.
    """

    @functools.cached_property
    def _ledger(self) -> Ledger:
        _check_place()
        return Ledger()

    @functools.cached_property
    def _database(self) -> Engine:
        _check_place()
        return connect()

    def models(self) -> list[Model]:
        """Return the models, by name."""
        return models.models(self._ledger, set)

    def model(self, name: str) -> ModelDetails:
        """Return a model's standing.

        Raises:
            DeniedError: `model.unknown`, nothing was ever decided about it.
        """
        known = self._ledger.models()
        if name not in known:
            raise DeniedError("model.unknown", f"nothing was decided about {shown(name)}", hint=f"models: {', '.join(known) or 'none'}")
        return models.model(self._ledger, name, _may)

    def version(self, model: str, version: str) -> ModelVersion:
        """Return a version with the decisions about it."""
        return models.version(self._ledger, model, version, _may)

    def decisions(self, model: str) -> list[DecisionSummary]:
        """Return the decisions about a model, the newest first."""
        return models.decisions(self._ledger, model, _may)

    def whole(self, model: Model) -> dict[str, Any]:
        """Return all that the ledger has about a model, with the evidence of every decision."""
        return {"standing": self._ledger.standing(model.name), "decisions": self._ledger.history(model.name)}

    def roll_back(self, model: ModelDetails, version: ModelVersion, *, reason: str, by: str | None) -> StageOrder:
        """Make a version champion again, unless another decision has moved the model since `model` was read; MLflow follows.

        Args:
            by: the user who orders it; None: the user of this process.
        """
        os.environ |= mlflow_variables(os.environ)
        # Reads these variables, and takes seconds to import.
        from training.registry.rollback import roll_back_and_mirror

        number = roll_back_and_mirror(
            self._ledger,
            installed_store(),
            model.name,
            to=version.weights_digest,
            expected_revision=model.revision,
            by=by or _user(),
            reason=reason,
        )
        return StageOrder(model=model.name, version=number, stage="champion", is_done=True, run=None, run_state=None)

    def datasets(self, pipeline: str | None) -> list[DatasetVersion]:
        """Return the versions of a pipeline's data, or of all, the newest first."""
        return [record_of(found) for found in datasets(self._database, pipeline)]

    def dataset(self, pipeline: str, version: str, *, store: str | None) -> DatasetDetails:
        """Return one version with its columns.

        Args:
            store: root URI of the store that has its manifest; None: this installation's.
        """
        found = find_dataset(self._database, pipeline, version)
        return DatasetDetails(**record_of(found).model_dump(), tables=columns_of(installed_store(store), found))

    def deprecate(self, pipeline: str, version: str, *, reason: str, by: str | None) -> DatasetVersion:
        """Mark a version, so that new runs refuse it; `by` as of `roll_back`."""
        return record_of(deprecate(self._database, pipeline, version, by=by or _user(), reason=reason))


def mlflow_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what names the laptop installation's MLflow, where no variable names one."""
    return {} if TRACKING.text(environ) else laptop_variables(Settings.from_environment(environ))


def _check_place() -> None:
    if not (DATABASE.text() or HOME.text()):
        message = (
            f"the ledger's place is not known: NIGHTSHIFT_DATABASE and NIGHTSHIFT_HOME are not set, and {Path.cwd()} is not in a checkout"
        )
        hint = "export NIGHTSHIFT_DATABASE=postgresql+psycopg2://user:password@host:port/name, or change to a checkout"
        raise spec_error("nightshift", "command.ledger", message, hint=hint)


def _may(_pipeline: str) -> bool:
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
