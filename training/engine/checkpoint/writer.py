"""Writes checkpoints: one copy out of the training's tensors, everything else in a thread; committed through the lease.

A block that did not change is not written again. The commit is an entry of the address's journal, so a fenced attempt's is refused.
"""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from training import liveness
from training.engine.checkpoint.format import BLOCK_BYTES, Entry, Identity, Index, Position, padded
from training.errors import LeaseLostError, NightshiftError, UnavailableError
from training.runtime.context import StageContext
from training.store import Manifest, set_run_ref
from training.store.manifests import FileEntry

if TYPE_CHECKING:
    from training.engine.checkpoint.tensors import State, TensorBuffer

logger = logging.getLogger(__name__)

MAX_FAILED_SAVES: Final = 3
_EPOCH: Final = re.compile(r"epoch_(\d+)")


class CheckpointWriter:
    """Saves one training's state at its address, one save at a time."""

    def __init__(self, context: StageContext, *, every_seconds: float, identity: Identity, by_name: bool, keep: int) -> None:
        self._by_name = by_name
        self._keep = keep
        self._context = context
        self._store = context.store
        self._every_seconds = every_seconds
        self._identity = identity
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

    def save(self, state: State, meta: Position, *, name: str | None = None) -> None:
        """Copy the state, then write and commit it in the background; waits for a save that is still under way.

        Args:
            state: tensors by name; they may change as soon as this returns.
            meta: JSON beside them: step, epoch and what else resuming needs.
            name: ref below the run's `checkpoints/` to set to it.

        Raises:
            SpecError: `checkpoint.dtype`, `checkpoint.layout`: a tensor that could not be restored; nothing is written.
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
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

    def save_bytes(self, state: Mapping[str, bytes | bytearray], meta: Position) -> None:
        """Write and commit bytes by name in the background, as tensors of uint8; waits for a save that is still under way.

        Raises:
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
        """
        self.wait()
        index: dict[str, Entry] = {}
        data = bytearray()
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
            logger.warning("checkpoint was not saved (%d consecutive failures): %s; the previous one stays", self._num_failed, err)
            if self._num_failed >= MAX_FAILED_SAVES:
                raise UnavailableError("checkpoint.unsaved", f"{self._num_failed} checkpoints in a row were not saved: {err}") from err
        else:
            self._num_failed = 0

    def close(self) -> None:
        """Wait for the save under way and end the thread, with any result of the save."""
        try:
            self.wait()
        finally:
            self._pool.shutdown(wait=True)

    def _tensor_buffer(self) -> TensorBuffer:
        from training.engine.checkpoint.tensors import TensorBuffer

        if self._buffer is None:
            self._buffer = TensorBuffer()
        return self._buffer

    def _begin(self, index: Index, view: memoryview, meta: Position, name: str | None) -> None:
        self._saved_at = time.monotonic()
        # The training appends to its history while this save is written.
        self._in_flight = self._pool.submit(self._write, index, view, copy.deepcopy(meta), name)

    def _write(self, index: Index, view: memoryview, meta: Position, name: str | None) -> None:
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
