"""Which checkpoints the trainings of a pipeline have saved: by run, with the names that people use for them. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from training.contracts import Instant, StageRequest, StageResult
from training.engine.checkpoint.chunks import Saved, read_index
from training.errors import DataError, DeniedError, shown, spec_error
from training.store import Manifest, Store
from training.store.checkpoint_records import CHECKPOINT, standing
from training.store.condemned import GONE
from training.store.work_folder import StoreUri

SOURCE: Final = "nightshift checkpoints"
STAGE: Final = "train"
NEWEST: Final = "newest"
NUM_LOOK_UPS: Final = 8
DELETED: Final = "was deleted"
_EPOCH: Final = re.compile(r"\d{1,9}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A checkpoint of a run."""

    run: str
    work_id: str
    """Of its training."""
    uri: str
    """Of its manifest."""
    step: int
    epoch: int
    saved_at: str
    """ISO 8601 with offset, by the storage's clock."""
    names: Sequence[str] = field(default_factory=tuple)
    """`step_400`; `epoch_3` and `best` where the run has them; `newest`. None where it was withdrawn."""
    is_withdrawn: bool
    """Replicas of the model turned out to differ: no training resumes from it."""


def listings(store: Store, pipeline: str, run: str | None = None) -> list[Listing]:
    """Return the checkpoints of a pipeline's trainings, or of one run; of each run the oldest first.

    A training that several runs asked for counts for each of them. A run whose code was changed in between has several trainings.
    A run that reused another run's training has that run's checkpoints: their `run` is the one that trained.
    """
    found: list[Listing] = []
    for work_id in store.bucket.folders(f"stages/{pipeline}/{STAGE}"):
        saved = _saved(store, pipeline, work_id)
        if not saved:
            continue
        for asked in sorted({request.run.run_id for request in requests(store, pipeline, work_id)}):
            if run is None or run == asked:
                found += _named(store, pipeline, asked, saved)
    if not found and run is not None and (trained := _reused_training(store, pipeline, run)) is not None:
        found += _named(store, pipeline, trained.run.run_id, _saved(store, pipeline, trained.work_id))
    return sorted(found, key=lambda listing: (listing.run, listing.saved_at, listing.step))


def requests(store: Store, pipeline: str, work_id: str) -> Iterator[StageRequest]:
    """Yield the requests of a training's attempts; those that cannot be read are left out."""
    work_folder = store.work_folder(pipeline, STAGE, work_id)
    for attempt in work_folder.attempts():
        try:
            yield work_folder.request(attempt)
        except DataError:
            continue


def named(store: Store, pipeline: str, run: str, name: str) -> Listing:
    """Return the checkpoint of a run that a name stands for: `epoch_3` or `3`, `step_400`, `best`, `newest`; of several the one saved last.

    Raises:
        SpecError: `checkpoint.unknown`, with the names that there are.
        DeniedError: `checkpoint.deleted`, the run has saved that epoch and keeps it no longer.
    """
    wanted = f"epoch_{int(name)}" if _EPOCH.fullmatch(name) else name
    there = listings(store, pipeline, run)
    for listing in reversed(there):
        if wanted in listing.names:
            return listing
    for listing in there:
        if wanted == f"epoch_{listing.epoch}" and not listing.is_withdrawn:
            # Its name is gone, and the collector deletes what has none.
            raise _deleted(store, there, listing, wanted)
    if there:
        names = sorted({name for listing in there for name in listing.names})
        hint = f"names: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}"
    else:
        hint = f"runs with checkpoints: {', '.join(sorted({listing.run for listing in listings(store, pipeline)})[-10:]) or 'none'}"
    message = f"run {shown(run)} of {shown(pipeline)} has no checkpoint {shown(name)}"
    raise spec_error(SOURCE, "checkpoint.unknown", message, hint=hint)


def restorable(store: Store, pipeline: str, run: str, name: str) -> Listing:
    """Return the checkpoint of a run that a training can begin at, kept from the collector for a grace period.

    Blocks are looked up and not read.

    Args:
        name: as in `named`.

    Raises:
        SpecError: `checkpoint.unknown`.
        DeniedError: `checkpoint.deleted`; the hint names the nearest that is usable, as it does for the next.
        DataError: `checkpoint.unreadable`, it is altered, or blocks are missing.
    """
    listing = named(store, pipeline, run, name)
    found = fault(store, listing)
    if found == DELETED:
        raise _deleted(store, listings(store, pipeline, run), listing, name)
    if found:
        hint = _nearest(store, listings(store, pipeline, run), listing)
        raise DataError("checkpoint.unreadable", f"{listing.uri} cannot be used: {found}", hint=hint)
    store.claim(listing.uri)
    return listing


