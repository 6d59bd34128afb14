"""Checkpoints: one copy out of the training tensors, everything else beside the loop; committed through the lease.

The state is laid out as one byte string, cut into blocks that are objects of the store: a block that did not change
is not written again. The commit is an entry of the address's journal, so a fenced attempt's is refused. A state is tensors
(`training.engine.checkpoint.tensors`), or bytes by name, which are stored as tensors of uint8: trees need no torch for theirs.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from training import liveness
from training.errors import DataError, LeaseLostError, NightshiftError, NoUsableCheckpointError, Problem, SpecError, UnavailableError
from training.runtime.context import StageContext
from training.store import Manifest, set_run_ref
from training.store.manifests import FileEntry

if TYPE_CHECKING:
    import torch

    from training.engine.checkpoint.tensors import State, TensorBuffer

logger = logging.getLogger(__name__)

BLOCK_BYTES: Final = 4 * 1024 * 1024
ALIGNMENT_BYTES: Final = 8
MAX_FAILED_SAVES: Final = 3
DEFAULT_KEEP: Final = 3
_EPOCH: Final = re.compile(r"epoch_(\d+)")
ITEM_BYTES: Final = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2},
    **{"float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1},
    **{"bool": 1, "complex64": 8},
}
"""What a checkpoint can hold, with the bytes of one item: the types of safetensors, since the best weights become such a file."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint read back."""

    data: bytearray
    index: Mapping[str, Any]
    """Name to dtype, shape and offset among the data; all of them lie inside it."""
    meta: dict[str, Any]

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the tensors, by name."""
        from training.engine.checkpoint.tensors import tensors_of

        return tensors_of(self.data, self.index)

    def bytes_of(self, name: str) -> bytearray:
        """Return the bytes that were saved under a name."""
        entry = self.index[name]
        return self.data[entry["offset"] : entry["offset"] + _size(**entry)]


def padded(num_bytes: int) -> int:
    """Return where the next entry may begin after one of so many bytes."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Checkpoints:
    """Saves and restores one training's state at its address. Rank 0 saves; every rank restores the same one."""

    def __init__(
        self, context: StageContext, *, every_seconds: float, identity: Mapping[str, Any], by_name: bool = True, keep: int = DEFAULT_KEEP
    ) -> None:
        """Open the checkpoints of an address.

        Args:
            every_seconds: least time between two saves that are due by time.
            keep: how many of the newest checkpoints stay, besides that of the best epoch (`train.checkpoint.keep`).
            identity: what a checkpoint must agree on to be resumed from, as JSON: world size, batch size, dataset.
            by_name: a save with a name is made also where none is due, and the run's refs lead to it; False: there is none to look at.
        """
        self._by_name = by_name
        self._keep = keep
        self._context = context
        self._store = context.store
        request = context.request
        self._address = context.store.address(request.pipeline, request.stage, request.fingerprint)
        self._every_seconds = every_seconds
        self._identity = dict(identity)
        self._saved_at = time.monotonic()
        self._buffer: TensorBuffer | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None
        self._num_failed = 0

    @property
    def due(self) -> bool:
        """Whether the interval is over and no save is under way."""
        return time.monotonic() - self._saved_at >= self._every_seconds and (self._in_flight is None or self._in_flight.done())

    def reserve(self, state: State) -> None:
        """Begin to allocate, in the background, what a save of such a state is copied to: in the first save it would stop the training.

        Args:
            state: tensors as they will be saved, by name; their values are not read.
        """
        self._tensor_buffer().reserve(state, self._pool)

    def save(self, state: State, meta: Mapping[str, Any], *, name: str | None = None) -> None:
        """Copy the state, then write and commit it in the background; waits for a save that is still under way.

        Args:
            state: tensors by name; they may change as soon as this returns.
            meta: JSON beside them: step, epoch and what else resuming needs.
            name: ref below the run's `checkpoints/` that shall lead to it.

        Raises:
            SpecError: `checkpoint.dtype`, `checkpoint.layout`: a tensor that could not be restored; nothing is written.
            LeaseLostError: a newer attempt took over.
            UnavailableError: three saves in a row failed.
        """
        from training.engine.checkpoint.tensors import check_savable

        if name is not None and not self._by_name:
            if not self.due:
                return
            name = None
        check_savable(state)
        self.wait()
        with liveness.phase("checkpoint", "copy"):
            index, view = self._tensor_buffer().copy(state)
        self._begin(index, view, meta, name)

    def save_bytes(self, state: Mapping[str, bytes | bytearray], meta: Mapping[str, Any]) -> None:
        """Write and commit bytes by name in the background, as tensors of uint8; waits for a save that is still under way.

        Raises:
            LeaseLostError: a newer attempt took over.
            UnavailableError: three saves in a row failed.
        """
        self.wait()
        index, data = {}, bytearray()
        for name, content in sorted(state.items()):
            index[name] = {"dtype": "uint8", "shape": [len(content)], "offset": len(data)}
            data += content.ljust(padded(len(content)), b"\0")
        self._begin(index, memoryview(data), meta, None)

    def wait(self) -> None:
        """Wait for the save under way; raise what it raised if that must end the training."""
        if self._in_flight is None:
            return
        in_flight, self._in_flight = self._in_flight, None
        try:
            with liveness.phase("checkpoint", "wait for the upload"):
                in_flight.result()
        except LeaseLostError:
            raise
        except (NightshiftError, OSError) as err:
            self._num_failed += 1
            logger.warning("checkpoint was not saved (%d in a row): %s; the one before stands", self._num_failed, err)
            if self._num_failed >= MAX_FAILED_SAVES:
                raise UnavailableError("checkpoint.unsaved", f"{self._num_failed} checkpoints in a row could not be saved: {err}") from err
        else:
            self._num_failed = 0

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

    def close(self) -> None:
        """Wait for the save under way and end the thread, whatever the save came to."""
        try:
            self.wait()
        finally:
            self._pool.shutdown(wait=True)

    def _agrees(self, identity: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint is of this training; an elastic one may go on with another number of processes."""
        if not self._context.request.parameters.get("elastic"):
            return bool(identity == self._identity)
        return {**identity, "world_size": 0} == {**self._identity, "world_size": 0}

    def _tensor_buffer(self) -> TensorBuffer:
        from training.engine.checkpoint.tensors import TensorBuffer

        if self._buffer is None:
            self._buffer = TensorBuffer()
        return self._buffer

    def _begin(self, index: Mapping[str, Any], view: memoryview, meta: Mapping[str, Any], name: str | None) -> None:
        self._saved_at = time.monotonic()
        self._in_flight = self._pool.submit(self._write, index, view, dict(meta), name)

    def _write(self, index: Mapping[str, Any], view: memoryview, meta: Mapping[str, Any], name: str | None) -> None:
        files = {}
        for number, start in enumerate(range(0, len(view), BLOCK_BYTES)):
            block = bytes(view[start : start + BLOCK_BYTES])
            files[f"block-{number:05d}"] = FileEntry(digest=self._store.objects.put_bytes(block), size_bytes=len(block))
        manifest = Manifest(kind="checkpoint", files=files, meta={"tensors": index, "identity": self._identity, **meta})
        uri = self._store.manifests.put(manifest)
        if self._context.lease is not None:
            # What stays is decided when the store is collected: by what the training's newest entry says.
            kept = {"keep": self._keep, "best_epoch": meta.get("best_epoch")}
            self._context.lease.commit("checkpoint", {"uri": uri, "step": meta["step"], "epoch": meta["epoch"], **kept})
        if name is not None:
            set_run_ref(self._store, self._context.request, f"checkpoints/{name}", uri)
            self._drop_old_names(meta.get("best_epoch"))
        logger.info("checkpoint of step %s committed (%.1f MB)", meta["step"], len(view) / 1e6)

    def _drop_old_names(self, best_epoch: int | None) -> None:
        """Delete the run's refs to epochs other than the newest ones and the best one; refs with other names stay."""
        request = self._context.request
        folder = f"runs/{request.pipeline}/{request.run.run_id}/checkpoints"
        found = {int(match[1]): match[0] for name in self._store.bucket.folders(folder) if (match := _EPOCH.fullmatch(name))}
        for epoch in sorted(found)[: -self._keep]:
            if epoch != best_epoch:
                self._store.run_ref(request.pipeline, request.run.run_id, f"checkpoints/{found[epoch]}").delete()

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
                _check_inside(len(data), **entry)
        except (KeyError, TypeError, ValueError) as err:
            message = f"{uri} cannot be restored: {type(err).__name__}: {err}"
            raise DataError("checkpoint.unreadable", message, hint="the checkpoint before it is used where there is one") from err
        return Restored(data, index, meta)


def _size(*, dtype: str, shape: list[int], offset: int) -> int:
    return math.prod(shape) * ITEM_BYTES[dtype]


def _check_inside(num_bytes: int, *, dtype: str, shape: list[int], offset: int) -> None:
    """Check an entry of a checkpoint's index.

    Raises:
        TypeError, ValueError: the dtype is unknown, a number is none, or the bytes are too few.
    """
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    if not all(isinstance(number, int) and number >= 0 for number in [*shape, offset]):
        raise ValueError(f"shape {shape} and offset {offset} are not whole numbers from 0")
    size = _size(dtype=dtype, shape=shape, offset=offset)
    if size and offset + size > num_bytes:
        raise ValueError(f"{size} bytes at offset {offset} are more than the {num_bytes} of the checkpoint")
