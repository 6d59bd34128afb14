"""Reads checkpoints: the newest usable one, checked against the training that resumes from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from training.engine.checkpoint.chunks import FORMAT, Saved, read_index
from training.engine.checkpoint.format import CheckpointIdentity, Index, Position, size_of
from training.errors import DataError, NoUsableCheckpointError, spec_error
from training.process import liveness
from training.runtime.context import StageContext
from training.store import Manifest
from training.store.checkpoint_records import standing
from training.store.work_folder import StoreUri

if TYPE_CHECKING:
    import torch

    from training.engine.checkpoint.tensors import State

logger = logging.getLogger(__name__)

NUM_LOOK_UPS: Final = 8
"""Blocks that are looked up at the same time."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint read back."""

    data: bytearray
    index: Index
    """Name to dtype, shape and offset among the data; all of them lie inside it."""
    meta: Position

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the tensors, by name."""
        from training.engine.checkpoint.tensors import tensors_of

        return tensors_of(self.data, self.index)

    def bytes_of(self, name: str) -> bytearray:
        """Return the bytes that were saved under a name."""
        entry = self.index[name]
        return self.data[entry["offset"] : entry["offset"] + size_of(**entry)]


@dataclass(frozen=True, slots=True)
class Filled:
    """A checkpoint whose tensors were read into those of a training."""

    meta: Position
    names: frozenset[str]
    """Of the tensors that were filled."""


class CheckpointReader:
    """Reads the checkpoints of one training's work folder."""

    def __init__(self, context: StageContext, *, identity: CheckpointIdentity) -> None:
        self._context = context
        self._store = context.store
        self._work_folder = context.work_folder
        self._identity = identity
        self._start = ""
        """Digest of another training's checkpoint that this one begins at; empty: none."""

    def newest_entry(self, *, before: int | None = None) -> int:
        """Return the number in the work's chain of the newest usable checkpoint, 0 where none was ever committed.

        One that was withdrawn does not count. Of one that several processes wrote, the blocks are looked up and not read: each process
        verifies those that it restores.

        Args:
            before: only checkpoints older than this entry, which could not be restored.

        Raises:
            NoUsableCheckpointError: there are some and none can be read.
            SpecError: `checkpoint.mismatch`.
        """
        entries = standing(self._work_folder.chain().history(), attrgetter("value"))
        reasons = []
        for entry in reversed(entries):
            if before is not None and entry.number >= before:
                reasons.append(f"step {entry.value['payload']['step']}: it could not be restored")
                continue
            try:
                with liveness.phase("checkpoint", "read"):
                    self._check(entry.value["payload"]["uri"])
            except DataError as err:
                reasons.append(f"step {entry.value['payload']['step']}: {err.message}")
                logger.warning("checkpoint of step %s is unusable, trying the one before: %s", entry.value["payload"]["step"], err)
                continue
            return entry.number
        if entries:
            raise NoUsableCheckpointError(
                "checkpoint.unusable",
                f"none of {len(entries)} checkpoints of {self._work_folder.uri} can be read: " + "; ".join(reasons[:5]),
                hint="restore the objects from a backup, or trigger the run with force to train from the start",
            )
        return 0

    def begin_at(self, digest: str, *, keep: int) -> None:
        """Make another training's checkpoint the first one of this work folder, unless it has some of its own: it resumes from there.

        It may be of another layout, or of another number of processes. All processes must call it.

        Args:
            digest: of the checkpoint's manifest.
            keep: how many of the newest checkpoints stay.

        Raises:
            DataError: it is missing or cannot be read. SpecError: `checkpoint.mismatch`. LeaseLostError: a newer attempt took over.
        """
        self._start = digest
        lease = self._context.lease
        # Where all were withdrawn, the start with them, it begins there again, and not at step 0.
        if lease is None or standing(self._work_folder.chain().history(), attrgetter("value")):
            return
        uri = self._store.bucket.uri(self._store.manifests.key(digest))
        with liveness.phase("checkpoint", "read"):
            self._check(uri)
            self._store.claim(uri)
        _, _, meta, _ = self._opened(uri)
        kept = {"keep": keep, "best_epoch": meta.get("best_epoch")}
        lease.commit("checkpoint", {"uri": uri, "step": meta["step"], "epoch": meta["epoch"], **kept})
        logger.info("begins at the checkpoint %s, after step %d", digest, meta["step"])

    def restore(self, entry_number: int) -> Restored:
        """Return the whole checkpoint that a record of the chain names.

        Raises:
            DataError: a block is missing or altered, or `checkpoint.unreadable`.
            SpecError: `checkpoint.mismatch`.
        """
        with liveness.phase("checkpoint", "read"):
            _, manifest, meta, saved = self._opened(self._uri(entry_number))
            if meta.pop("format", 1) == FORMAT:
                from training.engine.checkpoint.resharding import whole

                data, index = whole(saved, self._store.objects)
            else:
                data, index = self._bytes_of(manifest), manifest.meta["tensors"]
        # As the writer was given it.
        return Restored(data, index, cast(Position, meta))

    def names(self, entry_number: int) -> frozenset[str]:
        """Return the names of the tensors of the checkpoint that a record of the chain names.

        Raises:
            DataError: `checkpoint.unreadable`. SpecError: `checkpoint.mismatch`.
        """
        with liveness.phase("checkpoint", "read"):
            _, _, _, saved = self._opened(self._uri(entry_number))
        return frozenset(saved.tensors)

    def restore_into(self, entry_number: int, state: State, *, optional_prefixes: Sequence[str] = ()) -> Filled:
        """Fill the given tensors with the checkpoint that a record of the chain names; this process reads only the blocks that it needs.

        Args:
            state: tensors by name, whole or DTensors, as they are laid out now: the checkpoint may be of another layout.
            optional_prefixes: names that begin so may be missing in the checkpoint; such a tensor stays as it is.

        Raises:
            DataError: `checkpoint.unreadable`, a tensor is missing, or has another shape or dtype, or the index is damaged: no tensor was
                changed. A block is missing or altered: some tensors were changed.
            SpecError: `checkpoint.mismatch`.
        """
        from training.engine.checkpoint.resharding import fill, refuse_others

        with liveness.phase("checkpoint", "read"):
            uri, _, meta, saved = self._opened(self._uri(entry_number))
            optional = tuple(optional_prefixes)
            wanted = {name: tensor for name, tensor in state.items() if name in saved.tensors or not name.startswith(optional or ("\0",))}
            refuse_others(uri, saved, wanted)
            fill(saved, wanted, self._store.objects)
        meta.pop("format", None)
        return Filled(cast(Position, meta), frozenset(wanted))

    def _uri(self, entry_number: int) -> str:
        return str(self._work_folder.chain().at(entry_number).value["payload"]["uri"])

    def _agrees(self, identity: Mapping[str, object], digest: str) -> bool:
        """Return whether a checkpoint is of this training; an elastic one, and one that begins at it, may continue with other processes."""
        if digest != self._start and not self._context.request.parameters.get("elastic"):
            return bool(identity == self._identity)
        others = {"world_size": 0, "layout": {}}
        return {**identity, **others} == {**self._identity, **others}

    def _check(self, uri: str) -> None:
        """Raise DataError where a checkpoint cannot be used."""
        _, manifest, meta, saved = self._opened(uri)
        if meta.get("format", 1) != FORMAT:
            # One block in memory at a time.
            for entry in manifest.files.values():
                self._store.objects.get_bytes(entry.digest)
            return
        blocks = {block.digest: block for string in saved.strings.values() for block in string.blocks}
        with ThreadPoolExecutor(NUM_LOOK_UPS, thread_name_prefix="checkpoint") as pool:
            for block, found in zip(blocks.values(), pool.map(self._store.objects.size_bytes, blocks), strict=True):
                if found != block.size_bytes:
                    there = "does not exist" if found is None else f"has {found} bytes, expected {block.size_bytes}"
                    raise DataError("checkpoint.unreadable", f"{uri}: block {self._store.objects.uri(block.digest)} {there}")

    def _bytes_of(self, manifest: Manifest) -> bytearray:
        """Return the verified bytes of a checkpoint of format 1."""
        # Not joined: that would hold all blocks beside the result.
        data = bytearray(manifest.size_bytes)
        end = 0
        for name in sorted(manifest.files):
            block = self._store.objects.get_bytes(manifest.files[name].digest)
            data[end : end + len(block)] = block
            end += len(block)
        return data

    def _opened(self, uri: str) -> tuple[str, Manifest, dict[str, Any], Saved]:
        """Return a checkpoint's URI, manifest, meta without the index, and the index, which was checked."""
        try:
            manifest = self._store.manifests.get(uri, kind="checkpoint")
            meta = dict(manifest.meta)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as err:
            raise DataError("checkpoint.unreadable", f"{uri} is not a manifest: {type(err).__name__}: {str(err)[:200]}") from err
        identity = meta.get("identity")
        if not isinstance(identity, dict):
            raise DataError("checkpoint.unreadable", f"{uri} does not name the training that it is of")
        if not self._agrees(identity, StoreUri(uri).digest):
            message = f"checkpoint was made with {identity}, this attempt has {self._identity}"
            hint = "start it with the same settings, or trigger the run with force to train from the start"
            raise spec_error("checkpoint", "checkpoint.mismatch", message, hint=hint)
        try:
            saved = read_index(manifest)
            meta.pop("tensors")
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            message = f"{uri} cannot be restored: {type(err).__name__}: {err}"
            raise DataError("checkpoint.unreadable", message, hint="the checkpoint before it is used where there is one") from err
        return uri, manifest, meta, saved
