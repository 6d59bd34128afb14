"""MLflow's registry: versions and their artifacts. Aliases and tags follow the ledger in `training.registry.mlflow.mirror`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from training.errors import UnavailableError, first_line
from training.process.scratch import scratch_folder
from training.registry.ledger.version_weights import SCHEME, MLflowRegistration, Noted, note, noted, registration_of
from training.registry.mlflow.saved_model import save_model
from training.registry.mlflow.schema import ModelSchema, schema_text
from training.store import Manifest, Store

logger = logging.getLogger(__name__)

WEIGHTS_TAG: Final = "nightshift.weights_digest"
LIFECYCLE_TAG: Final = "lifecycle"
UNNAMEABLE: Final = re.compile(r"[^\w\-./ ]")
"""What MLflow takes in no parameter's name."""
MAX_PARAM_NAME_CHARS: Final = 250
GONE: Final = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
"""MLflow's codes for what is deleted, or never was."""
PAGE: Final = 1000


@contextmanager
def registry_faults() -> Iterator[None]:
    """Turn what MLflow cannot do into UnavailableError `mlflow.unavailable`, and a refusal of the account into `mlflow.denied`."""
    try:
        yield
    except (MlflowException, OSError) as err:
        # Artifacts are read by plain requests.
        answer = getattr(err, "response", None)
        status = err.get_http_status_code() if isinstance(err, MlflowException) else getattr(answer, "status_code", None)
        if status in (401, 403):
            raise UnavailableError(
                "mlflow.denied",
                f"MLflow's server refuses this account ({status}): {first_line(err)}",
                hint="give one that may read and write, in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
            ) from err
        raise UnavailableError(
            "mlflow.unavailable", f"a request to MLflow failed: {first_line(err)}", hint="make status; MLFLOW_TRACKING_URI"
        ) from err


def unless_gone(call: Callable[..., Any], *arguments: Any) -> Any | None:
    """Return what MLflow answers to a call, None where what the call is about is deleted, or never was.

    Raises:
        MlflowException: any other refusal, or no answer.
    """
    try:
        return call(*arguments)
    except MlflowException as err:
        if err.error_code not in GONE:
            raise
        return None


@contextmanager
def set_by_two() -> Iterator[None]:
    """Go on where MLflow's database refuses a tag: of two writers that add the same one at the same moment, it takes one."""
    try:
        yield
    except MlflowException as err:
        if err.error_code != "BAD_REQUEST":
            raise
        logger.info("another process has just set it: %s", err)


