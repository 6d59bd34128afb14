"""Promote: gates decide, the ledger keeps the decision, MLflow's registry follows.

python -m training.stages.promote REQUEST_URI

`parameters["order"]` names what is decided about: absent, a candidate on its evaluation; `canary`, a canary on what arrived since;
`follow`, nothing: the decision (an answer to a request, a rollback) is in the ledger and is propagated to MLflow.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from training.contracts import JsonObject, JsonValue, Scalar, StageRequest, canonical_json, instant_text, sha256_hex
from training.data.features.transforms_file import serving_inputs
from training.engine.tracking.mlflow_delivery import tracked_run
from training.errors import DeniedError, UnavailableError
from training.evaluation.record import FILE, EvaluationRecord
from training.registry.gates.judging import CanaryDecision, decide, judge_canary
from training.registry.ledger import retraining
from training.registry.ledger.decisions import approved_findings, numbered, record_candidate, settle_canary, settlement
from training.registry.ledger.ledger import AliasHolder, Entry, Ledger, ModelAliases
from training.registry.ledger.reasons import SIMULATED, Reason, all_words, headline, reason_line
from training.registry.ledger.semver import Recipe, semantic_version
from training.registry.ledger.version_weights import MLflowRegistration
from training.registry.mlflow.mirror import mirror
from training.registry.mlflow.restoring import Origin, registration_now
from training.registry.mlflow.runs import note_decision
from training.runtime.provenance import SAME_MODULES
from training.runtime.runner import StageContext, StageOutput, main
from training.spec import PipelineSpec, spec_part
from training.spec.covered_keys import import_part
from training.spec.descriptors.families import FAMILIES
from training.spec.registration import registered_words
from training.stage_table import REFIT
from training.store import Manifest, Store

logger = logging.getLogger(__name__)

MAX_REASON_CHARS: Final = 1000


def work(context: StageContext) -> StageOutput:
    """Decide, then update MLflow. The same decision twice is one row, with the same result in the registry.

    Raises:
        DataError: `evaluation.damaged`, `evaluation.newer`.
        DeniedError: `promotion.conflict`, `evaluation.mismatch`, `canary.missing`, `decision.unknown`.
        UnavailableError: `database.unavailable`, `mlflow.unavailable`, `mlflow.denied`; a retry continues from there.
    """
    order = context.request.parameters.get("order", {"kind": "candidate"})
    ledger, store, model = Ledger(), context.store, context.spec.promote.model
    with context.timed("ledger"):
        kept = _DECIDERS[order["kind"]](context, ledger, order)
    with context.timed("registry", kind="mlflow"):
        standing = _followed(store, ledger, model, kept, is_order=order["kind"] == "follow")
    if isinstance(kept, CanaryDecision):
        record, scalars = _waiting(context.request.inputs["evaluation"], standing, kept)
        return context.store_artifact("decision", {}, record, scalars)
    place = ledger.registrations(model).get(kept.weights_digest)
    if place is not None:
        # Its number of now: one that MLflow had lost since the decision is registered again under another.
        kept = replace(kept, version=place.number)
    with context.timed("run", kind="mlflow"):
        note_decision(kept.evidence.get("mlflow_run_id"), kept)
    for reason in _readable(kept):
        logger.info("%s", reason_line(reason))
    logger.info("version %s of %s: %s, %s", numbered(kept), model, kept.outcome, kept.action)
    record, scalars = _decided(kept, standing)
    return context.store_artifact("decision", {}, record, scalars)


def _followed(store: Store, ledger: Ledger, model: str, kept: Entry | CanaryDecision, *, is_order: bool) -> ModelAliases:
    """Update MLflow. Where no alias moved and MLflow does not answer, a later update adds the tags; an approval does not wait for them."""
    try:
        return mirror(ledger, store, model)
    except UnavailableError as err:
        if isinstance(kept, CanaryDecision) or kept.action != "recorded" or is_order:
            raise
        logger.warning("%s", err)
        return ledger.standing(model)


def _candidate(context: StageContext, ledger: Ledger, order: Mapping[str, str]) -> Entry:
    request, spec, store = context.request, context.spec, context.store
    model, evaluation = context.input("model"), context.input("evaluation")
    record = _record(store, evaluation, request.inputs["evaluation"])
    decision = decide(record, spec.evaluate, approval=spec.promote.approval, promote=spec.promote)
    weights = model.meta["weights_digest"]
    _check_measured(record, weights)
    snapshot = context.input("snapshot")
    # A dataset's manifest says nothing of the code that made it: equal rows made by other code are the same dataset.
    recipe = _recipe(spec, store, model, snapshot.digest, prepare_code=str(request.parameters.get("prepare_code", "")))
    evidence = {
        **_shared_evidence(request, evaluation, record),
        "weights_digest": weights,
        "model_uri": request.inputs["model"],
        "dataset_uri": request.inputs["dataset"],
        "snapshot_uri": request.inputs["snapshot"],
        "snapshot_digest": snapshot.digest,
        "input_schema": dict(recipe.input_schema),
        "output_schema": dict(recipe.output_schema),
        "framework": recipe.framework,
        "has_canary": spec.promote.canary is not None,
        "mlflow_run_id": tracked_run(store.bucket, request.parameters),
        "overrides": request.parameters.get("overrides", {}),
        retraining.KEY: _retraining(spec, request),
        **({"registered": model.meta["registered"]} if "registered" in model.meta else {}),
    }
    origin = Origin.of(weights, evidence, model_uri=request.inputs["model"])
    place = _registration(store, ledger, spec.promote.model, origin, record)
    holder = AliasHolder(
        version=place.number,
        semantic_version=semantic_version(spec.promote.model, weights, recipe),
        weights_digest=weights,
        model_uri=request.inputs["model"],
        as_of=request.as_of,
        bounds=model.meta["bounds"],
        artifact_digest=place.artifact_digest,
    )
    return record_candidate(
        ledger,
        holder,
        model=spec.promote.model,
        outcome=decision.outcome,
        reasons=[*decision.reasons, *_overridden(evidence["overrides"]), *_from_outside(model)],
        evidence=evidence,
        decided_by=request.run.owner,
    )


def _retraining(spec: PipelineSpec, request: StageRequest) -> JsonObject:
    """Return what `nightshift show` says of the cost of retraining rests on."""
    costs = spec.costs
    by_hour = None if costs.hour is None else costs.hour * request.parameters["process_hours"]
    run_cost = by_hour if costs.run is None else costs.run
    return {"primary": spec.evaluate.primary, "run_cost": run_cost, "currency": costs.currency}


def _registration(store: Store, ledger: Ledger, model: str, origin: Origin, record: EvaluationRecord) -> MLflowRegistration:
    """Return where MLflow has the candidate now, registered again where it lost it: the evaluation may be of an earlier run.

    Where MLflow does not answer, what the evaluation says counts until the next comparison.
    """
    weights = origin.weights_digest
    hint = ledger.registrations(model).get(weights)
    found = hint or MLflowRegistration(
        number=record.version or "", logged_model=record.logged_model, artifact_digest=record.artifact_digest
    )
    try:
        found = registration_now(store, model, origin, found)
    except UnavailableError as err:
        logger.warning("%s", err)
    if found != hint:
        ledger.note_registration(model, weights, found)
    return found


def _overridden(overrides: JsonObject) -> list[Reason]:
    """Return a reason that names the thresholds that the trigger changed, for the record; none where it changed none."""
    named = [f"{key} {value}" for key, value in sorted(overrides.items()) if key.startswith("evaluate.")]
    return [Reason.said("overrides", f"the trigger of this run set {', '.join(named)}")] if named else []


def _from_outside(model: Manifest) -> list[Reason]:
    """Return a reason that says where a model from outside came from; none for one that was trained here."""
    registered = model.meta.get("registered")
    return [] if registered is None else [Reason.said("registered", registered_words(registered))]


def _canary(context: StageContext, ledger: Ledger, order: Mapping[str, str]) -> Entry | CanaryDecision:
    """Settle the canary, or return the decision that it waits on."""
    canary_rules = context.spec.promote.canary
    evaluation = context.input("evaluation")
    record = _record(context.store, evaluation, context.request.inputs["evaluation"])
    model, judged, measured_at = context.spec.promote.model, _measured_weights(record), _revision(record)
    done = settlement(ledger, model, weights_digest=judged, revision=measured_at)
    if done is not None:
        # An attempt before this one died after the ledger had it.
        return done
    standing = ledger.standing(model)
    held = "" if standing.canary is None else standing.canary.weights_digest
    if canary_rules is None or standing.canary is None or held != judged or standing.revision != measured_at:
        raise DeniedError("canary.missing", f"{context.spec.promote.model} has another canary than was judged, or none", hint="look again")
    is_simulated = SIMULATED in context.request.parameters
    decision = judge_canary(
        record,
        canary_rules,
        rules=context.spec.evaluate,
        # `since` is of the machine's clock, whatever the night was as of.
        since=standing.canary.as_of if is_simulated else datetime.fromisoformat(standing.canary.since),
        now=datetime.fromisoformat(order["now"]),
        approved=approved_findings(ledger, standing),
        simulated=is_simulated,
    )
    for reason in decision.reasons:
        logger.info("%s", reason_line(reason))
    if decision.outcome == "waiting":
        return decision
    return settle_canary(
        ledger,
        standing,
        "accepted" if decision.outcome == "promote" else "rolled_back",
        reasons=decision.reasons,
        evidence={**_shared_evidence(context.request, evaluation, record), **({SIMULATED: True} if is_simulated else {})},
        decided_by=context.request.run.owner,
    )


def _known(context: StageContext, ledger: Ledger, order: Mapping[str, str]) -> Entry:
    kept = ledger.decision(context.spec.promote.model, order["key"])
    if kept is None:
        raise DeniedError(
            "decision.unknown", f"the ledger has no decision {order['key']}", hint="NIGHTSHIFT_DATABASE of task and stage differ"
        )
    return kept


_DECIDERS: Final = {"candidate": _candidate, "canary": _canary, "follow": _known}


def _check_measured(record: EvaluationRecord, weights: str) -> None:
    """Refuse another model's evaluation: after a task was cleared alone, XCom may hold one.

    Raises:
        DeniedError: `evaluation.mismatch`.
    """
    measured = _measured_weights(record)
    if measured != weights:
        message = f"the evaluation is of weights {measured[:12]}, the model has {weights[:12]}"
        raise DeniedError("evaluation.mismatch", message, hint="clear the evaluate task: this model was not measured")


def _measured_weights(record: EvaluationRecord) -> str:
    return "" if record.candidate is None else record.candidate.weights_digest


def _revision(record: EvaluationRecord) -> int:
    """Return the revision of the standing that was measured against; 0: there was no champion."""
    return 0 if record.champion is None else record.champion.revision


def _record(store: Store, evaluation: Manifest, uri: str) -> EvaluationRecord:
    data = store.manifests.read(evaluation, FILE)
    return EvaluationRecord.read(data, where=f"{FILE} of {uri}")


def _shared_evidence(request: StageRequest, evaluation: Manifest, record: EvaluationRecord) -> dict[str, JsonValue]:
    named = (
        "metrics",
        "champion",
        "champion_metrics",
        "canary",
        "canary_metrics",
        "comparison",
        "canary_comparison",
        "baseline",
        "num_rows",
    )
    found = record.to_json(*named)
    return {
        "pipeline": request.pipeline,
        "spec_uri": request.spec_uri,
        "as_of": instant_text(request.as_of),
        "run_id": request.run.run_id,
        "triggered_by": request.parameters.get("triggered_by"),
        "evaluation_uri": request.inputs["evaluation"],
        "evaluation_digest": evaluation.digest,
        "report_uri": request.parameters.get("report_uri"),
        "revision": _revision(record),
        **{name: found.get(name) for name in named},
    }


def _recipe(spec: PipelineSpec, store: Store, model: Manifest, snapshot_digest: str, *, prepare_code: str) -> Recipe:
    facts = json.loads(store.manifests.read(model, "model.json"))
    inputs = serving_inputs(store.manifests.read(model, "transforms.json"))
    types, label = spec.data.frame_types(), spec.data.label
    family = FAMILIES.get(facts["family"])
    library = "torch" if family is None else family.libraries[0]
    library = library if library in facts["environment"] else SAME_MODULES.get(library, library)
    made = import_part(spec) if "registered" in model.meta else spec_part(spec, "train" if spec.train.refit == "none" else REFIT)
    parts = [spec_part(spec, "prepare"), made, facts["code_version"], prepare_code]
    return Recipe(
        input_schema={name: types[name] for name in inputs if name in types},
        output_schema={
            **{"label": label.column, "rule": label.rule, "task": spec.evaluate.task},
            # A caller reads the columns of the answer by these names.
            **({"classes": facts["classes"]} if "classes" in facts else {}),
        },
        recipe_digest=sha256_hex(canonical_json(parts)),
        framework=f"{facts['family']}, {library} {facts['environment'].get(library, '')}".strip(),
        snapshot_digest=snapshot_digest,
        code_version=facts["code_version"],
    )


def _decided(kept: Entry, standing: ModelAliases) -> tuple[JsonObject, dict[str, Scalar]]:
    """Return the record of a decision, and the scalars of the stage's result."""
    names = ("model", "version", "semantic_version", "action", "outcome", "decided_by", "key")
    said = [reason.to_json() for reason in kept.reasons]
    record = {name: getattr(kept, name) for name in names} | {"reasons": said, "decided_at": kept.decided_at.isoformat()}
    # What the ledger itself says (gate `standing`) comes first: it explains a row that moves nothing.
    reasons = _readable(kept)
    # The rule that a person is asked says nothing about the model; the answer does.
    against = (reason for reason in reasons if not reason.passed and (reason.gate != "approval" or reason.severity is None))
    leading = sorted([*against, *(reason for reason in reasons if reason.passed and reason.gate == "standing")], key=_is_of_gates)
    if leading:
        leading = [*(reason for reason in reasons if reason.gate == SIMULATED), *leading]
    return record, {
        "decision": kept.outcome,
        "action": kept.action,
        "reasons": all_words(leading or reasons)[:MAX_REASON_CHARS],
        "headline": headline(kept, reasons)[:MAX_REASON_CHARS],
        "model": kept.model,
        "version": kept.version,
        "semantic_version": kept.semantic_version,
        "weights_digest": kept.weights_digest,
        "decided_by": kept.decided_by,
        "key": kept.key,
        **_versions_of_aliases(standing),
    }


