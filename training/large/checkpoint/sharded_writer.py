"""Writes checkpoints from several processes (format 2): each its own blocks, straight to the store; rank 0 commits one manifest last.

What a save does in the background of each rank, over the exchange of `training.large.checkpoint.savers`:

1. It tells the others which chunks it has. Rank 0 divides them (`training.large.checkpoint.plan`); a layout is planned once.
2. It writes the blocks of the chunks that are its own, and tells rank 0 their digests.
3. Rank 0 commits when all have written, and tells the others, so a save fails on all ranks or on none.

A rank that is killed in between leaves blocks that nothing names; the checkpoint before stays the newest.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

from training.contracts import JsonObject, JsonValue, sha256_hex
from training.engine.checkpoint.chunks import FORMAT, Piece, block_name, blocks_for, read_index
from training.engine.checkpoint.format import Position
from training.engine.checkpoint.tensors import State
from training.engine.checkpoint.writer import Commits, Saves, Written
from training.errors import LeaseLostError, NightshiftError, UnavailableError
from training.installation import node_name
from training.large.checkpoint.background import DaemonThread
from training.large.checkpoint.plan import GlobalPlan, ShardListing, plan_for
from training.large.checkpoint.savers import Exchange, Savers
from training.large.checkpoint.shard_buffer import BufferLayout, Copied, Layouts, ShardBuffer
from training.process import liveness
from training.store import Manifest
from training.store.manifests import FileEntry

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 2
HEARD_SECONDS: Final = 10.0
"""How long rank 0 waits for the others to hear what came of a save."""
CLOSE_SECONDS: Final = 5.0
"""How long an ending training waits for the thread, which may be in the middle of a block."""


class ShardedWriter:
    """Saves one training's state in its work folder from every process of its gang. All call `save` at the same steps."""

    def __init__(self, commits: Commits, saves: Saves, *, savers: Savers, by_name: bool) -> None:
        """Open the writer.

        Args:
            savers: the processes that save together, each its part (format 2).
        """
        self._commits, self.saves, self._savers, self._by_name = commits, saves, savers, by_name
        self._given_up = threading.Event()
        self._close_seconds = CLOSE_SECONDS
        self._exchange = Exchange(savers, self._given_up)
        self._layouts = Layouts()
        self._buffers = [ShardBuffer(), ShardBuffer()]
        self._thread = DaemonThread("checkpoint")
        self._num_saves = 0
        self._num_questions = 0
        self._plans: dict[str, GlobalPlan] = {}
        self._assigned: dict[str, Sequence[int]] = {}
        self._sent_listings: set[str] = set()

    def is_due(self, step: int) -> bool:
        """Whether a save is due here after a step (`Saves.is_due`): rank 0's answer is for all, who must hear of it."""
        return self.saves.is_due(step)

    def reserve(self, state: State) -> None:
        """Begin to allocate, in the background, what a save of this process's part of such a state is copied to."""
        self._buffers[0].reserve(self._layouts.of(state), self._thread)

    def save(self, state: State, meta: Position, *, name: str | None = None) -> None:
        """Copy this process's part of the state, then write and commit it in the background; two saves may be under way.

        Args:
            state: tensors by name, whole or DTensors; they may change as soon as this returns. A plain tensor of a name is the same on
                every process that has the name.
            meta: JSON beside them; rank 0's is saved.
            name: ref below the run's `checkpoints/` to set to it.

        Raises:
            SpecError: `checkpoint.dtype`, `checkpoint.layout`: a tensor that could not be restored; nothing is written.
            LeaseLostError: a newer attempt took over.
            UnavailableError: three consecutive saves failed.
        """
        if name is not None and not self._by_name:
            if not self._agree(self.is_due(meta["step"])):
                return
            name = None
        layout = self._layouts.of(state)
        self.saves.wait(most=MAX_IN_FLIGHT - 1)
        if self.saves.under_way:
            # That one may still be read. The second buffer is made when a save first comes so soon.
            self._buffers.reverse()
        with liveness.phase("checkpoint", "copy"):
            copied = self._buffers[0].copy(layout, state)
        # The training appends to its history while this save is written.
        self.saves.begin(self._thread.submit(self._write, self._num_saves, copied, copy.deepcopy(meta), name), meta["step"])
        self._num_saves += 1

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until a save could begin at once; return whether that is so within the limit."""
        return self.saves.wait(most=MAX_IN_FLIGHT - 1, seconds=seconds)

    def give_up(self) -> None:
        """Let the saves under way end without a commit, and nobody wait for them: this process is about to be killed."""
        self._close_seconds = 0.0
        self._given_up.set()

    def wait(self) -> None:
        """Wait for the saves under way; raise what one of them raised if that must end the training."""
        self.saves.wait()

    def close(self) -> None:
        """End the thread. A save that is under way is given up: a training that ends by itself has waited for it before."""
        self._given_up.set()
        if not self._thread.close(self._close_seconds):
            logger.warning("the checkpoint thread has not ended within %.0f s and is left behind", self._close_seconds)

    def _agree(self, answer: bool) -> bool:
        """Return rank 0's answer on every rank."""
        number, self._num_questions = self._num_questions, self._num_questions + 1
        if not self._savers.is_first:
            found = bool(self._exchange.first(f"due/{number}"))
            self._exchange.tell(f"due/{number}/heard/{self._savers.rank}", True)
            return found
        self._exchange.tell(f"due/{number}", answer)
        self._await_heard(f"due/{number}")
        self._exchange.forget(f"due/{number}", *self._heard(f"due/{number}").values())
        return answer

    def _heard(self, key: str) -> dict[int, str]:
        """Return the keys under which the other ranks say that they have read a key."""
        return {rank: f"{key}/heard/{rank}" for rank in range(1, self._savers.world_size)}

    def _await_heard(self, key: str) -> None:
        """Wait until the other ranks have read a key: this process may end next, and with it what they ask. Not for a rank that is gone."""
        with suppress(UnavailableError):
            self._exchange.all(self._heard(key), silence_seconds=HEARD_SECONDS)

    def _write(self, number: int, copied: Copied, meta: Position, name: str | None) -> None:
        """Do one save, in the thread."""
        try:
            assigned, plan = self._agree_on_plan(number, copied.layout)
            blocks, written = self._put(copied, assigned)
        except BaseException as err:
            with suppress(NightshiftError):
                self._exchange.tell(f"{number}/written/{self._savers.rank}", {"error": str(err), "node": node_name()})
                if not self._savers.is_first:
                    # It does not ask what comes of the save.
                    self._exchange.tell(f"{number}/done/heard/{self._savers.rank}", True)
                else:
                    self._exchange.tell(f"{number}/plan", {"error": str(err)})
                    self._exchange.tell(f"{number}/done", {"error": str(err)})
            raise
        outcome: JsonObject = {"blocks": [[entry.digest, entry.size_bytes] for entry in blocks], "bytes": [written.new, written.unchanged]}
        self._exchange.tell(f"{number}/written/{self._savers.rank}", outcome)
        if plan is not None:
            self._commit(number, plan, meta, name)
            return
        done = cast(JsonObject, self._exchange.first(f"{number}/done"))
        self._exchange.tell(f"{number}/done/heard/{self._savers.rank}", True)
        if "error" in done:
            kind = LeaseLostError if done.get("code") == "lease.lost" else UnavailableError
            raise kind(str(done.get("code") or "checkpoint.incomplete"), f"rank 0 did not commit: {done['error']}")

    def _agree_on_plan(self, number: int, layout: BufferLayout) -> tuple[Sequence[int], GlobalPlan | None]:
        """Return the chunks that this rank writes, and on rank 0 the whole plan."""
        exchange, digest = self._exchange, layout.listing.digest
        if digest not in self._sent_listings:
            # Before its digest: rank 0 asks for the chunks of a digest that it reads.
            exchange.tell(f"listing/{self._savers.rank}/{digest}", layout.listing.to_json())
            self._sent_listings.add(digest)
        exchange.tell(f"{number}/layout/{self._savers.rank}", digest)
        plan = None
        if self._savers.is_first:
            plan_id, plan = self._plan(number)
            exchange.tell(f"{number}/plan", plan_id)
        else:
            answer = exchange.first(f"{number}/plan")
            if not isinstance(answer, str):
                raise UnavailableError("checkpoint.incomplete", f"rank 0 did not plan the save: {answer}")
            plan_id = answer
        if plan_id not in self._assigned:
            self._assigned[plan_id] = cast(list[int], exchange.first(f"assigned/{plan_id}/{self._savers.rank}"))
        layout.assigned = self._assigned[plan_id]
        return self._assigned[plan_id], plan

    def _plan(self, number: int) -> tuple[str, GlobalPlan]:
        """Return the plan for what all ranks have, by its name; only rank 0 plans."""
        exchange, ranks = self._exchange, range(self._savers.world_size)
        digests = exchange.all({rank: f"{number}/layout/{rank}" for rank in ranks})
        # All ranks are in this save, so nobody reads what was said in the last one.
        self._forget(number - 1)
        plan_id = sha256_hex(json.dumps([digests[rank] for rank in ranks]).encode())
        if plan_id not in self._plans:
            listings = exchange.all({rank: f"listing/{rank}/{digests[rank]}" for rank in ranks})
            plan = plan_for([ShardListing.from_json(listings[rank]) for rank in ranks])
            for rank, numbers in enumerate(plan.assigned):
                exchange.tell(f"assigned/{plan_id}/{rank}", list(numbers))
            self._plans[plan_id] = plan
        return plan_id, self._plans[plan_id]

    def _put(self, copied: Copied, assigned: Sequence[int]) -> tuple[list[FileEntry], Written]:
        """Write this rank's blocks."""
        blocks, written = [], Written()
        if not set(assigned) <= set(copied.chunks):
            # Another rank's layout changed while this one's did not; the next save copies what it needs.
            raise UnavailableError("checkpoint.incomplete", "the ranks' chunks were divided differently after this rank had copied its own")
        data = [copied.chunks[number] for number in assigned]
        for pieces in blocks_for([len(chunk) for chunk in data]):
            self._exchange.moved()
            block = _joined(data, pieces)
            digest, is_new = self._commits.objects.put_block(block)
            written.add(len(block), is_new=is_new)
            blocks.append(FileEntry(digest=digest, size_bytes=len(block)))
        return blocks, written

    def _commit(self, number: int, plan: GlobalPlan, meta: Position, name: str | None) -> None:
        """Wait for the blocks of all ranks, commit, and tell the other ranks what came of it; only on rank 0."""
        outcome: JsonObject = {"error": "rank 0 failed"}
        try:
            by_rank = self._exchange.all({rank: f"{number}/written/{rank}" for rank in range(self._savers.world_size)})
            files, written = _collected(by_rank)
            index: JsonObject = {"format": FORMAT, "tensors": cast(JsonObject, plan.entries)}
            # What no reader would accept is not committed.
            read_index(Manifest(kind="checkpoint", files=files, meta=index))
            outcome = {"uri": self._commits.commit(files, index, meta, name)}
            logger.info("checkpoint of step %s committed by %d ranks (%s)", meta["step"], len(by_rank), written.to_text())
        except NightshiftError as err:
            outcome = {"error": str(err), "code": err.code}
            raise
        finally:
            with suppress(NightshiftError):
                self._exchange.tell(f"{number}/done", outcome)
                self._await_heard(f"{number}/done")

    def _forget(self, number: int) -> None:
        ranks = range(self._savers.world_size)
        by_rank = [f"{number}/{what}/{rank}" for what in ("layout", "written", "done/heard") for rank in ranks]
        self._exchange.forget(*by_rank, f"{number}/plan", f"{number}/done")


def _joined(data: Sequence[memoryview], pieces: Sequence[Piece]) -> memoryview:
    views = [data[piece.chunk][piece.start : piece.stop] for piece in pieces]
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


def _collected(by_rank: dict[int, JsonValue]) -> tuple[dict[str, FileEntry], Written]:
    """Return the blocks of all ranks, by name.

    Raises:
        UnavailableError: `checkpoint.incomplete`, a rank could not write its own.
    """
    files, written = {}, Written()
    for rank, outcome in sorted(by_rank.items()):
        values = cast(JsonObject, outcome)
        if "error" in values:
            raise UnavailableError(
                "checkpoint.incomplete", f"rank {rank} (node {values['node']}) did not write its part: {values['error']}"
            )
        for number, (digest, size_bytes) in enumerate(cast(list[tuple[str, int]], values["blocks"])):
            files[block_name(rank, number)] = FileEntry(digest=digest, size_bytes=size_bytes)
        new, unchanged = cast(list[int], values["bytes"])
        written.add(new, is_new=True)
        written.add(unchanged, is_new=False)
    return files, written
