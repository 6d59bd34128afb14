"""Subcommands of `nightshift` in this process: what the command runs, without its search for a checkout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nightshift.console import run


def command(*words: str) -> Callable[[Sequence[str]], int]:
    """Return what runs a subcommand with the arguments that it is given, and returns its exit code."""
    return lambda arguments: run([*words, *arguments])
