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
from training.store.chains import ChainRecord
from training.store.leases import holder_of
from training.store.records import readable
from training.store.work_folder import WorkFolder

Cause = Literal["first", "again", "infrastructure", "memory", "placement"]

PREEMPTED: Final = "pod.preempted"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRecord:
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
    """The launches of one work folder."""

    def __init__(self, work_folder: WorkFolder) -> None:
        self._work_folder = work_folder
        self._ref = work_folder.launches()

    def all(self) -> list[LaunchRecord]:
        """Return all launches, oldest first."""
        return [self._launch(record) for record in self._ref.history()]

    def _launch(self, record: ChainRecord) -> LaunchRecord:
        uri = f"{self._work_folder.uri}/launches, record {record.number}"
        with readable(uri, hint=f"delete the folder {self._work_folder.uri}/launches"):
            avoided_nodes = tuple(map(str, record.value.get("avoided_nodes", ())))
            return LaunchRecord(**{**record.value, "avoided_nodes": avoided_nodes, "number": record.number})

    def claim(self, launch: LaunchRecord, *, after: int) -> bool:
        """Make `launch` the launch `after + 1`; return False where another operator was faster."""
        values = {name: value for name, value in asdict(launch).items() if name != "number"}
        return self._ref.move(values, expected=after)

    def record_end(self, launch: LaunchRecord, record: Mapping[str, object]) -> None:
        """Write how a launch ended; the first record stands."""
        self._work_folder.write_ended(launch.attempt_id, record)

    def end_of(self, launch: LaunchRecord) -> dict[str, JsonValue] | None:
        """Return the record of a launch's end, or None while its end has not been seen."""
        return self._work_folder.ended(launch.attempt_id)

    def has_begun(self, launch: LaunchRecord) -> bool:
        """Return whether the launch's process has ever held the work's lease."""
        return any(record.value.get("attempt_id") == launch.attempt_id for record in self._work_folder.chain().history())

    def holder_epoch(self) -> int:
        """Return the epoch of the work's holder, 0 where there is none. Take it over only if it is known to have ended."""
        holder = holder_of(self._work_folder.chain())
        return 0 if holder is None else holder.epoch
