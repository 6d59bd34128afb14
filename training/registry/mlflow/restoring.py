"""Registers weights again that MLflow has lost: a version, a registered model, or all of its database was deleted or replaced."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from training.contracts import Instant, instant_of, instant_text
from training.errors import DataError
from training.process.scratch import scratch_folder
from training.registry.ledger.ledger import AliasHolder, Ledger
from training.registry.ledger.version_weights import SCHEME, MLflowRegistration, Noted, noted
from training.registry.mlflow.schema import output_columns
from training.registry.mlflow.versions import GONE, find_registered, is_at, log_model, make_version, registry_faults, run_here
from training.registry.model.files import CLIENT_FILE, check_files
from training.registry.model.rebuild import rebuilt
from training.store import Store
from training.store.work_folder import StoreUri

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where weights come from, as the decision about their evaluation says."""

    weights_digest: str
    model_uri: str
    run_id: str | None
    pipeline: str
    as_of: Instant
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    output: str

    @classmethod
    def of(cls, weights_digest: str, evidence: Mapping[str, Any], *, model_uri: str) -> Origin:
        """Return the origin that the evidence of a decision names."""
        made = evidence.get("output_schema") or {}
        task, label = str(made.get("task", "")), str(made.get("label", ""))
        return cls(
            weights_digest=weights_digest,
            model_uri=model_uri,
            run_id=evidence.get("mlflow_run_id"),
            pipeline=str(evidence.get("pipeline", "")),
            as_of=instant_of(evidence["as_of"]),
            inputs=evidence.get("input_schema") or {},
            outputs=output_columns(task, label, made.get("classes", ())) if made else (),
            output=f"{task} of {label}" if made else "",
        )

    @property
    def tags(self) -> dict[str, str]:
        digest = StoreUri(self.model_uri).digest
        return {"nightshift.pipeline": self.pipeline, "nightshift.as_of": instant_text(self.as_of), "nightshift.model": digest}


def origin_of(ledger: Ledger, model: str, holder: AliasHolder) -> Origin:
    """Return the origin of an alias's weights: by the decision on its own evaluation. The same weights may have come in another manifest,
    and been rejected.
    """
    decided = ledger.decision(model, holder.decision_key)
    evidence = holder.to_json() if decided is None else decided.evidence
    return Origin.of(holder.weights_digest, evidence, model_uri=holder.model_uri)


def registration_now(store: Store, model: str, origin: Origin, hint: MLflowRegistration | None) -> MLflowRegistration:
    """Return where MLflow has weights; they are registered again where it does not have them.

    Args:
        hint: where it had them, if that is known.

    Raises:
        DataError: `registry.rebuild`.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    with registry_faults():
        client = mlflow.MlflowClient()
        if hint is not None and is_at(store, client, model, origin.weights_digest, hint):
            return hint
        found = find_registered(store, client, model, origin.weights_digest)
        return found or registered_again(store, client, model, origin, hint)


def registered_again(store: Store, client: Any, model: str, origin: Origin, hint: MLflowRegistration | None) -> MLflowRegistration:
    """Register weights that MLflow does not have: their logged model where that is whole, else one made from the store.

    Args:
        hint: where MLflow had them.

    Raises:
        DataError: `registry.rebuild`, the weights are gone, or the model cannot be loaded with the code of today.
        MlflowException: MLflow does not answer.
    """
    run = run_here(client, origin.run_id)
    earlier = None if hint is None else noted(store, f"{SCHEME}{hint.logged_model}")
    if hint is not None and earlier is not None and _is_whole(client, hint):
        logger.warning("version %s of %s is not in MLflow any more: its logged model is registered again", hint.number, model)
        return make_version(store, client, model, hint.logged_model, earlier, run=run, tags=origin.tags)
    inputs = origin.inputs if earlier is None else earlier.inputs
    logger.warning("weights %s of %s are not in MLflow any more: the model is made from the store", origin.weights_digest[:12], model)
    with scratch_folder() as scratch:
        saved = scratch / "saved"
        facts = Noted(
            weights_digest=origin.weights_digest,
            artifact_digest=rebuilt(store, origin.model_uri, saved, inputs=inputs),
            inputs=dict(inputs),
            shown=dict(origin.inputs if earlier is None else earlier.shown),
            outputs=list(origin.outputs if earlier is None else earlier.outputs),
            output=origin.output if earlier is None else earlier.output,
            rebuilt_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        experiment_id = None if run is not None else _experiment_id(client, origin.pipeline)
        model_id = log_model(store, client, model, saved, facts, run=run, experiment_id=experiment_id)
    return make_version(store, client, model, model_id, facts, run=run, tags=origin.tags)


def _experiment_id(client: Any, pipeline: str) -> str | None:
    """Return the experiment of a pipeline; None where this server has none."""
    found = client.get_experiment_by_name(pipeline) if pipeline else None
    return None if found is None or found.lifecycle_stage == "deleted" else str(found.experiment_id)


def _is_whole(client: Any, hint: MLflowRegistration) -> bool:
    """Return whether MLflow still has a logged model with the files that were noted: the same digest is the same code."""
    try:
        client.get_logged_model(hint.logged_model)
        with scratch_folder() as scratch:
            fetched = mlflow.artifacts.download_artifacts(artifact_uri=f"{SCHEME}{hint.logged_model}", dst_path=str(scratch / "model"))
            (Path(fetched) / CLIENT_FILE).unlink(missing_ok=True)
            check_files(Path(fetched), digest=hint.artifact_digest)
    except MlflowException as err:
        if err.error_code not in GONE:
            raise
        return False
    except (DataError, OSError) as err:
        logger.warning("the logged model %s is not what was registered: %s", hint.logged_model, err)
        return False
    return True
