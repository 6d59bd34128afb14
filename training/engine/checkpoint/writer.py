"""Writes checkpoints: one copy out of the training's tensors, everything else in a thread; committed through the lease.

A block that did not change is not written again. The commit is a record of the work's chain, so a fenced attempt's is refused.
Here is what all writers share, and the one of a single process; `training.large.checkpoint.sharded_writer` is that of several.
"""

from __future__ import annotations

import copy
import errno
import functools
import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from training.engine.checkpoint.format import BLOCK_BYTES, CheckpointIdentity, Index, Position, TensorEntry, padded
from training.errors import LeaseLostError, NightshiftError, UnavailableError
from training.process import liveness
from training.runtime.context import StageContext
from training.store import Manifest, set_run_ref
from training.store.checkpoint_records import CHECKPOINT
from training.store.manifests import FileEntry
from training.store.work_folder import StoreUri

if TYPE_CHECKING:
    from training.engine.checkpoint.tensors import State, TensorBuffer

logger = logging.getLogger(__name__)

MAX_FAILED_SAVES: Final = 3
FREE_SPACE: Final = "free space in the store, or raise its quota; the next attempt resumes from the checkpoint before"
NUM_MEASURED: Final = 5
"""Of the last saves: the slowest one is what the next one is expected to take."""
BEST: Final = "best"
"""Ref below a run's `checkpoints/` to that of the epoch with the lowest validation loss so far."""
_EPOCH: Final = re.compile(r"epoch_(\d+)")


@dataclass(slots=True)
class Written:
    """Bytes of blocks of one save."""

    new: int = 0
    unchanged: int = 0
    """Of blocks that the store had already."""

    def add(self, num_bytes: int, *, is_new: bool) -> None:
        if is_new:
            self.new += num_bytes
        else:
            self.unchanged += num_bytes

    def to_text(self) -> str:
        return f"{(self.new + self.unchanged) / 1e6:.1f} MB, {self.new / 1e6:.1f} MB of it written, the rest unchanged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """When a save is due; of both, what comes first."""

    seconds: float = math.inf
    """Since the last save began."""
    steps: int | None = None
    """Saves are due at multiples of it."""


class Commits:
    """Makes checkpoints of one training's work folder known: the manifest, the record in the chain, the run's refs."""

    def __init__(self, context: StageContext, *, identity: CheckpointIdentity, keep: int) -> None:
        self._context = context
        self._store = context.store
        self.objects = context.store.objects
        """Where the blocks of a checkpoint are stored, before its commit."""
        self._identity = identity
        self._keep = keep
        self._is_run_cleared = False
        """Whether no name of an epoch leads to another training any more: a run that is cleared after an edit trains again."""

    def commit(self, files: Mapping[str, FileEntry], index: Mapping[str, Any], meta: Position, name: str | None) -> str:
        """Commit a checkpoint whose blocks are stored; return its URI.

        Args:
            index: what the format has in the manifest's meta.
            name: ref below the run's `checkpoints/` to set to it.

        Raises:
            LeaseLostError: a newer attempt took over.
        """
        uri = self._store.manifests.put(Manifest(kind="checkpoint", files=files, meta={**index, "identity": self._identity, **meta}))
        if self._context.lease is not None:
            # What stays is decided when the store is collected: by what the training's newest entry says.
            kept: dict[str, int | None] = {"keep": self._keep, "best_epoch": meta.get("best_epoch")}
            if "compared_step" in meta:
                kept["compared_step"] = meta["compared_step"]
            self._context.lease.commit(CHECKPOINT, {"uri": uri, "step": meta["step"], "epoch": meta["epoch"], **kept})
        if name is not None:
            set_run_ref(self._store, self._context.request, f"checkpoints/{name}", uri)
            if name == f"epoch_{meta.get('best_epoch')}":
                set_run_ref(self._store, self._context.request, f"checkpoints/{BEST}", uri)
            self._drop_old_names(meta.get("best_epoch"))
        return uri

    def _drop_old_names(self, best_epoch: int | None) -> None:
        """Delete the run's refs to epochs of other trainings, and to epochs other than the newest ones and the best one.

        Refs with other names stay.
        """
        request = self._context.request
        folder = f"runs/{request.pipeline}/{request.run.run_id}/checkpoints"
        found = {
            int(match[1]): self._store.run_ref(request.pipeline, request.run.run_id, f"checkpoints/{name}")
            for name in self._store.bucket.folders(folder)
            if (match := _EPOCH.fullmatch(name))
        }
        if not self._is_run_cleared:
            own = self._saved_digests()
            others = [epoch for epoch, ref in found.items() if (head := ref.read()) and StoreUri(head.value).digest not in own]
            for epoch in others:
                found.pop(epoch).delete()
            self._is_run_cleared = True
        for epoch in sorted(found)[: -self._keep]:
            if epoch != best_epoch:
                found[epoch].delete()

    def _saved_digests(self) -> set[str]:
        """Return the digests of all checkpoints that this training has committed."""
        history = self._context.work_folder.chain().history()
        return {StoreUri(entry.value["payload"]["uri"]).digest for entry in history if entry.value["kind"] == CHECKPOINT}


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A save that is being written."""

    future: Future[None]
    step: int