def as_of(store: Store, pipeline: str, listing: Listing) -> Instant | None:
    """Return the instant of the run whose training saved a checkpoint; None where its requests are deleted."""
    return next((request.as_of for request in requests(store, pipeline, listing.work_id)), None)


def opened(store: Store, uri: str) -> tuple[Manifest, Saved]:
    """Return a checkpoint's manifest and its index, which was checked; no block is read.

    Raises:
        DataError: it is missing, altered or damaged.
    """
    manifest = store.manifests.get(uri, kind="checkpoint")
    try:
        return manifest, read_index(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise DataError("checkpoint.unreadable", f"{uri} cannot be read: {type(err).__name__}: {str(err)[:200]}") from err


def fault(store: Store, listing: Listing) -> str:
    """Return why a checkpoint cannot be used, empty where it can; blocks are looked up and not read."""
    if listing.is_withdrawn:
        return "was withdrawn: replicas of the model differed"
    try:
        manifest, _ = opened(store, listing.uri)
    except DataError as err:
        return DELETED if err.code in GONE else err.message
    blocks = {entry.digest: entry.size_bytes for entry in manifest.files.values()}
    with ThreadPoolExecutor(NUM_LOOK_UPS, thread_name_prefix="checkpoint") as pool:
        for (digest, wanted), found in zip(blocks.items(), pool.map(store.objects.size_bytes, blocks), strict=True):
            if found != wanted:
                return f"block {digest} {'is missing' if found is None else f'has {found} bytes, expected {wanted}'}"
    return ""


def _deleted(store: Store, there: Sequence[Listing], listing: Listing, name: str) -> DeniedError:
    message = f"checkpoint {shown(name)} of run {shown(listing.run)} was saved at step {listing.step} and is deleted"
    return DeniedError("checkpoint.deleted", message, hint=_nearest(store, there, listing))


def _nearest(store: Store, there: Sequence[Listing], listing: Listing) -> str:
    """Return a hint with the nearest checkpoint by steps that is usable; the earlier one of two."""
    named = [other for other in there if other.names and other.uri != listing.uri]
    for other in sorted(named, key=lambda other: (abs(other.step - listing.step), other.step)):
        if not fault(store, other):
            return f"the nearest usable one is {other.names[0]} (step {other.step})"
    return "no other checkpoint of the run is usable; start a run without it"


def _reused_training(store: Store, pipeline: str, run: str) -> StageResult | None:
    """Return the result of the training that a run found instead of training; None where it reused none, or that is deleted."""
    head = store.run_ref(pipeline, run, f"reused/{STAGE}").read()
    if head is None:
        return None
    for work_id in store.bucket.folders(f"stages/{pipeline}/{STAGE}"):
        result = store.work_folder(pipeline, STAGE, work_id).result()
        if result is not None and result.artifact_uri == head.value:
            return result
    return None


def _saved(store: Store, pipeline: str, work_id: str) -> list[Listing]:
    """Return what the chain of a training's work has, without names; of a step that was saved again, the last one."""
    prefix = f"stages/{pipeline}/{STAGE}/{work_id}/journal"
    times = {entry.key: entry.modified for entry in store.bucket.list(prefix)}
    by_step: dict[int, Listing] = {}
    history = store.work_folder(pipeline, STAGE, work_id).chain().history()
    stand = {entry.number for entry in standing(history, attrgetter("value"))}
    for entry in history:
        if entry.value["kind"] != CHECKPOINT:
            continue
        payload, modified = entry.value["payload"], times[f"{prefix}/{entry.number:010d}.json"]
        saved = Listing(
            run="",
            work_id=work_id,
            uri=payload["uri"],
            step=payload["step"],
            epoch=payload["epoch"],
            saved_at=modified.isoformat(),
            is_withdrawn=entry.number not in stand,
        )
        by_step[saved.step] = saved
    return [by_step[step] for step in sorted(by_step)]


def _named(store: Store, pipeline: str, run: str, saved: Sequence[Listing]) -> Iterator[Listing]:
    refs: dict[str, list[str]] = {}
    for name in store.bucket.folders(f"runs/{pipeline}/{run}/checkpoints"):
        head = store.run_ref(pipeline, run, f"checkpoints/{name}").read()
        if head is not None:
            refs.setdefault(StoreUri(head.value).digest, []).append(name)
    newest = next((listing for listing in reversed(saved) if not listing.is_withdrawn), None)
    for listing in saved:
        if listing.is_withdrawn:
            yield replace(listing, run=run)
            continue
        names = [*refs.get(StoreUri(listing.uri).digest, ()), f"step_{listing.step}", *([NEWEST] if listing is newest else [])]
        yield replace(listing, run=run, names=names)