def _readable(kept: Entry) -> Sequence[Reason]:
    """Return the reasons that the run may show: those of a rollback are in the ledger alone, as all users read the runs of that DAG."""
    return () if kept.action == "rolled_back" else kept.reasons


def _is_of_gates(reason: Reason) -> bool:
    return reason.gate != "standing"


def _waiting(evaluation_uri: str, standing: ModelAliases, decision: CanaryDecision) -> tuple[JsonObject, dict[str, Scalar]]:
    """Return the record of a canary that stays one, and the scalars of the stage's result."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "model": standing.model,
        "outcome": "waiting",
        "evaluation": evaluation_uri,
        "looked_at": now,
    }
    canary = standing.canary
    about = "" if canary is None else f"; version {canary.semantic_version or canary.version} of {standing.model}"
    return record, {
        "decision": "waiting",
        "action": "recorded",
        "reasons": decision.summary[:MAX_REASON_CHARS],
        "headline": f"waiting: {decision.summary}{about}"[:MAX_REASON_CHARS],
        "model": standing.model,
        **_versions_of_aliases(standing),
    }


def _versions_of_aliases(standing: ModelAliases) -> dict[str, str | None]:
    return {
        "champion_version": None if standing.champion is None else standing.champion.version,
        "canary_version": None if standing.canary is None else standing.canary.version,
    }


if __name__ == "__main__":
    main(work)