def pages(search: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """Yield everything that a search of MLflow's client finds, page by page."""
    token = None
    while True:
        page = search(*arguments, max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def register_candidate(
    store: Store,
    model: str,
    manifest: Manifest,
    *,
    inputs: Mapping[str, str],
    run: Any | None,
    tags: Mapping[str, str],
    output: str = "",
    schema: ModelSchema | None = None,
) -> MLflowRegistration:
    """Register a model artifact as a version; the same weights are the same version, however often and by how many this is called.

    Args:
        inputs: columns of a raw frame to their types.
        run: of the training in MLflow, if it has one (`run_here`).
        tags: further tags of the version.
        output: what the model returns, in words.
        schema: for MLflow's pages; None: `inputs`.

    Raises:
        SpecError: `model.not_isolated`, the model's class imports what a registered model cannot carry.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    weights = str(manifest.meta["weights_digest"])
    with registry_faults():
        client = mlflow.MlflowClient()
        found = find_registered(store, client, model, weights)
        if found is not None:
            return found
        shown = schema or ModelSchema(inputs, ())
        with scratch_folder() as folder:
            saved = folder / "saved"
            digest = save_model(store, manifest, saved, inputs=inputs)
            facts = Noted(
                weights_digest=weights,
                artifact_digest=digest,
                inputs=dict(inputs),
                shown=dict(shown.inputs),
                outputs=list(shown.outputs),
                output=output,
            )
            model_id = log_model(store, client, model, saved, facts, run=run)
        return make_version(store, client, model, model_id, facts, run=run, tags=tags)


def run_here(client: Any, run_id: str | None) -> Any | None:
    """Return the MLflow run of a training, None where this server does not have it: it may be another one, or an earlier backup."""
    run = None if run_id is None else unless_gone(client.get_run, run_id)
    return None if run is None or run.info.lifecycle_stage == "deleted" else run


def log_model(
    store: Store, client: Any, model: str, folder: Path, facts: Noted, *, run: Any | None, experiment_id: str | None = None
) -> str:
    """Upload saved files as a logged model; return its id. The store notes whose weights it has.

    Args:
        run: of the training; its experiment has the model.
        experiment_id: without a run; None: the one of MLFLOW_EXPERIMENT_ID, else MLflow's `Default`.
    """
    named = {f"input.{UNNAMEABLE.sub('_', name)}"[:MAX_PARAM_NAME_CHARS]: kind for name, kind in facts.shown.items()}
    logged = mlflow.initialize_logged_model(
        name=model,
        source_run_id=None if run is None else run.info.run_id,
        params={**named, **({"output": facts.output} if facts.output else {})},
        model_type="nightshift",
        experiment_id=experiment_id if run is None else run.info.experiment_id,
    )
    # The client's own method would ask for the place first, which is known.
    get_artifact_repository(logged.artifact_location).log_artifacts(str(folder))
    mlflow.finalize_logged_model(logged.model_id, "READY")
    note(store, str(logged.model_id), facts)
    return str(logged.model_id)


def make_version(
    store: Store, client: Any, model: str, model_id: str, facts: Noted, *, run: Any | None, tags: Mapping[str, str]
) -> MLflowRegistration:
    """Make a version of a logged model; return the oldest one of its weights, which another process may have made at the same time."""
    try:
        client.create_registered_model(model)
    except MlflowException as err:
        if err.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(
        model,
        source=f"{SCHEME}{model_id}",
        run_id=None if run is None else run.info.run_id,
        model_id=model_id,
        tags={WEIGHTS_TAG: facts.weights_digest, LIFECYCLE_TAG: "candidate", **tags},
        description=schema_text(ModelSchema(facts.shown, facts.outputs)) or None,
        # The version is ready at once. MLflow's client logs that it waits for it.
        await_creation_for=0,
    )
    found = find_registered(store, client, model, facts.weights_digest) or registration_of(made.version, made.source, facts)
    logger.info("registered %s version %s", model, found.number)
    return found


def find_registered(store: Store, client: Any, model: str, weights: str) -> MLflowRegistration | None:
    """Return the oldest version of these weights that can be loaded; others, of attempts at the same time or of one that died, go.

    The tag finds them, the store's note of the source proves them: users may write tags. MLflow numbers versions one by one, so a reader
    that sees a version sees all older ones: the oldest is the same for everybody. A version that an alias names stays.
    """
    tagged = client.search_model_versions(f"name = '{model}' and tags.`{WEIGHTS_TAG}` = '{weights}'")
    ours = [(version, facts) for version in tagged if (facts := noted(store, version.source)) and facts.weights_digest == weights]
    loadable = [found for found in ours if has_logged_model(client, found[0].source)]
    if not loadable:
        return None
    oldest, facts = min(loadable, key=lambda found: int(found[0].version))
    copies = [str(version.version) for version, _ in ours if version.source != oldest.source]
    named = {str(number) for number in client.get_registered_model(model).aliases.values()} if copies else set()
    for number in copies:
        if number in named:
            continue
        # Another attempt may be faster.
        unless_gone(client.delete_model_version, model, number)
    return registration_of(oldest.version, oldest.source, facts)


def is_at(store: Store, client: Any, model: str, weights: str, hint: MLflowRegistration) -> bool:
    """Return whether MLflow has a version of these weights at the number of a hint, and it can be loaded."""
    version = unless_gone(client.get_model_version, model, hint.number)
    if version is None or str(version.source) != f"{SCHEME}{hint.logged_model}":
        return False
    facts = noted(store, version.source)
    return facts is not None and facts.weights_digest == weights and has_logged_model(client, version.source)


def has_logged_model(client: Any, source: object) -> bool:
    """Return whether the logged model that the source of a version of ours names still exists. Users delete it alone, and so does
    `mlflow gc`.
    """
    return unless_gone(client.get_logged_model, str(source).removeprefix(SCHEME)) is not None
