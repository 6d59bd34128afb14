"""Checkpoints of runs, and the trigger of a run that begins at one: the same as `nightshift checkpoints list` and `restore` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from nightshift.queries.records import Checkpoint
from nightshift.queries.trainings import training
from training.engine.checkpoint.catalog import Listing, instant_of, listings, restorable
from training.engine.checkpoint.summary import summary_of
from training.store import Store
from training.store.addresses import StoreUri

KEPT: Final = ("train", "evaluate", "tune")
"""Sections of the earlier run's trigger that the new run has too."""


def listed(store: Store, pipeline: str, run_id: str) -> list[Listing]:
    """Return the checkpoints of a run's training, the oldest first; also of a run that Airflow does not have any more.

    Raises:
        DeniedError: `run.unknown`, there are none, and no such run.
        UnavailableError: the store, or Airflow's database, does not answer.
    """
    found = listings(store, pipeline, run_id)
    if not found:
        training(pipeline, run_id)
    return found


def checkpoint_of(store: Store, listing: Listing) -> Checkpoint:
    """Return the record of a checkpoint; its blocks are looked up.

    Raises:
        UnavailableError: the store does not answer.
    """
    return Checkpoint.model_validate(asdict(summary_of(store, listing)))


def restore_conf(
    store: Store, pipeline: str, run_id: str, name: str, *, earlier: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
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
    conf: dict[str, Any] = {section: {**_section(earlier, section), **changes.get(section, {})} for section in KEPT}
    conf["train"]["from_checkpoint"] = StoreUri(found.uri).digest
    # The training needs the same dataset: of the same snapshot, else of the same instant.
    if earlier.get("snapshot") is not None:
        conf["snapshot"] = earlier["snapshot"]
    else:
        conf["as_of"] = instant_of(store, pipeline, found)
    return {key: value for key, value in conf.items() if value not in (None, {})}


def _section(conf: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = conf.get(name)
    return section if isinstance(section, Mapping) else {}
