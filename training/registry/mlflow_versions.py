"""MLflow's registry: versions and their artifacts. Aliases and tags follow the ledger in `training.registry.mlflow_sync`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import mlflow
from mlflow.exceptions import MlflowException

from training.errors import UnavailableError
from training.registry.mlflow_schema import ModelSchema, schema_text
from training.registry.model_code import model_code, write_code
from training.registry.model_files import write_list
from training.scratch import scratch_folder
from training.store import Manifest, Ref, Store

logger = logging.getLogger(__name__)

WEIGHTS_TAG: Final = "nightshift.weights_digest"
LIFECYCLE_TAG: Final = "lifecycle"
UNNAMEABLE: Final = re.compile(r"[^\w\-./ ]")
"""What MLflow takes in no parameter's name."""
MAX_PARAM_NAME_CHARS: Final = 250


class Registered(NamedTuple):
    """A version of MLflow's registry."""

    version: str
    artifact_digest: str
    """SHA-256 of the list of its files (`training.registry.model_files`); empty for a version that was registered without one."""


@contextmanager
def registry_faults() -> Iterator[None]:
    """Turn what MLflow cannot do into UnavailableError `mlflow.unavailable`."""
    try:
        yield
    except (MlflowException, OSError) as err:
        text = str(err).splitlines()[0][:300] if str(err) else type(err).__name__
        raise UnavailableError(
            "mlflow.unavailable", f"a request to MLflow failed: {text}", hint="make status; MLFLOW_TRACKING_URI"
        ) from err


def register_candidate(
    store: Store,
    model: str,
    manifest: Manifest,
    *,
    inputs: Mapping[str, str],
    run_id: str | None,
    tags: Mapping[str, str],
    output: str = "",
    schema: ModelSchema | None = None,
) -> Registered:
    """Register a model artifact as a version; the same weights are the same version, however often and by how many this is called.

    Args:
        inputs: columns of a raw frame to their types.
        run_id: MLflow run of the training, if it is known.
        tags: further tags of the version.
        output: what the model returns, in words.
        schema: for MLflow's pages; None: `inputs`.

    Raises:
        SpecError: `model.not_isolated`, the model's class imports what a registered model cannot carry.
        UnavailableError: `mlflow.unavailable`.
    """
    weights = str(manifest.meta["weights_digest"])
    with registry_faults():
        client = mlflow.MlflowClient()
        found = _find(client, model, weights)
        if found is not None:
            return Registered(found, _artifact_digest(store, client, model, found))
        _ensure_model(client, model)
        shown = schema or ModelSchema(inputs, ())
        model_id = _log_model(store, client, model, manifest, inputs=inputs, parameters=_parameters(shown, output), run_id=run_id)
        all_tags = {WEIGHTS_TAG: weights, LIFECYCLE_TAG: "candidate", **tags}
        made = client.create_model_version(
            model,
            source=f"models:/{model_id}",
            run_id=run_id,
            model_id=model_id,
            tags=all_tags,
            description=schema_text(shown) or None,
            # The version is ready at once. MLflow's client logs that it waits for it.
            await_creation_for=0,
        )
        version = _find(client, model, weights) or str(made.version)
        logger.info("registered %s version %s", model, version)
        return Registered(version, _artifact_digest(store, client, model, version))


def _find(client: Any, model: str, weights: str) -> str | None:
    """Return the oldest version of these weights; younger ones, of attempts at the same time or of one that died, go.

    MLflow numbers versions one by one, so a reader that sees a version sees all older ones: the oldest is the same for everybody.
    """
    found = client.search_model_versions(f"name = '{model}' and tags.`{WEIGHTS_TAG}` = '{weights}'")
    versions = sorted((str(version.version) for version in found), key=int)
    for younger in versions[1:]:
        try:
            client.delete_model_version(model, younger)
        except MlflowException as err:
            # Another attempt was faster.
            if err.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    return versions[0] if versions else None


def _ensure_model(client: Any, model: str) -> None:
    try:
        client.create_registered_model(model)
    except MlflowException as err:
        if err.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _log_model(
    store: Store,
    client: Any,
    model: str,
    manifest: Manifest,
    *,
    inputs: Mapping[str, str],
    parameters: Mapping[str, str],
    run_id: str | None,
) -> str:
    with scratch_folder() as folder:
        data = store.manifests.fetch(manifest, folder / "data")
        code = model_code(json.loads((data / "model.json").read_bytes())["family"])
        saved = folder / "saved"
        mlflow.pyfunc.save_model(
            path=str(saved),
            loader_module=code.name,
            data_path=str(data),
            code_paths=[str(write_code(code, folder / "code"))],
            pip_requirements=code.requirements,
            metadata={"inputs": dict(inputs), "model_digest": manifest.digest},
        )
        for compiled in sorted(saved.rglob("*.pyc")):
            compiled.unlink()
        digest = write_list(saved)
        # Without an experiment it would be in `Default`, away from the runs of its pipeline.
        experiment_id = None if run_id is None else str(client.get_run(run_id).info.experiment_id)
        logged = mlflow.initialize_logged_model(
            name=model,
            source_run_id=run_id,
            params=dict(parameters),
            model_type="nightshift",
            experiment_id=experiment_id,
        )
        client.log_model_artifacts(logged.model_id, str(saved))
        mlflow.finalize_logged_model(logged.model_id, "READY")
        # In the store, which MLflow's users cannot write to, and before any version has the model.
        _artifact_ref(store, str(logged.model_id)).move(digest, expected=0)
        return str(logged.model_id)


def _parameters(schema: ModelSchema, output: str) -> dict[str, str]:
    """Return the schema of a model as parameters of the logged model's page."""
    named = {f"input.{UNNAMEABLE.sub('_', name)}"[:MAX_PARAM_NAME_CHARS]: kind for name, kind in schema.inputs.items()}
    return {**named, **({"output": output} if output else {})}


def _artifact_digest(store: Store, client: Any, model: str, version: str) -> str:
    """Return the digest that was noted when the files of a version were made, empty where none was."""
    model_id = str(client.get_model_version(model, version).source).removeprefix("models:/")
    noted = _artifact_ref(store, model_id).read()
    return "" if noted is None else str(noted.value)


def _artifact_ref(store: Store, model_id: str) -> Ref:
    return store.ref(f"registered/{model_id}")
