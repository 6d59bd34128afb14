"""Whose weights a version of MLflow's registry has: the store notes it for each logged model that is registered.

A version is ours only if its source is a logged model that the store has a note of. Numbers, tags and names prove nothing: MLflow gives a
number a second time after a deletion or a restored database, and its users write tags. Neither MLflow nor SQLAlchemy is imported: operators
compare too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from training.store import Chain, Store

SCHEME: Final = "models:/"
NOTES: Final = "refs/registered"
_MODEL_ID: Final = re.compile(r"m-[0-9a-f]{32}", re.ASCII)
"""As MLflow makes ids of logged models. A source may be any text of a user's, and is a part of a ref's key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MLflowRegistration:
    """Where MLflow has the weights of a version, as of the last look."""

    number: str
    """Of the version in the registry."""
    logged_model: str
    """Id of the logged model that is its source."""
    artifact_digest: str
    """SHA-256 of the list of the logged model's files, for `load_verified`."""
    rebuilt_at: datetime | None = None
    """When it was made from the store, with the code of that time; None: in its evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """What the store notes of a logged model."""

    weights_digest: str
    artifact_digest: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Columns of a raw frame to the types that the model was registered with."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The same, with the types that MLflow's pages show."""
    outputs: Sequence[str] = ()
    """Columns of the answer, in words."""
    output: str = ""
    """What the model returns, in words."""
    rebuilt_at: str | None = None
    """When it was made from the store, ISO 8601; None: in its evaluation."""


def model_id_of(source: object) -> str | None:
    """Return the id of the logged model that a version's source names; None for any other source."""
    text = str(source)
    found = text.removeprefix(SCHEME)
    return found if text.startswith(SCHEME) and _MODEL_ID.fullmatch(found) else None


def note(store: Store, model_id: str, noted: Noted) -> None:
    """Note a logged model in the store, which MLflow's users cannot write to, before any version has it."""
    _ref(store, model_id).move(asdict(noted), expected=0)


def noted(store: Store, source: object) -> Noted | None:
    """Return what is noted of a version's source; None: the version is not ours.

    Raises:
        StoreError, UnavailableError: the store cannot be read.
    """
    model_id = model_id_of(source)
    head = None if model_id is None else _ref(store, model_id).read()
    return None if head is None else Noted(**head.value)


def noted_sources(store: Store) -> list[str]:
    """Return the sources that the store has notes of, as versions name them."""
    return [f"{SCHEME}{model_id}" for model_id in store.bucket.folders(NOTES)]


def forget_note(store: Store, model_id: str) -> None:
    """Delete the note of a logged model: no version of it is ours any more."""
    _ref(store, model_id).delete()


def registration_of(number: object, source: object, found: Noted) -> MLflowRegistration:
    """Return where a version is that has the weights of a note."""
    return MLflowRegistration(
        number=str(number),
        logged_model=str(source).removeprefix(SCHEME),
        artifact_digest=found.artifact_digest,
        rebuilt_at=None if found.rebuilt_at is None else datetime.fromisoformat(found.rebuilt_at),
    )


def _ref(store: Store, model_id: str) -> Chain:
    def check(value: Any) -> None:
        Noted(**value)

    return Chain(store.bucket, f"{NOTES}/{model_id}", check=check)
