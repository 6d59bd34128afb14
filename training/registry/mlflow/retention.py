"""Deletes from MLflow by the retention settings: versions whose weights are deleted, and old runs that no version is of.

Each step can be repeated, and the version itself goes last: one that was begun and not finished is found again by the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import mlflow

from training.engine.tracking.mlflow_journal import ID_TAG, RunJournal, pending_journals
from training.errors import NightshiftError
from training.process import liveness
from training.registry.ledger.ledger import Entry, Ledger
from training.registry.ledger.version_weights import forget_note, model_id_of, noted, noted_sources
from training.registry.mlflow.versions import WEIGHTS_TAG, has_logged_model, pages, registry_faults, unless_gone
from training.store import Store
from training.store.reachability import units
from training.store.work_folder import StoreUri

logger = logging.getLogger(__name__)

UNDER_WAY: Final = ("RUNNING", "SCHEDULED")
ENDED: Final = "attributes.status != 'RUNNING' and attributes.status != 'SCHEDULED'"


class OpenWork:
    """The MLflow runs that unfinished work of a store uses, or may write to. Looked up once, at the first question."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._error: NightshiftError | None = None

    def uses(self, run_id: str) -> bool:
        """Return whether metrics wait for this run, or work without a result trains, evaluates or decides with it.

        Raises:
            NightshiftError: a record cannot be read: it might name any run. The next question gets the same answer.
        """
        if self._error is not None:
            raise self._error
        try:
            return run_id in self._run_ids
        except NightshiftError as err:
            self._error = err
            raise

    @cached_property
    def _run_ids(self) -> frozenset[str]:
        bucket = self._store.bucket
        journals = pending_journals(bucket)
        found: set[str | None] = set()
        for unit in units(bucket.list("stages"), 4):
            liveness.moved()
            if unit.has("_RESULT.json"):
                continue
            journals.append(RunJournal(bucket, unit.key))
            for entry in unit.entries:
                if entry.key.endswith("/_REQUEST.json"):
                    parameters = self._store.read_request(bucket.uri(entry.key)).parameters
                    found.add(parameters.get("mlflow_run_id"))
                    if parameters.get("training_uri"):
                        # Without the root: a store that was moved has requests of its earlier place.
                        journals.append(RunJournal(bucket, StoreUri(parameters["training_uri"]).folder_key))
        found |= {journal.run_id() for journal in journals}
        return frozenset(run_id for run_id in found if run_id)


def forget(store: Store, ledger: Ledger, model: str, *, experiment: str | None, before: datetime, work: OpenWork | None = None) -> None:
    """Delete versions of `model` whose weights are deleted, and ended runs of `experiment` that began before an instant.

    A run stays while a version that stays is of it, of any model (the model of a pipeline may have had another name),
    and while unfinished work uses it. A run is deleted as in MLflow's page; its files are deleted at once, its metrics when the
    server's administrator runs `mlflow gc`.

    Args:
        experiment: None: no runs but those of the deleted versions are deleted.
        work: of `store`, where the caller asks for several models; absent: looked up.

    Raises:
        NightshiftError: a record of unfinished work cannot be read; no run was deleted.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`, `database.unavailable`; the next call continues.
    """
    deleted, hints = deleted_weights(ledger.outline(model)), ledger.registrations(model)
    gone_models = {hint.logged_model for weights, hint in hints.items() if weights in deleted}
    work = work or OpenWork(store)
    with registry_faults():
        client = mlflow.MlflowClient()
        kept: set[str | None] = set()
        for version in list(pages(client.search_model_versions, f"name = '{model}'")):
            weights = _deleted_of(store, version, deleted, gone_models)
            if weights is None:
                kept.add(version.run_id)
            # A user's own aliases too: MLflow has a version's files itself, so it serves without the store.
            elif str(version.version) not in {str(number) for number in client.get_registered_model(model).aliases.values()}:
                _delete_version(store, client, version, work)
                ledger.note_registration(model, weights, None)
        for run_id in _old_runs(client, experiment, before) if experiment is not None else ():
            has_version = run_id in kept or client.search_model_versions(f"run_id = '{run_id}'", max_results=1)
            if not has_version and not work.uses(run_id):
                _delete_run(client, run_id)


