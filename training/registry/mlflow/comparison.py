"""One look at a model in MLflow's registry, beside what the ledger and the store say of it."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import mlflow

from training.registry.ledger.ledger import Entry, Ledger
from training.registry.ledger.version_weights import SCHEME, MLflowRegistration, noted, registration_of
from training.registry.mlflow.versions import WEIGHTS_TAG, has_logged_model, pages, unless_gone
from training.store import Store


class MLflowState:
    """A model in MLflow and in the ledger.

    What is read is read once, the standing first: as long as it has not moved afterwards, what MLflow showed belongs to it.
    Of an unchanged model MLflow is asked for its aliases, its versions (a page of 1,000 each) and the logged models behind the aliases.
    """

    def __init__(self, ledger: Ledger, store: Store, model: str) -> None:
        self.ledger, self.store, self.model = ledger, store, model
        self.standing, self.history = ledger.standing(model), ledger.outline(model)
        self.hints: dict[str, MLflowRegistration] = ledger.registrations(model)
        self.client = mlflow.MlflowClient()
        found = unless_gone(self.client.get_registered_model, model)
        self.aliases = {} if found is None else {str(alias): str(number) for alias, number in found.aliases.items()}
        self._versions = {str(version.version): version for version in pages(self.client.search_model_versions, f"name = '{model}'")}
        # `MlflowClient` asks before each write whether the model is a prompt; the search has found no version of prompts.
        self.writer: Any = self.client._get_registry_client()
        self._is_loadable = cache(partial(has_logged_model, self.client))
        self._tagged: dict[str, list[Any]] = {}
        for version in sorted(self._versions.values(), key=lambda version: int(version.version)):
            self._tagged.setdefault(version.tags.get(WEIGHTS_TAG, ""), []).append(version)

    def weights_at(self, number: str) -> str | None:
        """Return the digest of the weights that a version serves: empty where it is not ours, None where there is nothing to load."""
        version = self._versions.get(number)
        if version is None:
            return None
        facts = noted(self.store, version.source)
        if facts is None:
            return ""
        return facts.weights_digest if self._is_loadable(version.source) else None

    def registration(self, weights_digest: str) -> MLflowRegistration | None:
        """Return where MLflow has these weights, None where it does not have them. The ledger notes a place that is new."""
        hint = self.hints.get(weights_digest)
        if hint is not None and self._is_at(hint) and self.weights_at(hint.number) == weights_digest:
            return hint
        for version in self._tagged.get(weights_digest, ()):
            facts = noted(self.store, version.source)
            # The store's note proves what the tag says: users may write tags.
            if facts is not None and facts.weights_digest == weights_digest and self._is_loadable(version.source):
                found = registration_of(version.version, version.source, facts)
                self.note(weights_digest, found)
                return found
        return None

    def shown(self, entry: Entry) -> Any | None:
        """Return the version that shows the decisions about an entry's weights, None where MLflow has none.

        Tags and descriptions decide nothing, so the source suffices, which nobody can change.
        """
        hint = self.hints.get(entry.weights_digest)
        if hint is None or not self._is_at(hint):
            hint = self.registration(entry.weights_digest)
        return None if hint is None else self._versions[hint.number]

    def note(self, weights_digest: str, found: MLflowRegistration) -> None:
        """Note where MLflow has weights."""
        self.hints[weights_digest] = found
        self.ledger.note_registration(self.model, weights_digest, found)

    def _is_at(self, hint: MLflowRegistration) -> bool:
        version = self._versions.get(hint.number)
        return version is not None and str(version.source) == f"{SCHEME}{hint.logged_model}"
