"""One look at a model in MLflow's registry, beside what the ledger and the store say of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import mlflow
from mlflow.exceptions import MlflowException

from training.registry.ledger import Entry, Ledger
from training.registry.mlflow_versions import GONE, WEIGHTS_TAG, has_logged_model, version_at
from training.registry.registered import SCHEME, Registration, noted, registration_of
from training.registry.restoring import found_again
from training.store import Store

PAGE_VERSIONS: Final = 2000


class Look:
    """What is read is read once, the standing first: as long as it has not moved afterwards, what MLflow showed belongs to it."""

    def __init__(self, ledger: Ledger, store: Store, model: str) -> None:
        self.ledger, self.store, self.model = ledger, store, model
        self.standing, self.history = ledger.standing(model), ledger.outline(model)
        self.hints: dict[str, Registration] = ledger.registrations(model)
        self.client = mlflow.MlflowClient()
        self.aliases = self._aliases()
        self._versions: dict[str, Any | None] = {}
        self._is_whole = False

    def read_all(self) -> None:
        """Read all versions of the model at once."""
        token = None
        while True:
            page = self.client.search_model_versions(f"name = '{self.model}'", max_results=PAGE_VERSIONS, page_token=token)
            self._versions |= {str(version.version): version for version in page}
            token = page.token
            if not token:
                self._is_whole = True
                return

    def version(self, number: str) -> Any | None:
        """Return MLflow's version of a number, None where there is none."""
        if number not in self._versions and not self._is_whole:
            self._versions[number] = version_at(self.client, self.model, number)
        return self._versions.get(number)

    def weights_at(self, number: str) -> str | None:
        """Return the digest of the weights that a version serves: empty where it is not ours, None where there is nothing to load."""
        version = self.version(number)
        if version is None:
            return None
        facts = noted(self.store, version.source)
        if facts is None:
            return ""
        return facts.weights_digest if has_logged_model(self.client, version.source) else None

    def registration(self, weights_digest: str) -> Registration | None:
        """Return where MLflow has these weights, None where it does not have them. The ledger notes a place that is new."""
        hint = self.hints.get(weights_digest)
        if hint is not None and self._is_at(hint) and self.weights_at(hint.number) == weights_digest:
            return hint
        if self._is_whole:
            found = self._tagged(weights_digest)
        else:
            found = found_again(self.store, self.client, self.model, weights_digest, None)
        if found is not None:
            self.note(weights_digest, found)
        return found

    def shown(self, entry: Entry) -> Any | None:
        """Return the version that shows the decisions about an entry's weights, None where MLflow has none.

        Tags and descriptions decide nothing, so the source suffices, which nobody can change.
        """
        hint = self.hints.get(entry.weights_digest)
        if hint is None or not self._is_at(hint):
            hint = self.registration(entry.weights_digest)
        return None if hint is None else self.version(hint.number)

    def note(self, weights_digest: str, found: Registration) -> None:
        """Note where MLflow has weights."""
        self.hints[weights_digest] = found
        self.ledger.note_registration(self.model, weights_digest, found)

    def _is_at(self, hint: Registration) -> bool:
        version = self.version(hint.number)
        return version is not None and str(version.source) == f"{SCHEME}{hint.logged_model}"

    def _tagged(self, weights_digest: str) -> Registration | None:
        tagged = [version for version in self._versions.values() if version and version.tags.get(WEIGHTS_TAG) == weights_digest]
        for version in sorted(tagged, key=lambda version: int(version.version)):
            facts = noted(self.store, version.source)
            if facts is not None and facts.weights_digest == weights_digest and has_logged_model(self.client, version.source):
                return registration_of(version.version, version.source, facts)
        return None

    def _aliases(self) -> Mapping[str, str]:
        try:
            found = self.client.get_registered_model(self.model).aliases
        except MlflowException as err:
            if err.error_code not in GONE:
                raise
            return {}
        return {str(alias): str(number) for alias, number in found.items()}


def touched(history: Collection[Entry], since: Collection[str]) -> set[str]:
    """Return the weights that decisions have touched since the oldest of these keys, itself included, and the alias holders before it."""
    entries = list(history)
    start = next((place for place, entry in enumerate(entries) if entry.key in since), len(entries))
    found = {entry.weights_digest for entry in entries[start:]}
    # The former holder of an alias may have to be archived.
    for actions in ({"promoted", "rolled_back"}, {"canary"}):
        found.update([entry.weights_digest for entry in entries[:start] if entry.action in actions][-1:])
    return found
