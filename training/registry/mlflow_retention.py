"""Deletes from MLflow what retention has let go: versions whose weights are deleted, and old runs that no version is of.

Each step can be repeated, and the version itself goes last: one that was begun and not finished is found again by the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import mlflow
from mlflow.exceptions import MlflowException

from training import liveness
from training.registry.ledger import Entry, Ledger
from training.registry.versions import WEIGHTS_TAG, registry_faults
from training.store import Store

logger = logging.getLogger(__name__)

PAGE: Final = 1000
ENDED: Final = "attributes.status != 'RUNNING' and attributes.status != 'SCHEDULED'"
GONE: Final = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")


def forget(store: Store, ledger: Ledger, model: str, *, experiment: str, before: datetime) -> None:
    """Delete versions of `model` whose weights are deleted, and ended runs of `experiment` that began before an instant.

    Runs of versions that stay, stay, whatever model the versions are of: the model of a pipeline may have had another name. A run is
    deleted as by a click in MLflow's page; its files are gone at once, its metrics when the server's administrator runs `mlflow gc`.

    Raises:
        UnavailableError: `mlflow.unavailable`, `database.unavailable`; the next call goes on.
    """
    deleted = deleted_versions(ledger.outline(model))
    with registry_faults():
        client = mlflow.MlflowClient()
        versions = list(_versions(client, model))
        # An alias of a user's own: MLflow has the version's files itself, so it serves without the store.
        named = {str(number) for number in client.get_registered_model(model).aliases.values()} if versions else set()
        for version in versions:
            if str(version.version) in deleted - named:
                _delete_version(store, client, version)
        kept = {version.run_id for version in versions if str(version.version) not in deleted}
        for run_id in _old_runs(client, experiment, before):
            if run_id not in kept and not _has_version(client, run_id):
                _delete_run(client, run_id)


def deleted_versions(history: Sequence[Entry]) -> set[str]:
    """Return the versions whose weights are deleted, by the newest decision about each: one that was made again has weights."""
    newest = {entry.version: entry for entry in history}
    return {version for version, entry in newest.items() if entry.deleted_at is not None}


def _delete_version(store: Store, client: Any, version: Any) -> None:
    name, number = version.name, str(version.version)
    # First of all: a training that comes to the same weights again registers them as a new version.
    if WEIGHTS_TAG in version.tags:
        client.delete_model_version_tag(name, number, WEIGHTS_TAG)
    model_id = str(version.source).removeprefix("models:/")
    if str(version.source).startswith("models:/"):
        _delete_logged_model(client, model_id)
        store.ref(f"registered/{model_id}").delete()
    if version.run_id:
        _delete_run(client, version.run_id)
    client.delete_model_version(name, number)
    logger.info("version %s of %s is deleted from MLflow: its weights were deleted by retention", number, name)


def _has_version(client: Any, run_id: str) -> bool:
    return bool(client.search_model_versions(f"run_id = '{run_id}'", max_results=1))


def _delete_logged_model(client: Any, model_id: str) -> None:
    try:
        location = client.get_logged_model(model_id).artifact_location
    except MlflowException as err:
        if err.error_code not in GONE:
            raise
        return
    _delete_files(location)
    client.delete_logged_model(model_id)


def _delete_run(client: Any, run_id: str) -> None:
    # The first time there may be years of them.
    liveness.moved()
    try:
        run = client.get_run(run_id)
    except MlflowException as err:
        if err.error_code not in GONE:
            raise
        return
    if run.info.lifecycle_stage != "deleted":
        _delete_files(run.info.artifact_uri)
        client.delete_run(run_id)


def _delete_files(location: str) -> None:
    # Not needed where nothing is deleted, and slow to import.
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(location)
    # A server refuses to delete a folder by the name of its root, so what is in it goes by name.
    for file in repository.list_artifacts():
        liveness.moved()
        repository.delete_artifacts(file.path)


def _versions(client: Any, model: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_model_versions(f"name = '{model}'", max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _old_runs(client: Any, experiment: str, before: datetime) -> list[str]:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    runs: list[str] = []
    token, wanted = None, f"attributes.start_time < {int(before.timestamp() * 1000)} and {ENDED}"
    while True:
        page = client.search_runs([found.experiment_id], wanted, max_results=PAGE, page_token=token)
        runs += [run.info.run_id for run in page]
        token = page.token
        if not token:
            return runs