def forget_notes(store: Store, ledger: Ledger) -> None:
    """Delete the notes of logged models that MLflow does not have, and whose weights are deleted: nothing can come back that they prove.

    A note whose weights are there stays, also without its logged model: an earlier backup of MLflow, or another server, may have that.

    Raises:
        NightshiftError: a note cannot be read.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`, `database.unavailable`; the next call continues.
    """
    deleted: set[str] = set()
    kept: set[str] = set()
    for model in ledger.models():
        history = ledger.outline(model)
        of_model = deleted_weights(history)
        deleted |= of_model
        kept |= {entry.weights_digest for entry in history} - of_model
    # Two models may have the same weights.
    deleted -= kept
    with registry_faults():
        client = mlflow.MlflowClient()
        for source in noted_sources(store) if deleted else ():
            liveness.moved()
            facts, model_id = noted(store, source), model_id_of(source)
            if model_id and facts and facts.weights_digest in deleted and not has_logged_model(client, source):
                forget_note(store, model_id)


def deleted_weights(history: Sequence[Entry]) -> set[str]:
    """Return the weights that are deleted, by the newest decision about each: what was made again is there."""
    newest = {entry.weights_digest: entry for entry in history}
    return {weights for weights, entry in newest.items() if entry.deleted_at is not None}


def _deleted_of(store: Store, version: Any, deleted: Collection[str], gone_models: Collection[str]) -> str | None:
    """Return the deleted weights that a version has, None for any other one: by the store's note, as tags and numbers prove nothing."""
    if version.tags.get(WEIGHTS_TAG) not in deleted and model_id_of(version.source) not in gone_models:
        return None
    facts = noted(store, version.source)
    return None if facts is None or facts.weights_digest not in deleted else facts.weights_digest


def _delete_version(store: Store, client: Any, version: Any, work: OpenWork) -> None:
    name, number = version.name, str(version.version)
    # Read before anything is deleted: an unreadable store stops the deletion before it starts.
    has_own_run = bool(version.run_id) and not _is_run_used(client, version, work)
    # First of all: a training that comes to the same weights again registers them as a new version.
    if WEIGHTS_TAG in version.tags:
        client.delete_model_version_tag(name, number, WEIGHTS_TAG)
    model_id = model_id_of(version.source)
    if model_id is not None:
        _delete_logged_model(client, model_id)
    if has_own_run:
        _delete_run(client, version.run_id)
    client.delete_model_version(name, number)
    if model_id is not None:
        # After the version: by this note, one that was begun and not finished is found again.
        forget_note(store, model_id)
    logger.info("version %s of %s is deleted from MLflow: its weights were deleted by retention", number, name)


def _is_run_used(client: Any, version: Any, work: OpenWork) -> bool:
    """Return whether anything but this version uses its run: another version, of any model, a run under way, unfinished work."""
    others = client.search_model_versions(f"run_id = '{version.run_id}'", max_results=2)
    if any((other.name, str(other.version)) != (version.name, str(version.version)) for other in others):
        return True
    run = unless_gone(client.get_run, version.run_id)
    return run is not None and (run.info.status in UNDER_WAY or work.uses(version.run_id))


def _delete_logged_model(client: Any, model_id: str) -> None:
    logged = unless_gone(client.get_logged_model, model_id)
    if logged is not None:
        _delete_files(logged.artifact_location)
        client.delete_logged_model(model_id)


def _delete_run(client: Any, run_id: str) -> None:
    # The first time there may be years of them.
    liveness.moved()
    run = unless_gone(client.get_run, run_id)
    if run is not None and run.info.lifecycle_stage != "deleted":
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


def _old_runs(client: Any, experiment: str, before: datetime) -> list[str]:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    # Ours alone: people have runs of their own in the experiment of a pipeline.
    wanted = f"attributes.start_time < {int(before.timestamp() * 1000)} and {ENDED} and tags.`{ID_TAG}` LIKE '%'"
    return [run.info.run_id for run in pages(client.search_runs, [found.experiment_id], wanted)]
