"""What the chain of a training's work says of its checkpoints, for the training, the task that relaunches it, and the collector.

A record `checkpoint` names one. A record `withdrawn` takes back those before it that hold steps which turned out to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

CHECKPOINT: Final = "checkpoint"
WITHDRAWN: Final = "withdrawn"

T = TypeVar("T")


def standing(records: Iterable[T], value_of: Callable[[T], Any]) -> list[T]:
    """Return the records of checkpoints that may be resumed from, oldest first.

    Args:
        records: of one chain, oldest first.
        value_of: the JSON of a record.
    """
    found: list[T] = []
    for record in records:
        value = value_of(record)
        payload = value.get("payload") if isinstance(value, dict) else None
        if not isinstance(payload, dict):
            continue
        if value.get("kind") == CHECKPOINT:
            found.append(record)
        elif value.get("kind") == WITHDRAWN:
            found = [made for made in found if value_of(made)["payload"].get("step", 0) <= payload.get("after_step", 0)]
    return found
