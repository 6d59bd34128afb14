"""The frame of the commands that ask a server, or read the ledger, the database and the store of this installation themselves."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nightshift.client.client import Client
from nightshift.client.login import SERVER, USERNAME, client_of
from training.command_line import describe
from training.format import in_columns
from training.sanitizing import for_terminal

if TYPE_CHECKING:
    from nightshift.client.local_reader import LocalReader

    Reader = Client | LocalReader
    """Answers with the records of the REST API."""


def describe_server_command(
    parser: argparse.ArgumentParser, command: Callable[[Client, argparse.Namespace], int], example: str, text: str | None = None
) -> None:
    """Make a parser that of a subcommand which asks a server, by default the laptop installation's; see `describe`."""

    def run(options: argparse.Namespace) -> int:
        with client_of(options.server, user=getattr(options, "user", USERNAME)) as client:
            return command(client, options)

    describe(parser, run, example, text)
    add_options(parser, f"address of the api-server; default: {SERVER.name}")


def describe_query_command(
    parser: argparse.ArgumentParser,
    command: Callable[[Reader, argparse.Namespace], int],
    example: str,
    text: str | None = None,
    *,
    local_options: Sequence[str] = (),
) -> None:
    """Make a parser that of a subcommand which asks a server only where one is named, and else reads what is here; see `describe`.

    Args:
        local_options: names of options that a server has no use for.
    """

    def run(options: argparse.Namespace) -> int:
        if options.server or SERVER.text():
            for name in local_options:
                if getattr(options, name):
                    options.error(f"--{name} is for an installation without a server")
            with client_of(options.server) as client:
                return command(client, options)
        # SQLAlchemy: a server is asked without it.
        from nightshift.client.local_reader import LocalReader

        return command(LocalReader(), options)

    describe(parser, run, example, text)
    add_options(parser, f"address of the api-server to ask; default: {SERVER.name}, and without it this installation is read")


def add_options(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add the options of all of them; `meaning` is that of --server."""
    parser.add_argument("--server", metavar="URL", help=meaning)
    parser.add_argument("--json", action="store_true", help="as JSON")


def print_json(found: object) -> None:
    """Print records, and what is made of them, as the API has them."""
    sys.stdout.write(json.dumps(found, default=_plain, indent=1, ensure_ascii=False) + "\n")


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, the first one being the heads; on a terminal, lines are cut at its width."""
    for line in in_columns([[for_terminal(cell) for cell in row] for row in rows]):
        print_cut(line)


def print_cut(line: str) -> None:
    """Print a line, on a terminal as far as it is wide; a program that reads gets it whole."""
    width = shutil.get_terminal_size().columns
    sys.stdout.write((f"{line[: width - 1]}…" if len(line) > width and sys.stdout.isatty() else line) + "\n")
