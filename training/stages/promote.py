"""Promote: gates decide, the ledger keeps the decision, MLflow's registry follows.

python -m training.stages.promote REQUEST_URI
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from training.contracts import canonical_json
from training.registry.gates import decide
from training.registry.ledger import Entry, Ledger, Standing, decision_key
from training.registry.versions import follow_ledger, tag_version
from training.stages.runner import Outcome, StageContext, main
from training.store import Manifest

logger = logging.getLogger(__name__)

PROMOTED: Final = "promoted"
RECORDED: Final = "recorded"
MAX_REASON_CHARS: Final = 1000


def work(context: StageContext) -> Outcome:
    """Decide about `inputs["model"]` on `inputs["evaluation"]`. The same decision twice is one row, and ends in the same registry.

    Raises:
        DeniedError: `promotion.conflict`.
        UnavailableError: `database.unavailable`, `mlflow.unavailable`; again, it goes on where it was.
    """
    store, request, spec = context.store, context.request, context.spec
    model = store.manifests.get(request.inputs["model"], kind="model")
    evaluation = store.manifests.get(request.inputs["evaluation"], kind="evaluation")
    facts = json.loads(store.objects.get_bytes(evaluation.files["metrics.json"].digest))
    decision = decide(facts, spec.evaluate, approval=spec.promote.approval)
    accepted = decision.outcome == "accepted"
    entry = Entry(
        model=spec.promote.model,
        key=decision_key(spec.promote.model, model.meta["weights_digest"], evaluation.digest),
        version=facts["version"],
        action=PROMOTED if accepted else RECORDED,
        outcome=decision.outcome,
        reasons=decision.reasons_json(),
        evidence=_evidence(context, model, evaluation, facts),
        decided_by=request.run.owner,
    )
    champion = None if not accepted else _standing(context, model, facts)
    revision = (facts["champion"] or {}).get("revision", 0)
    ledger = Ledger()
    with context.timed("ledger"):
        kept = ledger.record(entry, champion=champion, expected_revision=revision)
    with context.timed("registry"):
        standing = _follow(ledger, kept, facts)
    for reason in decision.reasons:
        logger.info("%s %s: %s", "passed" if reason.passed else "FAILED", reason.gate, reason.words)
    logger.info("version %s is %s", kept.version, kept.outcome)
    record = {"outcome": kept.outcome, "action": kept.action, "reasons": list(kept.reasons), "version": kept.version, "key": kept.key}
    uri, manifest = store.manifests.put_files("decision", {"decision.json": canonical_json(record)}, record)
    return Outcome(
        artifact_uri=uri,
        digest=manifest.digest,
        scalars={
            "decision": kept.outcome,
            "reasons": decision.summary[:MAX_REASON_CHARS],
            "model": spec.promote.model,
            "version": kept.version,
            "champion_version": standing.version if standing is not None else None,
        },
    )


def _standing(context: StageContext, model: Manifest, facts: dict[str, Any]) -> Standing:
    return Standing(
        model=context.spec.promote.model,
        version=facts["version"],
        weights_digest=model.meta["weights_digest"],
        model_uri=context.request.inputs["model"],
        as_of=context.request.as_of,
        bounds=model.meta["bounds"],
    )


def _evidence(context: StageContext, model: Manifest, evaluation: Manifest, facts: dict[str, Any]) -> dict[str, Any]:
    request = context.request
    return {
        "weights_digest": model.meta["weights_digest"],
        "model_uri": request.inputs["model"],
        "evaluation_uri": request.inputs["evaluation"],
        "evaluation_digest": evaluation.digest,
        "dataset_uri": request.inputs["dataset"],
        "snapshot_uri": request.inputs["snapshot"],
        "as_of": request.as_of,
        "run_id": request.run.run_id,
        "mlflow_run_id": request.parameters.get("mlflow_run_id"),
        "metrics": facts["metrics"],
        "champion": facts["champion"],
        "champion_metrics": facts["champion_metrics"],
        "comparison": facts["comparison"],
        "baseline": facts["baseline"],
    }


def _follow(ledger: Ledger, kept: Entry, facts: dict[str, Any]) -> Standing | None:
    """Let MLflow say what the ledger says. After a crash between the two, the next attempt comes through here again."""
    standing = ledger.standing(kept.model)
    words = "; ".join(reason["words"] for reason in kept.reasons)
    tag_version(kept.model, kept.version, {"nightshift.decision": kept.outcome, "nightshift.reasons": words})
    if standing is not None and kept.action == PROMOTED and standing.version == kept.version:
        follow_ledger(kept.model, champion=standing.version, previous=(facts["champion"] or {}).get("version"))
    return standing


if __name__ == "__main__":
    main(work)
