"""Checkpoints of runs, and the trigger of a run that begins at one: the same as `nightshift checkpoints list` and `restore` print."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from nightshift.queries.schemas import SavedCheckpoint
from training.contracts import JsonObject, JsonValue, instant_text
from training.engine.checkpoint.catalog import NEWEST, Listing, as_of, fault, listings, opened, restorable
from training.errors import DataError
from training.store import Store
from training.store.work_folder import StoreUri

KEPT: Final = ("data", "train", "evaluate", "tune")
"""Sections of the earlier run's trigger that the new run has too."""

MOVING: Final = frozenset({"best", NEWEST})
"""Names that another checkpoint may have later."""


def listed(store: Store, pipeline: str, run_id: str) -> list[Listing]:
    """Return the checkpoints of a run's training, the oldest first; also of a run that Airflow does not have any more.

    Raises:
        DeniedError: `run.unknown`, there are none, and no such run.
        UnavailableError: the store, or Airflow's database, does not answer.
    """
    found = listings(store, pipeline, run_id)
    if not found:
        # Airflow: `nightshift checkpoints` reads the store without it.
        from nightshift.queries.run_training import training

        training(pipeline, run_id)
    return found


def checkpoint_of(store: Store, listing: Listing) -> SavedCheckpoint:
    """Return the record of a checkpoint; its blocks are looked up and not read.

    Raises:
        UnavailableError: the store does not answer.
    """
    size_bytes, layout = None, ""
    try:
        manifest, _ = opened(store, listing.uri)
    except DataError:
        pass  # `fault` below says what is wrong with it.
    else:
        size_bytes = manifest.size_bytes
        layout = _layout(manifest.meta.get("identity"))
    found = fault(store, listing)
    return SavedCheckpoint(
        name=next((name for name in listing.names if name not in MOVING), f"step_{listing.step}"),
        names=list(listing.names),
        run=listing.run,
        step=listing.step,
        epoch=listing.epoch,
        created_at=datetime.fromisoformat(listing.saved_at),
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


def restore_conf(
    store: Store, pipeline: str, run_id: str, name: str, *, earlier: JsonObject, changes: Mapping[str, JsonObject]
) -> JsonObject:
    """Return the conf of a run whose training begins at a checkpoint, and which is as the earlier run in all else.

    Args:
        name: `epoch_3` or `3`, `step_400`, `best`, `newest`.
        earlier: conf of the run that saved the checkpoint; empty where Airflow does not have that run any more.
        changes: section to keys and values that the new run has instead.

    Raises:
        SpecError: `checkpoint.unknown`.
        DeniedError: `checkpoint.deleted`.
        DataError: `checkpoint.unreadable`.
        UnavailableError: the store does not answer.
    """
    found = restorable(store, pipeline, run_id, name)
    conf: dict[str, JsonValue] = {section: {**_section(earlier, section), **changes.get(section, {})} for section in KEPT}
    conf["train"] = {**_section(conf, "train"), "from_checkpoint": StoreUri(found.uri).digest}
    # The training needs the same dataset: of the same snapshot, else of the same instant.
    if earlier.get("snapshot") is not None:
        conf["snapshot"] = earlier["snapshot"]
    else:
        instant = as_of(store, pipeline, found)
        conf["as_of"] = None if instant is None else instant_text(instant)
    return {key: value for key, value in conf.items() if value not in (None, {})}


def _section(conf: JsonObject, name: str) -> JsonObject:
    section = conf.get(name)
    return section if isinstance(section, Mapping) else {}
