"""What is shown of a checkpoint: its size, and whether a training can begin at it; as a record. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from training.engine.checkpoint.catalog import NEWEST, Listing, fault, opened
from training.errors import DataError
from training.store import Store

MOVING: Final = frozenset({"best", NEWEST})
"""Names that another checkpoint may have later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSummary:
    """A checkpoint of a run."""

    name: str
    """One that stays its own: `epoch_3`, else `step_400`."""
    names: Sequence[str]
    """As `Listing.names`."""
    run: str
    """Id of the run that trained."""
    step: int
    epoch: int
    created_at: str
    """ISO 8601 with offset, by the storage's clock."""
    size_bytes: int | None
    """None: its manifest is deleted."""
    layout: str
    """How its processes shared the model: `data=2 tensor=2`; empty: not known."""
    is_restorable: bool
    fault: str
    """Why no training can begin at it; empty: it can."""
    uri: str
    """Of its manifest."""


def summary_of(store: Store, listing: Listing) -> CheckpointSummary:
    """Return what is shown of a checkpoint; its blocks are looked up and not read.

    Raises:
        UnavailableError: the store does not answer.
    """
    size_bytes, layout = None, ""
    try:
        manifest, _ = opened(store, listing.uri)
    except DataError:
        pass  # `fault` below says what is wrong with it.
    else:
        size_bytes = sum(entry.size_bytes for entry in manifest.files.values())
        layout = _layout(manifest.meta.get("identity"))
    found = fault(store, listing)
    return CheckpointSummary(
        name=next((name for name in listing.names if name not in MOVING), f"step_{listing.step}"),
        names=list(listing.names),
        run=listing.run,
        step=listing.step,
        epoch=listing.epoch,
        created_at=listing.saved_at,
        size_bytes=size_bytes,
        layout=layout,
        is_restorable=not found,
        fault=found,
        uri=listing.uri,
    )


def _layout(identity: object) -> str:
    if not isinstance(identity, dict):
        return ""
    sizes = identity.get("layout")
    if isinstance(sizes, dict):
        return " ".join(f"{name}={size}" for name, size in sizes.items())
    return f"data={identity.get('world_size', 1)}"
