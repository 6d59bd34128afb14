"""XGBoost's own collective over the processes of a gang: histograms, sketches and metrics are summed by it, no gradient goes through torch.

Rank 0 runs the tracker, by which the processes find each other; the gang tells the others its address. A lost process ends every collective
of the others at once, a process that hangs after the limit of a step. Rarely XGBoost 3.2 waits for ever:
an operation that begins while XGBoost's own thread is ending is never answered. torchrun kills that process after its grace period of 30 s,
and no error is recorded.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from xgboost import collective
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

from training.engine.devices import LOCAL_WORLD_SIZE
from training.errors import PeerLostError, shown
from training.installation import MASTER_HOST

if TYPE_CHECKING:
    from training.engine.parallel.gang import Gang
    from training.engine.parallel.single_process import Alone

LOCAL_HOST: Final = "127.0.0.1"
OF_THE_COLLECTIVE: Final = "/collective/"
"""Part of the source path that XGBoost's message names where a collective fails."""
RANK_DIGITS: Final = 6
"""XGBoost sorts the processes by these texts."""


@contextmanager
def joined(gang: Gang | Alone) -> Iterator[None]:
    """Join XGBoost's collective for the block, in which every rank must make the same calls; nothing happens for one process.

    After an error the collective is left as it is: to leave it in order, XGBoost would wait for the processes that are lost.

    Raises:
        PeerLostError: `peer.lost`, another rank is lost, or does not come within the limit of a step.
    """
    if gang.world_size == 1:
        yield
        return
    # Imported here: they import torch, which several processes have anyway.
    from training.engine.parallel.gang import collective_timeout

    limit_seconds = max(1, int(collective_timeout().total_seconds()))
    tracker = _tracker(gang.world_size, limit_seconds) if gang.is_first else None
    address = json.loads(gang.text_from_first("" if tracker is None else json.dumps(tracker.worker_args())))
    # A rank may be late until here: it fetched, or mapped its rows.
    gang.wait_for_all()
    try:
        with _peers(gang):
            collective.init(**address, dmlc_task_id=f"{gang.rank:0{RANK_DIGITS}d}", dmlc_timeout=limit_seconds)
            yield
            collective.finalize()
            if tracker is not None:
                tracker.wait_for(limit_seconds)
    except BaseException:
        if tracker is not None:
            # Not freed: XGBoost would wait for its thread, and raise that not all have left.
            del tracker.handle
        raise


def _tracker(world_size: int, limit_seconds: int) -> RabitTracker:
    tracker = RabitTracker(n_workers=world_size, host_ip=_host_address(world_size), sortby="task", timeout=limit_seconds)
    tracker.start()
    return tracker


def _host_address(world_size: int) -> str:
    """Return the address of this host, rank 0's, for the others: XGBoost resolves no names."""
    if LOCAL_WORLD_SIZE.read() >= world_size:
        return LOCAL_HOST
    name = MASTER_HOST.text() or LOCAL_HOST
    try:
        return socket.gethostbyname(name)
    except OSError as err:
        raise PeerLostError("peer.lost", f"rank 0: its host name {shown(name)} ({MASTER_HOST.name}) has no address: {err}") from err


@contextmanager
def _peers(gang: Gang | Alone) -> Iterator[None]:
    """Turn what XGBoost raises of a broken collective into PeerLostError; other errors pass."""
    try:
        yield
    except XGBoostError as err:
        text = str(err)
        if OF_THE_COLLECTIVE not in text:
            raise
        lines = [line.strip() for line in text.partition("Stack trace")[0].splitlines() if line.strip()]
        reason = lines[-1] if lines else text
        raise PeerLostError("peer.lost", f"rank {gang.rank}: another rank is lost: {reason[:300]}") from err
