"""Repair: MLflow is compared with the ledger for all models, and gets the metrics that wait for it. Housekeeping's stage.

python -m training.stages.repair REQUEST_URI
"""

from __future__ import annotations

from datetime import UTC, datetime

from training.engine.tracking.mlflow_delivery import deliver_all
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow.repair import repair_models
from training.runtime.runner import StageContext, StageOutput, main


def work(context: StageContext) -> StageOutput:
    """Repair all models, and deliver the metrics that wait for MLflow, whether or not anything was ever decided.

    `parameters["forget_before"]`, a date: MLflow's runs that ended before it are deleted. Absent: none is.

    Raises:
        DeniedError: `registry.repair`.
        UnavailableError: `database.unavailable`, `mlflow.unavailable`, `mlflow.denied`, `registry.repair`; a retry continues from there.
    """
    limit = context.request.parameters.get("forget_before")
    before = None if limit is None else datetime.fromisoformat(limit).replace(tzinfo=UTC)
    with context.timed("registry", kind="mlflow"):
        found = repair_models(context.store, Ledger(), forget_before=before)
    if not found.skipped:  # Else MLflow does not answer.
        with context.timed("tracking", kind="mlflow"):
            deliver_all(context.store.bucket)
    found.check()
    record = {"repaired": found.models, "forget_before": limit, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    return context.store_artifact("repair", {}, record, {"models": len(found.models)})


if __name__ == "__main__":
    main(work)
