"""What a rule finds: a problem whose place in the file is still to be looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from training.spec.yaml_reader import Path


class Finding(NamedTuple):
    path: Path
    code: str
    message: str
    hint: str = ""
    beside: Path | None = None
    """Another place in the file that it is about: its line is named in the message."""


Rule = Callable[..., Iterator[Finding]]
"""What a rule finds in the sections that it is of."""
