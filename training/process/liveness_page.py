"""The page of memory that a stage process shares with its guard, and the names by which guards find those of other ranks."""

from __future__ import annotations

import signal
import struct
from typing import Final

STACKS_SIGNAL: Final = signal.SIGUSR2
PAGE_NAME: Final = "nightshift-liveness"
STACKS_NAME: Final = "nightshift-stacks"
"""Names of memory files, with the pid: a forked child has those of its parent open too."""
PAGE_BYTES: Final = 256
NUMBERS: Final = struct.Struct("<Qd")
"""Movements, limit in seconds (0: none)."""
MOVEMENTS: Final = struct.Struct("<Q")
"""The first of them, which helper threads write too."""
RANK_AT: Final = 16
RANK: Final = struct.Struct("<i")
"""Of the process among all of its gang, once it is started; /proc/PID/environ does not show it: a forked rank has its launcher's there."""
NO_RANK: Final = -1
TEXT_AT: Final = 32
"""Kind and name of the phase, UTF-8 with a zero at the end."""
