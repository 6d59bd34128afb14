"""The error of an attempt, `_ERROR.json`: written by its process, or for one that hung and was ended by the kernel's timer."""

from __future__ import annotations

import json
import signal
from typing import Final

from training.contracts import JsonObject
from training.errors import HungError, NightshiftError
from training.process.liveness import START_LIMIT, Phase
from training.runtime.exhausted_resources import MAX_MESSAGE_CHARS
from training.store import WorkFolder

HUNG: Final = 128 + signal.SIGALRM
"""Exit code, as a shell reports it, of a process that did not move within the limit of its phase (`training.process.liveness`)."""
MAX_TRACEBACK_CHARS: Final = 8000
UNKNOWN: Final = Phase("start", "or what came before the first heartbeat", 0.0)
"""Of a process without a readable heartbeat."""
STOPS: Final = frozenset({"stage.stopped", "train.preempted", "peer.lost"})
"""Codes of the errors of a process that was asked to stop, or whose peers were."""


def write_error(work_folder: WorkFolder, attempt_id: str, error: NightshiftError, trace: str, *, rank: int) -> bool:
    """Write an attempt's `_ERROR.json`, texts cut at their limits; say whether it is the attempt's first error, which is the one kept.

    Raises:
        NightshiftError: the store cannot be written.
    """
    record: JsonObject = {
        "code": error.code,
        "exit_code": int(error.exit_code),
        "message": error.message[:MAX_MESSAGE_CHARS],
        "hint": error.hint,
        "details": {name: str(value)[:MAX_MESSAGE_CHARS] for name, value in error.details.items()},
        "rank": rank,
        "traceback": trace[:MAX_TRACEBACK_CHARS],
    }
    return work_folder.write_error(attempt_id, record)


def forget_stop(work_folder: WorkFolder, attempt_id: str) -> None:
    """Delete an attempt's error if it only says that a process was asked to stop: there is a cause, or the attempt was started again.

    Raises:
        NightshiftError: the store cannot be read or written.
    """
    if (work_folder.error(attempt_id) or {}).get("code") in STOPS:
        work_folder.forget_error(attempt_id)


def write_hang(work_folder: WorkFolder, attempt_id: str, did: Phase, *, rank: int) -> None:
    """Write the error of an attempt one of whose processes hung, unless there is an earlier one that is no consequence.

    Args:
        did: what the process did last.

    Raises:
        NightshiftError: the store cannot be written.
    """
    part = f" ({did.name})" if did.name else ""
    within = f" of {did.limit_seconds:.0f} s" if did.limit_seconds else ""
    setting = f"timeout.{did.kind} in the pipeline's YAML"
    if did is UNKNOWN:
        setting = "timeout.start, timeout.part or timeout.step in the pipeline's YAML"
    if did.kind == "start":
        # Whether the process had read the spec is not known.
        setting += f", or {START_LIMIT.name} where the process had not read it yet"
    error = HungError(
        "stage.hung",
        f"rank {rank}: no progress in {did.kind}{part} within the limit{within}",
        hint=f"the stacks are in the log; if the work is that slow, raise {setting}",
    )
    # The other ranks lost it, and may have written that first.
    forget_stop(work_folder, attempt_id)
    write_error(work_folder, attempt_id, error, "", rank=rank)


def error_of_ended(work_folder: WorkFolder, attempt_id: str, exit_code: int) -> JsonObject | None:
    """Return the error of an attempt that has ended, None where there is none. That of a stage of one process that hung is written first.

    Args:
        exit_code: as a shell reports it. torchrun's process writes the errors of its ranks.

    Raises:
        NightshiftError: the store cannot be read or written.
    """
    if exit_code == HUNG:
        write_hang(work_folder, attempt_id, _in_heartbeat(work_folder.heartbeat(attempt_id)), rank=0)
    return work_folder.error(attempt_id)


def _in_heartbeat(beat: bytes | None) -> Phase:
    try:
        return Phase(**json.loads(beat or b"")["phase"])
    except (ValueError, LookupError, TypeError):
        # The first one was not written, a crash of the machine left a part of it, or it is of another version.
        return UNKNOWN