class Saves:
    """The saves that are under way, oldest first, and how many have failed in a row."""

    def __init__(self, interval: Interval, *, place: str) -> None:
        """Begin with none.

        Args:
            place: the rank and its node, for messages.
        """
        self._interval, self._place = interval, place
        self._begun_step: int | None = None
        self._begun_at = time.monotonic()
        self._in_flight: deque[UnderWay] = deque()
        self._seconds: deque[float] = deque(maxlen=NUM_MEASURED)
        self._ended_at = -math.inf
        self.committed_step: int | None = None
        """Of the newest save that was committed in this attempt."""
        self.num_failed = 0

    def is_due(self, step: int) -> bool:
        """Whether an interval is over after a step: by steps, or by time while no save is under way."""
        if self._begun_step is None:
            # A new training or one that was resumed: this is its first step.
            self._begun_step = step - 1
        steps = self._interval.steps
        if steps is not None and step // steps > self._begun_step // steps:
            # Also while a save is under way, which the new one waits for: which steps are saved does not depend on the store's speed.
            return True
        return time.monotonic() - self._begun_at >= self._interval.seconds and not self.is_writing

    @property
    def is_writing(self) -> bool:
        """Whether a save has not ended."""
        return any(not save.future.done() for save in self._in_flight)

    @property
    def under_way(self) -> bool:
        """Whether a save may not have ended."""
        return bool(self._in_flight)

    def begin(self, save: Future[None], step: int) -> None:
        self._begun_at = time.monotonic()
        self._begun_step = step
        save.add_done_callback(functools.partial(self._measure, time.monotonic()))
        self._in_flight.append(UnderWay(save, step))

    def expected_seconds(self) -> float:
        """Return how long a save that begins now may take until its commit, by the slowest of the last ones; 0 where none was committed."""
        longest = max(self._seconds, default=0.0)
        return longest * (1 + sum(not save.future.done() for save in self._in_flight))

    def _measure(self, begun_at: float, save: Future[None]) -> None:
        """Note how long a save took, without its wait for the one before; called in the thread that writes."""
        now = time.monotonic()
        if not save.cancelled() and save.exception() is None:
            self._seconds.append(now - max(begun_at, self._ended_at))
        self._ended_at = now

    def wait(self, *, most: int = 0, seconds: float | None = None) -> bool:
        """Wait until at most so many saves are under way; raise what one of the others raised if that must end the training.

        Args:
            seconds: how long to wait at most; None: without a limit.

        Returns:
            Whether no more than these are under way.

        Raises:
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while len(self._in_flight) > most or (self._in_flight and self._in_flight[0].future.done()):
            if until is not None:
                with liveness.phase("checkpoint", "wait for the upload"):
                    futures.wait([self._in_flight[0].future], timeout=max(0.0, until - time.monotonic()))
                if not self._in_flight[0].future.done():
                    return False
            self._settle(self._in_flight.popleft())
        return True

    def _settle(self, save: UnderWay) -> None:
        try:
            with liveness.phase("checkpoint", "wait for the upload"):
                save.future.result()
        except LeaseLostError:
            raise
        except (NightshiftError, OSError) as err:
            self.num_failed += 1
            what = f"{self._place}: the checkpoint of step {save.step} was not saved"
            logger.warning("%s (%d consecutive failures): %s; the previous one stays", what, self.num_failed, err)
            if self.num_failed >= MAX_FAILED_SAVES:
                message = f"{what}, as {self.num_failed - 1} before it: {err}"
                if is_full(err):
                    raise UnavailableError("storage.full", message, hint=FREE_SPACE) from err
                raise UnavailableError("checkpoint.unsaved", message) from err
        else:
            self.num_failed = 0
            self.committed_step = save.step


def is_full(err: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that a disk or a quota has no space left."""
    found: BaseException | None = err
    while found is not None:
        if isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        found = found.__cause__
    return False


