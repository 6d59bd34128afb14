"""What was requested from a cluster for one piece of work, launch by launch, so that nothing is requested twice.

A launch is claimed in the store before the first request to the cluster, under the next number, by conditional create: of two
operators that both want to start the work exactly one wins, and the other finds the winner's launch and watches it. What runs in
the cluster has the name that the claim notes. If a process is killed between any two steps, the next one knows what to look for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from training.contracts import JsonValue
from training.store.addresses import StageAddress
from training.store.leases import holder_of
from training.store.records import readable
from training.store.refs import Revision

Cause = Literal["first", "again", "infrastructure", "memory", "placement"]

PREEMPTED: Final = "pod.preempted"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEntry:
    """One launch as it was claimed."""

    attempt_id: str
    request_uri: str
    name: str
    """Of what runs in the cluster."""
    nodes: int
    spot: bool
    cause: Cause
    """Why it was claimed: the work's first one, a person cleared the task, what ran before was lost, had too little memory, or had only a
    part of its nodes and gave them back."""
    owner: str
    """Task instance that claimed it."""
    try_number: int
    generation: str
    """Changes when a person clears the task, or triggers its run again under the same id: budgets are reset."""
    preemptions: int = 0
    """Launches of this work that were taken away before this one."""
    avoided_nodes: tuple[str, ...] = ()
    """Names of nodes on which the training was slower than on others."""
    avoidance_tries: int = 0
    """0: other nodes are preferred; otherwise the nodes are excluded, for so many launches in a row."""
    begins_at: str = ""
    """Instant before which nothing is requested for it; empty: at once."""
    waiting_since: str = ""
    """Instant since when the work waits for a place, over launches that gave back what they had; empty: since this one's request."""
    number: int = 0
    """From 1; 0 before it is claimed."""

    def is_of(self, owner: str, generation: str) -> bool:
        return self.owner == owner and self.generation == generation


class Launches:
    """The launches of one address."""

    def __init__(self, address: StageAddress) -> None:
        self._address = address
        self._ref = address.launches()

    def all(self) -> list[LaunchEntry]:
        """Return all launches, oldest first."""
        return [self._entry(revision) for revision in self._ref.history()]

    def _entry(self, revision: Revision) -> LaunchEntry:
        uri = f"{self._address.uri}/launches, revision {revision.number}"
        with readable(uri, hint=f"delete the folder {self._address.uri}/launches"):
            avoided_nodes = tuple(map(str, revision.value.get("avoided_nodes", ())))
            return LaunchEntry(**{**revision.value, "avoided_nodes": avoided_nodes, "number": revision.number})

    def claim(self, entry: LaunchEntry, *, after: int) -> bool:
        """Make `entry` the launch `after + 1`; say whether it was us (False: another operator was faster)."""
        values = {name: value for name, value in asdict(entry).items() if name != "number"}
        return self._ref.move(values, expected=after)

    def note_end(self, entry: LaunchEntry, record: Mapping[str, object]) -> None:
        """Note how a launch ended; the first note stands."""
        self._address.write_ended(entry.attempt_id, record)

    def end_of(self, entry: LaunchEntry) -> dict[str, JsonValue] | None:
        """Return the note of a launch's end, or None while its end has not been seen."""
        return self._address.ended(entry.attempt_id)

    def has_begun(self, entry: LaunchEntry) -> bool:
        """Return whether the launch's process has ever held the work's lease."""
        return any(revision.value.get("attempt_id") == entry.attempt_id for revision in self._address.journal().history())

    def holder_epoch(self) -> int:
        """Return the epoch of the work's holder, 0 where there is none. Take it over only if it is known to have ended."""
        holder = holder_of(self._address.journal())
        return 0 if holder is None or holder.released else holder.epoch
