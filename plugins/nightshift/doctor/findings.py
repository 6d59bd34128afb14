"""What a check finds, and where it looks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nightshift.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fact about an installation."""

    check: str
    is_ok: bool
    message: str
    hint: str = ""
    """How to repair it; empty where nothing is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """The installation that is looked at."""

    settings: Settings
    server: str | None = None
    """Address of the api-server; None: that of the environment, else the laptop's."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


Check = Callable[[Installation], Iterator[Finding]]


def good(check: str, message: str) -> Finding:
    """Return a fact that is as it should be."""
    return Finding(check=check, is_ok=True, message=message)


def bad(check: str, message: str, *, hint: str) -> Finding:
    """Return what is wrong, and how to repair it."""
    return Finding(check=check, is_ok=False, message=message, hint=hint)
