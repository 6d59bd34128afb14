"""Which data the champion of a moment was trained on, as the ledger says."""

from __future__ import annotations

from datetime import datetime

from training.registry.ledger.decisions import champions, holder_of, with_evidence
from training.registry.ledger.ledger import Ledger


def champions_snapshot(ledger: Ledger, model: str, before: datetime) -> str | None:
    """Return the digest of the snapshot that the champion was trained on, None where there is no champion.

    Args:
        before: of the run that asks. The newest champion whose `as_of` is earlier counts: a run that is repeated after its own model
            became champion finds the one that it found then.
    """
    history = ledger.outline(model)
    for outlined in reversed(champions(history)):
        holder = holder_of(with_evidence(ledger, outlined))
        if holder.as_of >= before:
            continue
        # A rollback's own evidence does not name the data.
        decisions = (with_evidence(ledger, entry) for entry in history if entry.weights_digest == holder.weights_digest)
        return next((str(entry.evidence["snapshot_digest"]) for entry in decisions if entry.evidence.get("snapshot_digest")), None)
    return None
