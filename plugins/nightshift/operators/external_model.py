"""A model from outside that a trigger names: its file is copied into the store before the run reads any data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.settings import Settings
from nightshift.source_uris import places_of
from training.contracts import JsonValue
from training.errors import DataError, NightshiftError, UnavailableError
from training.process.scratch import scratch_folder
from training.spec import PipelineSpec
from training.spec.registration import Registration
from training.spec.uris import names_of_places, resolve_place
from training.store import point_at

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

    Args:
        spec: as declared: whose variables a registration may name.

    Raises:
        SpecError: `uri.unset`, `uri.forbidden`.
        DataError: of `training.sources.model_artifact.fetch_artifact`; for a literal URI, whatever is wrong with it, `artifact.missing`.
        UnavailableError: place or store do not answer.
        DeniedError: `storage.denied`.
    """
    known = places_of(settings)
    places = {name: known.get(name, "") for name in names_of_places(spec)}
    store, files = settings.store(), dict[str, Path | bytes]()
    meta: dict[str, JsonValue] = registration.model_dump(mode="json", exclude_none=True)
    with scratch_folder() as scratch:
        path = scratch / MODEL_FILE
        place = resolve_place(registration.artifact_uri, "registration.artifact_uri", places)
        meta["sha256"] = _fetched(place, path, format_name=registration.format, sha256=registration.sha256)
        files[MODEL_FILE] = path
        if registration.transforms_uri is not None:
            other = scratch / TRANSFORMS_FILE
            place = resolve_place(registration.transforms_uri, "registration.transforms_uri", places)
            meta["transforms_sha256"] = _fetched(place, other, format_name="transforms")
            files[TRANSFORMS_FILE] = other
        manifest_uri, manifest = store.manifests.put_files(KIND, files, meta)
    # Else the collector would take the original away as soon as the run is over.
    point_at(store.run_ref(spec.name, run_id, KIND), manifest_uri)
    return StoredArtifact(uri=manifest_uri, digest=manifest.digest)


def _fetched(place: tuple[str, str], path: Path, *, format_name: str, sha256: str | None = None) -> str:
    """Copy a file to a local path, and return its SHA-256. Of one outside of the pipeline's places, not even its existence is said.

    Args:
        place: URI of the file, and the place that it must not leave: another URI where a variable of the pipeline names it.
    """
    from training.sources.model_artifact import fetch_artifact  # obstore: a DAG file needs none of it

    uri, root = place
    try:
        return fetch_artifact(uri, path, root=root, format_name=format_name, sha256=sha256)
    except NightshiftError as err:
        if uri != root:
            raise
        if isinstance(err, UnavailableError):
            raise UnavailableError(err.code, f"{uri} cannot be read now") from None
        hint = "name it by a variable of the pipeline's YAML to be shown why, or correct the URI, `format` and `sha256`"
        raise DataError("artifact.missing", f"{uri} is no {format_name} file that can be read", hint=hint) from None
