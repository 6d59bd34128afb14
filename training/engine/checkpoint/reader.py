"""Reads checkpoints: the newest usable one, checked against the training that resumes from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from training import liveness
from training.engine.checkpoint.format import Identity, Index, Position, check_inside, size_of
from training.errors import DataError, NoUsableCheckpointError, Problem, SpecError
from training.runtime.context import StageContext

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


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


class CheckpointReader:
    """Reads the checkpoints of one training's address."""

    def __init__(self, context: StageContext, *, identity: Identity) -> None:
        request = context.request
        self._context = context
        self._store = context.store
        self._address = context.store.address(request.pipeline, request.stage, request.fingerprint)
        self._identity = identity

    def newest_entry(self) -> int:
        """Return the journal number of the newest usable checkpoint, 0 where none was ever committed.

        Raises:
            NoUsableCheckpointError: there are some and none can be read.
            SpecError: `checkpoint.mismatch`.
        """
        entries = [entry for entry in self._address.journal().history() if entry.value["kind"] == "checkpoint"]
        reasons = []
        for entry in reversed(entries):
            try:
                with liveness.phase("checkpoint", "read"):
                    self._read(entry.value["payload"]["uri"])
            except DataError as err:
                reasons.append(f"step {entry.value['payload']['step']}: {err.message}")
                logger.warning("checkpoint of step %s is unusable, trying the one before: %s", entry.value["payload"]["step"], err)
                continue
            return entry.number
        if entries:
            raise NoUsableCheckpointError(
                "checkpoint.unusable",
                f"none of {len(entries)} checkpoints of {self._address.uri} can be read: " + "; ".join(reasons[:5]),
                hint="restore the objects from a backup, or trigger the run with force to train from the start",
            )
        return 0

    def restore(self, entry_number: int) -> Restored:
        """Return the checkpoint that a journal entry names."""
        with liveness.phase("checkpoint", "read"):
            return self._read(self._address.journal().at(entry_number).value["payload"]["uri"])

    def _agrees(self, identity: Mapping[str, object]) -> bool:
        """Return whether a checkpoint is of this training; an elastic one may continue with another number of processes."""
        if not self._context.request.parameters.get("elastic"):
            return bool(identity == self._identity)
        return {**identity, "world_size": 0} == {**self._identity, "world_size": 0}

    def _read(self, uri: str) -> Restored:
        manifest = self._store.manifests.get(uri, kind="checkpoint")
        meta = dict(manifest.meta)
        identity = meta.get("identity")
        if not isinstance(identity, dict):
            raise DataError("checkpoint.unreadable", f"{uri} does not name the training that it is of")
        if not self._agrees(identity):
            message = f"checkpoint was made with {identity}, this attempt has {self._identity}"
            hint = "start it with the same settings, or trigger the run with force to train from the start"
            raise SpecError("checkpoint", [Problem(code="checkpoint.mismatch", message=message, hint=hint)])
        data = bytearray().join(self._store.objects.get_bytes(manifest.files[name].digest) for name in sorted(manifest.files))
        try:
            index = meta.pop("tensors")
            for entry in index.values():
                check_inside(len(data), **entry)
        except (KeyError, TypeError, ValueError) as err:
            message = f"{uri} cannot be restored: {type(err).__name__}: {err}"
            raise DataError("checkpoint.unreadable", message, hint="the checkpoint before it is used where there is one") from err
        # As the writer was given it.
        return Restored(data, index, cast(Position, meta))