class CheckpointWriter:
    """Saves one training's state in its work folder from one process, one save at a time, in format 1."""

    def __init__(self, commits: Commits, saves: Saves, *, by_name: bool) -> None:
        self._commits, self.saves, self._by_name = commits, saves, by_name
        self._given_up = threading.Event()
        self._buffer: TensorBuffer | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def is_due(self, step: int) -> bool:
        """Whether a save without a name is due after a step (`Saves.is_due`)."""
        return self.saves.is_due(step)

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
        if name is not None and not self._by_name:
            if not self.is_due(meta["step"]):
                return
            name = None
        signature = self._tensor_buffer().check(state)
        self.wait()
        with liveness.phase("checkpoint", "copy"):
            index, view = self._tensor_buffer().copy(state, signature)
        self._begin(index, view, meta, name)

    def save_bytes(self, state: Mapping[str, bytes | bytearray], meta: Position) -> None:
        """Write and commit bytes by name in the background, as tensors of uint8; waits for a save that is still under way.

        Raises:
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
        """
        self.wait()
        index: dict[str, TensorEntry] = {}
        data = bytearray()
        for name, content in sorted(state.items()):
            index[name] = {"dtype": "uint8", "shape": [len(content)], "offset": len(data)}
            data += content.ljust(padded(len(content)), b"\0")
        self._begin(index, memoryview(data), meta, None)

    def wait(self) -> None:
        """Wait for the save under way; raise what it raised if that must end the training."""
        self.saves.wait()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until a save could begin at once; return whether that is so within the limit."""
        return self.saves.wait(seconds=seconds)

    def give_up(self) -> None:
        """Let the save under way end without a commit, and nobody wait for it: this process is about to be killed."""
        self._given_up.set()

    def close(self) -> None:
        """Wait for the save under way and end the thread, with any result of the save; not for one that was given up."""
        if self._given_up.is_set():
            self._pool.shutdown(wait=False, cancel_futures=True)
            return
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
        # The training appends to its history while this save is written.
        self.saves.begin(self._pool.submit(self._write, index, view, copy.deepcopy(meta), name), meta["step"])

    def _write(self, index: Index, view: memoryview, meta: Position, name: str | None) -> None:
        files, written = {}, Written()
        for number, start in enumerate(range(0, len(view), BLOCK_BYTES)):
            self._go_on()
            block = view[start : start + BLOCK_BYTES]
            digest, is_new = self._commits.objects.put_block(block)
            written.add(len(block), is_new=is_new)
            files[f"block-{number:05d}"] = FileEntry(digest=digest, size_bytes=len(block))
        self._go_on()
        self._commits.commit(files, {"tensors": index}, meta, name)
        logger.info("checkpoint of step %s committed (%s)", meta["step"], written.to_text())

    def _go_on(self) -> None:
        if self._given_up.is_set():
            raise UnavailableError("checkpoint.incomplete", "the training ended before the checkpoint was written")
