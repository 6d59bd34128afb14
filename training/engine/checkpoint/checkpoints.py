"""Checkpoints of one training: a family saves them and resumes from them.

`format` says how they are laid out; `writer` and `reader` do the work. A state is tensors (`training.engine.checkpoint.tensors`), or bytes
by name: trees need no torch for theirs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from training.engine.checkpoint.format import CheckpointIdentity, Position
from training.engine.checkpoint.reader import CheckpointReader, Filled, Restored
from training.engine.checkpoint.writer import CheckpointWriter, Commits, Interval, Saves
from training.errors import UnavailableError
from training.installation import node_name
from training.runtime.context import StageContext
from training.store.checkpoint_records import WITHDRAWN

if TYPE_CHECKING:
    from training.engine.checkpoint.tensors import State

DEFAULT_KEEP: Final = 3


class Writer(Protocol):
    """Saves the state of one training, or this process's part of it; of several processes, all call it at the same steps."""

    @property
    def saves(self) -> Saves:
        """The saves under way, and how long the last ones took."""

    def is_due(self, step: int) -> bool:
        """See `Saves.is_due`."""

    def reserve(self, state: State) -> None:
        """Begin to allocate, in the background, what a save of such a state needs."""

    def save(self, state: State, meta: Position, *, name: str | None = None) -> None:
        """Copy the state, then write and commit it in the background.

        Args:
            state: tensors by name; they may change as soon as this returns.
            meta: JSON beside them.
            name: ref below the run's `checkpoints/` to set to it.

        Raises:
            SpecError: `checkpoint.dtype`, `checkpoint.layout`: a tensor that could not be restored; nothing is written.
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
        """

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until a save could begin at once; return whether that is so within the limit."""

    def give_up(self) -> None:
        """Let the saves under way end without a commit, and nobody wait for them: this process is about to be killed."""

    def wait(self) -> None:
        """Wait for the saves under way; raise what one of them raised if that must end the training."""

    def close(self) -> None:
        """End the thread."""


class MakeWriter(Protocol):
    """Makes the writer of one training, which has no saves yet."""

    def __call__(self, commits: Commits, saves: Saves, *, by_name: bool) -> Writer:
        """Return it; `by_name` is that of `Checkpoints`."""


class Checkpoints:
    """Saves and restores one training's state in its work folder. The processes that its strategy names save; every one restores."""

    def __init__(
        self,
        context: StageContext,
        *,
        interval: Interval,
        identity: CheckpointIdentity,
        by_name: bool = True,
        keep: int = DEFAULT_KEEP,
        make_writer: MakeWriter = CheckpointWriter,
    ) -> None:
        """Open the checkpoints of a work folder.

        Args:
            interval: when a save without a name is due.
            keep: how many of the newest checkpoints stay, besides that of the best epoch (`train.checkpoint.keep`).
            identity: what a checkpoint must agree on to be resumed from.
            by_name: a save with a name is made also where none is due, and the run's refs point to it; False: there is none to look at.
            make_writer: without it, one process saves the whole state (format 1).
        """
        self._context = context
        commits = Commits(context, identity=identity, keep=keep)
        saves = Saves(interval, place=f"rank {context.rank} (node {node_name()})")
        self._writer = make_writer(commits, saves, by_name=by_name)
        self._keep = keep
        self._reader = CheckpointReader(context, identity=identity)

    def is_due(self, step: int) -> bool:
        """Whether a save without a name is due after a step (`Saves.is_due`)."""
        return self._writer.is_due(step)

    @property
    def is_saving(self) -> bool:
        """Whether this process is writing a checkpoint."""
        return self._writer.saves.is_writing

    def reserve(self, state: State) -> None:
        """See `Writer.reserve`."""
        self._writer.reserve(state)

    def save(self, state: State, meta: Position, *, name: str | None = None) -> None:
        """See `Writer.save`."""
        self._writer.save(state, meta, name=name)

    def save_bytes(self, state: Mapping[str, bytes | bytearray], meta: Position) -> None:
        """See `CheckpointWriter.save_bytes`."""
        if not isinstance(self._writer, CheckpointWriter):
            raise TypeError("bytes are saved by one process")
        self._writer.save_bytes(state, meta)

    def wait(self) -> None:
        """Wait for the save under way; raise what it raised if that must end the training."""
        self._writer.wait()

    def withdraw(self, *, after_step: int) -> None:
        """Take back the checkpoints of later steps, those under way included: no attempt resumes from them.

        Only the process that has the lease commits it; on others it does nothing but wait for their saves.

        Raises:
            LeaseLostError: a newer attempt took over.
        """
        with suppress(UnavailableError):
            self._writer.wait()
        if self._context.lease is not None:
            self._context.lease.commit(WITHDRAWN, {"after_step": after_step})

    def expected_seconds(self) -> float:
        """See `Saves.expected_seconds`."""
        return self._writer.saves.expected_seconds()

    def save_within(self, state: State | None, meta: Position, *, seconds: float) -> bool:
        """Save the last state before this process is killed, with any save under way before it; return whether it is committed.

        What is not committed within the limit is given up: the checkpoint before stays the newest, and `close` does not wait.

        Args:
            state: tensors by name; None: there is no time for them, but perhaps for a save that is under way.
            seconds: from now; infinite: it is committed whatever time it takes.

        Raises:
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
        """
        writer, until = self._writer, time.monotonic() + seconds
        is_in_time = True
        if state is not None:
            is_in_time = writer.wait_for_room(min(seconds, threading.TIMEOUT_MAX))
            if is_in_time:
                writer.save(state, meta)
        if is_in_time:
            is_in_time = writer.saves.wait(seconds=min(until - time.monotonic(), threading.TIMEOUT_MAX))
        if not is_in_time:
            writer.give_up()
        return writer.saves.committed_step == meta["step"]

    def newest_entry(self, *, before: int | None = None) -> int:
        """See `CheckpointReader.newest_entry`."""
        return self._reader.newest_entry(before=before)

    def begin_at(self, digest: str) -> None:
        """See `CheckpointReader.begin_at`."""
        self._reader.begin_at(digest, keep=self._keep)

    def restore(self, entry_number: int) -> Restored:
        """Return the checkpoint that a record of the work's chain names."""
        return self._reader.restore(entry_number)

    def names(self, entry_number: int) -> frozenset[str]:
        """See `CheckpointReader.names`."""
        return self._reader.names(entry_number)

    def restore_into(self, entry_number: int, state: State, *, optional_prefixes: Sequence[str] = ()) -> Filled:
        """See `CheckpointReader.restore_into`."""
        return self._reader.restore_into(entry_number, state, optional_prefixes=optional_prefixes)

    def close(self) -> None:
        """Wait for the save under way and end the thread, with any result of it; where several processes save together, give it up."""
        self._writer.close()
