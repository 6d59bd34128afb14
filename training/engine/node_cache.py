"""A dataset's files on a node's disk: fetched and verified once for all ranks of the node, not once for each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from training.installation import LOCAL_RANK
from training.process.scratch import node_folder
from training.store.manifests import Manifest, Manifests

if TYPE_CHECKING:
    from training.engine.parallel.gang import Gang
    from training.engine.parallel.single_process import Alone


def fetch_for_node(manifests: Manifests, manifest: Manifest, folder: Path, names: list[str], gang: Gang | Alone) -> None:
    """Put a manifest's files into each rank's own `folder`: the first rank of each node fetches them, the others link to them.

    Digests are checked once. The others wait with the limit of slow work. Each rank's links are its own: the last rank that ends frees
    the disk. What a killed rank leaves goes with torchrun's process. All ranks must call it.

    Raises:
        DataError: `object.missing` or `object.altered`.
        PeerLostError: another rank is lost, for example because it could not fetch.
    """
    if gang.world_size == 1 or not LOCAL_RANK.is_set():
        manifests.fetch(manifest, folder, names)
        return
    shared, fetches = node_folder(manifest.digest[:16]), LOCAL_RANK.read() == 0
    try:
        if fetches:
            shared.mkdir(mode=0o700)
            manifests.fetch(manifest, shared, names)
        gang.wait_for_all()
        for name in names:
            _link(shared / name, folder / name)
        # Before all have their links, the names that they are made from must stay.
        gang.wait_for_all()
    finally:
        if fetches:
            shutil.rmtree(shared, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # A file system without hard links raises different errors.
        shutil.copyfile(source, target)
