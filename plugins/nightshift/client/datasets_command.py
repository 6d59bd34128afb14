"""Versions of pipelines' data, on a server.

    nightshift datasets list [PIPELINE] --server URL [--json]
    nightshift datasets show PIPELINE VERSION --server URL [--json]
    nightshift datasets deprecate PIPELINE VERSION --reason "..." --server URL [--json]

Without a server, `nightshift datasets` reads and writes the ledger's database itself (`python -m training.registry.datasets`).
Deprecated is by the token's user. New runs refuse such a version; nothing is deleted.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from nightshift.client.client import Client
from nightshift.client.login import add_options, client_of
from nightshift.client.runs_command import print_json
from nightshift.queries.records import DatasetVersion
from training.command_line import example, exit_code_of
from training.database.datasets import Dataset
from training.registry.dataset_table import dataset_line, dataset_words, none_words


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args(arguments)

    def asked() -> int:
        with client_of(options.server) as client:
            return _COMMANDS[options.command](client, options)

    return exit_code_of(asked)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift datasets", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True, metavar="{list,show,deprecate}")
    server = "--server https://airflow.example.com"
    listing = commands.add_parser(
        "list",
        help="the versions of a pipeline's data, the newest first",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example(f"nightshift datasets list search_ranking {server}"),
    )
    listing.add_argument("pipeline", nargs="?", help="name of a pipeline; absent: all")
    show = commands.add_parser(
        "show",
        help="one version",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example(f"nightshift datasets show search_ranking 0a1b2c3d4e5f6071 {server}"),
    )
    mark = commands.add_parser(
        "deprecate",
        help="mark a version, so that new runs refuse it; nothing is deleted",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example(f'nightshift datasets deprecate search_ranking 0a1b2c3d4e5f6071 --reason "wrong prices" {server}'),
    )
    for command in (show, mark):
        command.add_argument("pipeline", help="name of a pipeline")
        command.add_argument("version", help="16 hexadecimal digits, as `list` shows them, or the whole digest")
    mark.add_argument("--reason", required=True, help="for those who read it a year later")
    for command in (listing, show, mark):
        add_options(command)
    return found


def _list(client: Client, options: argparse.Namespace) -> int:
    found = list(client.datasets(options.pipeline) if options.pipeline else _of_all(client))
    if options.json:
        print_json(found)
        return 0
    if not found:
        sys.stdout.write(f"{none_words(options.pipeline)}\n")
    sys.stdout.write("".join(f"{dataset_line(_dataset(each))}\n" for each in found))
    return 0


def _of_all(client: Client) -> Iterator[DatasetVersion]:
    for newest in client.datasets():
        yield from client.datasets(newest.pipeline)


def _show(client: Client, options: argparse.Namespace) -> int:
    found = client.dataset(options.pipeline, options.version)
    return _said(found, options, columns=found.tables)


def _deprecate(client: Client, options: argparse.Namespace) -> int:
    return _said(client.deprecate(options.pipeline, options.version, reason=options.reason), options)


def _said(found: DatasetVersion, options: argparse.Namespace, *, columns: Mapping[str, Mapping[str, str]] | None = None) -> int:
    if options.json:
        print_json(found)
    else:
        sys.stdout.write(dataset_words(_dataset(found), columns))
    return 0


def _dataset(found: DatasetVersion) -> Dataset:
    """Return a record as the database has it."""
    fields = dict(found)
    fields["deleted_at"] = fields.pop("changed_at")
    return Dataset(**{name: value for name, value in fields.items() if name not in ("health", "tables")})


_COMMANDS: Final[Mapping[str, Callable[[Client, argparse.Namespace], int]]] = {"list": _list, "show": _show, "deprecate": _deprecate}


if __name__ == "__main__":
    sys.exit(main())
