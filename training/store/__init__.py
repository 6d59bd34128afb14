"""The only room that accesses storage, except `training.sources.listing`: objects, manifests, refs, leases, reports, over obstore."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta

from training.contracts import JsonValue, StageRequest, canonical_json
from training.installation import STORE, home_folder
from training.store.bucket import Bucket
from training.store.chains import Chain
from training.store.manifests import Manifest, Manifests
from training.store.objects import Objects
from training.store.reports import Reports
from training.store.work_folder import StoreUri, WorkFolder, read_request

__all__ = ["Bucket", "Chain", "Manifest", "Store", "WorkFolder"]


class Store:
    """Everything durable, below one root URI."""

    def __init__(self, root_uri: str, *, keeps_manifests: bool = False, retry_timeout: timedelta | None = None) -> None:
        """Open a store.

        Args:
            keeps_manifests: for a process that does one piece of work, and reads the manifests of its inputs in several places.
            retry_timeout: see `Bucket`.
        """
        self.bucket = Bucket(root_uri, retry_timeout=retry_timeout)
        self.root_uri = self.bucket.root_uri
        self.objects = Objects(self.bucket)
        self.manifests = Manifests(self.bucket, self.objects, keeps_read=keeps_manifests)
        self.reports = Reports(self.bucket)

    def ref(self, name: str) -> Chain:
        """Return the ref `refs/<name>`; name its parts by `/`."""
        return Chain(self.bucket, f"refs/{name}")

    def run_ref(self, pipeline: str, run_id: str, name: str) -> Chain:
        """Return a ref below `runs/<pipeline>/<run>/`, where people look up what a run used and made."""
        return Chain(self.bucket, f"runs/{pipeline}/{run_id}/{name}")

    def work_folder(self, pipeline: str, stage: str, work_id: str) -> WorkFolder:
        return WorkFolder(self.bucket, pipeline, stage, work_id)

    def read_request(self, uri: str) -> StageRequest:
        """Return the request at `uri`.

        Raises:
            StoreError: missing, damaged, newer, or not the request of the work folder that `uri` names.
        """
        return read_request(self.bucket, uri)

    def claim(self, uri: str) -> None:
        """Keep the collector from deleting a manifest and its objects for a grace period.

        Raises:
            DataError: `object.missing`, or the manifest cannot be read.
        """
        manifest = self.manifests.get(uri)
        # Put again, it is claimed: a deletion that was about to come does not.
        self.manifests.put(manifest)
        packed = self.manifests.packed_names(manifest)
        for name, entry in manifest.files.items():
            if name not in packed:
                self.objects.claim(entry.digest)

    def put_json(self, value: Mapping[str, object]) -> str:
        """Store a JSON object by content; return its URI."""
        return self.objects.uri(self.objects.put_bytes(canonical_json(value)))

    def get_json(self, uri: str) -> dict[str, JsonValue]:
        """Return a JSON object stored by `put_json`, digest checked."""
        loaded: dict[str, JsonValue] = json.loads(self.objects.get_bytes(StoreUri(uri).digest))
        return loaded


def installed_store(root_uri: str | None = None) -> Store:
    """Return the store with this root URI; None: this installation's."""
    return Store(root_uri or STORE.text() or str(home_folder() / "store"))


def set_run_ref(store: Store, request: StageRequest, name: str, uri: str) -> None:
    """Set the run's ref `name` to `uri`; a no-op if it has that value already."""
    point_at(store.run_ref(request.pipeline, request.run.run_id, name), uri)


def point_at(ref: Chain, uri: str) -> None:
    """Set a ref of which no record was ever deleted alone to `uri`; a no-op if it has that value already."""
    if ref.begin(uri):
        return
    while (head := ref.read()) is None or head.value != uri:
        if ref.move(uri, expected=head.number if head else 0):
            return
