"""A model from outside that a trigger names: its file is copied into the store before the run reads any data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.settings import Settings
from nightshift.sources import with_noted_places
from training.contracts import JsonValue
from training.scratch import scratch_folder
from training.spec import PipelineSpec
from training.spec.registration import Registration
from training.spec.uris import resolve_place
from training.store import Store, point_at

KIND: Final = "artifact"
MODEL_FILE: Final = "artifact"
TRANSFORMS_FILE: Final = "transforms.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArtifact:
    """The files of a model from outside, in the store."""

    uri: str
    """Of their manifest, whose meta is the registration with the digests found."""
    digest: str


def store_artifact(registration: Registration, spec: PipelineSpec, run_id: str, settings: Settings) -> StoredArtifact:
    """Copy what a registration names into the store: what the place holds later changes nothing about the run.

    Raises:
        SpecError: `uri.unset`, `uri.forbidden`.
        DataError: of `training.sources.artifact.fetch_artifact`.
        UnavailableError: place or store do not answer.
        DeniedError: `storage.denied`.
    """
    from training.sources.artifact import fetch_artifact  # obstore: a DAG file needs none of it

    environ = with_noted_places(settings.home)
    store, files = Store(settings.store_uri), dict[str, Path | bytes]()
    meta: dict[str, JsonValue] = registration.model_dump(mode="json", exclude_none=True)
    with scratch_folder() as scratch:
        path = scratch / MODEL_FILE
        uri, root = resolve_place(registration.artifact_uri, "registration.artifact_uri", environ)
        meta["sha256"] = fetch_artifact(uri, path, root=root, format_name=registration.format, sha256=registration.sha256)
        files[MODEL_FILE] = path
        if registration.transforms_uri is not None:
            other = scratch / TRANSFORMS_FILE
            uri, root = resolve_place(registration.transforms_uri, "registration.transforms_uri", environ)
            meta["transforms_sha256"] = fetch_artifact(uri, other, root=root, format_name="transforms")
            files[TRANSFORMS_FILE] = other
        manifest_uri, manifest = store.manifests.put_files(KIND, files, meta)
    # Else the collector would take the original away as soon as the run is over.
    point_at(store.run_ref(spec.name, run_id, KIND), manifest_uri)
    return StoredArtifact(uri=manifest_uri, digest=manifest.digest)
