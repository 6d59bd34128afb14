"""A rollback by this process, without Airflow: in the ledger, then in MLflow. The DAG `rollback` does the same for a server."""

from __future__ import annotations

from training.errors import DeniedError, UnavailableError
from training.registry.ledger.alias_findings import RecordedFindings
from training.registry.ledger.decisions import roll_back
from training.registry.ledger.ledger import Ledger
from training.store import Store


def roll_back_and_mirror(ledger: Ledger, store: Store, model: str, *, to: str, expected_revision: int, by: str, reason: str) -> str:
    """Make an earlier champion champion again; return its number in MLflow.

    Args:
        to: its weights' digest.
        expected_revision: of the standing that the user has seen.
        by: the user who orders it.

    Raises:
        DeniedError: as `roll_back`; `registry.version_missing`, MLflow has lost the version.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`: the rollback is recorded, and MLflow does not take it.
    """
    kept = roll_back(ledger, model, by=by, reason=reason, to=to, expected_revision=expected_revision)
    # MLflow: a second that the ledger need not wait for.
    from training.registry.mlflow.mirror import mirror
    from training.registry.mlflow.repair import check_answers

    try:
        # Its client would try for four minutes.
        check_answers()
        mirror(ledger, store, model)
    except UnavailableError as err:
        # Not again: a second rollback would go further back.
        hint = f"the rollback is recorded; to update MLflow: python -m training.registry check {model} --repair"
        raise UnavailableError(err.code, err.message, hint=hint) from err
    lost = [finding for finding in RecordedFindings(ledger.database_url).open(model) if finding.kind == "missing"]
    if lost:
        raise DeniedError(
            "registry.version_missing", f"the rollback is recorded, but {lost[0].words}", hint="name another version with --to"
        )
    # Its number of now: one that MLflow had lost is registered again under another.
    place = ledger.registrations(model).get(kept.weights_digest)
    return kept.version if place is None else place.number
