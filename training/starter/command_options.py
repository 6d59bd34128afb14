"""What the command line says of a pipeline, so that it is not guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

SPLITS: Final = ("time", "random", "stratified", "group")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What is not guessed."""

    key: Sequence[str]
    """Columns that identify a row; empty: found."""
    split: str
    """time, random, stratified or group; empty: by time where rows have one."""
    split_column: str
    """Of a split by group, or stratified."""
    zone: str
    now: datetime
