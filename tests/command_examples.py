"""The examples of each `--help`, for the test that reads them and the one that runs them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from nightshift.console import COMMANDS, OF_DEVSTACK, parser


def example_of(leaf: argparse.ArgumentParser) -> list[str]:
    """Return the words behind `nightshift` of a parser's example."""
    head, line = (leaf.epilog or "\n").split("\n")
    assert head == "example:", f"{leaf.prog} --help has no example"
    if "$(" in line:
        # Of the shell: what it runs.
        line = line[line.index("$(") + 2 : line.index(")")]
    program, *words = shlex.split(line)
    assert program.strip() == "nightshift"
    return words


def subparsers_of(above: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of subcommands by name; argparse has no public list of them."""
    found = (dict(action.choices) for action in above._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, {})


def leaves(above: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command line without further subcommands, with its parser."""
    subcommands = subparsers_of(above)
    if not subcommands:
        yield words, above
    for name, each in subcommands.items():
        yield from leaves(each, f"{words} {name}")


def all_leaves() -> list[tuple[str, argparse.ArgumentParser]]:
    """Return those of all commands, but for devstack's, whose help is of `make`."""
    return [leaf for name in COMMANDS.keys() - OF_DEVSTACK for leaf in leaves(subparsers_of(parser([name]))[name], name)]


def examples() -> list[list[str]]:
    """Return the examples of all commands."""
    return [example_of(leaf) for _words, leaf in all_leaves()]
