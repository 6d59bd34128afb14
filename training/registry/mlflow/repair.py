"""Sets MLflow right for all models in one process, as housekeeping does every hour. The failure of one model does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import mlflow

from training.contracts import ExitCode
from training.engine.tracking.mlflow_delivery import quick_requests
from training.errors import DeniedError, NightshiftError, UnavailableError
from training.process import liveness
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow.mirror import mirror
from training.registry.mlflow.retention import OpenWork, forget, forget_notes
from training.registry.mlflow.versions import registry_faults
from training.spec import PipelineSpec
from training.store import Store

logger = logging.getLogger(__name__)

RETRIED: Final = (ExitCode.UNAVAILABLE, ExitCode.UNEXPECTED)


@dataclass(slots=True)
class Repaired:
    """What became of each model."""

    models: list[str]
    failures: dict[str, NightshiftError] = field(default_factory=dict)
    """Model to its error."""
    skipped: list[str] = field(default_factory=list)
    """Models that were not looked at, because MLflow stopped answering."""

    def check(self) -> None:
        """Return if no model failed.

        Raises:
            UnavailableError, DeniedError: `registry.repair`, with each model that failed and the reason. The first is retried.
        """
        if not self.failures:
            return
        listed = "; ".join(f"{model}: {err}" for model, err in self.failures.items())
        message = f"{len(self.failures)} of {len(self.models)} models failed: {listed}"
        if self.skipped:
            message += f"; MLflow does not answer, so {len(self.skipped)} more were not checked: {', '.join(self.skipped)}"
        is_retried = any(err.exit_code in RETRIED for err in self.failures.values())
        kind = UnavailableError if is_retried else DeniedError
        raise kind("registry.repair", message, hint="the other models are done; by hand: python -m training.registry check --repair")


def repair_models(
    store: Store, ledger: Ledger, *, forget_before: datetime | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Repaired:
    """Make MLflow agree with the ledger for each model, and delete from MLflow by the retention settings.

    Args:
        forget_before: delete ended runs that started earlier, and versions whose weights are deleted; None: delete nothing.
        now: the clock.

    Returns:
        What failed, by model; each failure is also in the log.

    Raises:
        UnavailableError: `database.unavailable`, no model can be repaired without the ledger; `mlflow.unavailable` or `mlflow.denied`,
            when no model failed and notes of logged models were to be deleted.
    """
    found = Repaired(ledger.models())
    work = OpenWork(store)
    for number, model in enumerate(found.models):
        liveness.moved()
        try:
            mirror(ledger, store, model, now=now)
            if forget_before is not None:
                forget(store, ledger, model, experiment=experiment_of(store, ledger, model), before=forget_before, work=work)
        except UnavailableError as err:
            if err.code.startswith("database."):
                raise
            found.failures[model] = err
            logger.error("%s: %s", model, err)
            if not answers():
                found.skipped = found.models[number + 1 :]
                break
        except NightshiftError as err:
            found.failures[model] = err
            logger.error("%s: %s", model, err)
        except Exception as err:
            found.failures[model] = NightshiftError("stage.unexpected", f"{type(err).__name__}: {err}")
            logger.exception("%s: unexpected error", model)
    if forget_before is not None and not found.failures:
        forget_notes(store, ledger)
    return found


def experiment_of(store: Store, ledger: Ledger, model: str) -> str | None:
    """Return the MLflow experiment of a model: the pipeline of its newest decision that names one; None where none does.

    Raises:
        NightshiftError: the decision names its spec alone, and that cannot be read.
    """
    for entry in ledger.newest_first(model):
        evidence: Mapping[str, object] = entry.evidence
        if evidence.get("pipeline"):
            return str(evidence["pipeline"])
        if evidence.get("spec_uri"):
            return PipelineSpec.thaw(store.get_json(str(evidence["spec_uri"]))).name
    return None


def answers() -> bool:
    """Return whether MLflow answers a small request: then the error before it concerns one model."""
    try:
        check_answers()
    except UnavailableError:
        return False
    return True


def check_answers() -> None:
    """Return once MLflow has answered a small request.

    Raises:
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`, after seconds.
    """
    with quick_requests(), registry_faults():
        mlflow.MlflowClient().search_registered_models(max_results=1)
