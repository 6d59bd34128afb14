"""The processes that save one checkpoint together: what they tell each other, outside of the training's own collectives.

They exchange JSON over a TCPStore of their own, which rank 0 serves: the thread that writes may wait for another rank as long as it moves,
while the loop goes on. A wait ends when the other rank has not moved for long, when rank 0's process is gone, or when the training ends.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from training.contracts import JsonValue
from training.errors import UnavailableError, first_line
from training.installation import MASTER_HOST

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from training.engine.parallel.gang import Gang

SILENCE_SECONDS: Final = 600.0
"""A rank that has written no block for so long ends the save: longer than the store's own retries of one block."""
FIRST_PAUSE_SECONDS: Final = 0.002
PAUSE_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Savers:
    """This process among those that save together."""

    rank: int
    world_size: int
    store: Store
    """Of these processes, for checkpoints alone."""
    silence_seconds: float = SILENCE_SECONDS

    @classmethod
    def of(cls, gang: Gang) -> Savers:
        """Return the savers of a gang whose ranks all save. Every rank must call it.

        Raises:
            PeerLostError: another rank is lost.
        """
        from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

        if gang.world_size == 1:
            return cls(0, 1, HashStore())
        limit = timedelta(seconds=SILENCE_SECONDS)
        host = MASTER_HOST.text() or "localhost"
        served = TCPStore(host, 0, is_master=True, timeout=limit, wait_for_workers=False) if gang.is_first else None
        port = gang.from_first(0 if served is None else served.port)
        store = served or TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        # Rank 0 must not go on, and perhaps end, before all are connected.
        gang.wait_for_all()
        return cls(gang.rank, gang.world_size, store)

    @property
    def is_first(self) -> bool:
        return self.rank == 0


class Exchange:
    """What the savers tell each other; for the thread that writes."""

    def __init__(self, savers: Savers, given_up: threading.Event) -> None:
        """Open it.

        Args:
            given_up: ends every wait.
        """
        self._savers = savers
        self._store = savers.store
        self._given_up = given_up

    def tell(self, key: str, value: JsonValue) -> None:
        """Say something under a key that is said once."""
        with _connected():
            self._store.set(key, json.dumps(value))

    def moved(self) -> None:
        """Say that this rank moves, and end where the training has ended."""
        self._go_on()
        with _connected():
            self._store.add(f"moved/{self._savers.rank}", 1)

    def first(self, key: str) -> JsonValue:
        """Return what rank 0 says under a key."""
        return self.all({0: key})[0]

    def all(self, keys: Mapping[int, str], *, silence_seconds: float | None = None) -> dict[int, JsonValue]:
        """Return what ranks say under keys, by rank; wait as long as one of them moves.

        Args:
            silence_seconds: how long none may have moved; None: the limit of the savers.

        Raises:
            UnavailableError: `checkpoint.incomplete`, a rank does not move, rank 0 is lost, or the training ended.
        """
        found: dict[int, JsonValue] = {}
        limit = self._savers.silence_seconds if silence_seconds is None else silence_seconds
        pause, moves, moved_at = FIRST_PAUSE_SECONDS, -1, time.monotonic()
        while True:
            with _connected():
                for rank, key in keys.items():
                    if rank not in found and self._store.check([key]):
                        found[rank] = json.loads(self._store.get(key))
                missing = [rank for rank in keys if rank not in found]
                now_moves = len(found) + sum(self._store.add(f"moved/{rank}", 0) for rank in missing)
            if not missing:
                return found
            self._go_on()
            if now_moves != moves:
                moves, moved_at = now_moves, time.monotonic()
            elif time.monotonic() - moved_at > limit:
                message = f"rank {missing[0]} has written nothing for {limit:.0f} s"
                raise UnavailableError("checkpoint.incomplete", message, hint="look at that rank's log and at its way to the store")
            self._given_up.wait(pause)
            pause = min(PAUSE_SECONDS, pause * 1.5)

    def forget(self, *keys: str) -> None:
        """Delete what every rank has read."""
        with _connected():
            for key in keys:
                self._store.delete_key(key)

    def _go_on(self) -> None:
        if self._given_up.is_set():
            raise UnavailableError("checkpoint.incomplete", "the training ended before all ranks had written their part")


@contextmanager
def _connected() -> Iterator[None]:
    """Turn what a lost connection raises into our error."""
    try:
        yield
    except RuntimeError as err:
        message = f"the ranks' exchange is lost, perhaps rank 0 with it: {first_line(err)}"
        raise UnavailableError("checkpoint.incomplete", message) from err
