"""The examples of each `--help`, for the test that reads them and the one that runs them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Final

from nightshift.completion import parser_of, subparsers_of
from nightshift.console import COMMANDS

LAPTOP: Final = frozenset({"run", "services"})
"""Are devstack's, whose help is of `make`."""


def example_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the words behind `nightshift` of a parser's example."""
    head, line = (parser.epilog or "\n").split("\n")
    assert head == "example:", f"{parser.prog} --help has no example"
    if "$(" in line:
        # Of the shell: what it runs.
        line = line[line.index("$(") + 2 : line.index(")")]
    program, *words = shlex.split(line)
    assert program.strip() == "nightshift"
    return words


def leaves(parser: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command line without further subcommands, with its parser."""
    subcommands = subparsers_of(parser)
    if not subcommands:
        yield words, parser
    for name, each in subcommands.items():
        yield from leaves(each, f"{words} {name}")


def examples() -> list[list[str]]:
    """Return the examples of all commands."""
    found = []
    for name, command in COMMANDS.items():
        parser = None if name in LAPTOP else parser_of(command)
        found += [] if parser is None else [example_of(leaf) for _words, leaf in leaves(parser, name)]
    return found
