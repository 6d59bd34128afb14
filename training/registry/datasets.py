"""The versions of data sets (snapshots) that runs made, and their deprecation.

    nightshift datasets list [PIPELINE] [--json]
    nightshift datasets show PIPELINE VERSION [--store URI] [--json]
    nightshift datasets deprecate PIPELINE VERSION --reason "..." [--by USER] [--json]

It asks a server instead where --server or NIGHTSHIFT_SERVER names one; a deprecation is then by the token's user.

New runs refuse a deprecated version. Nothing is deleted: models made of it stay, and so do its files, until retention deletes them.

Exit codes: 0 done; 2 the command line is wrong; 74 the database does not answer; 77 refused (unknown version, deprecated already).
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Engine

from training.command_line import example, exit_code_of
from training.database import connect
from training.database.datasets import columns_of, datasets, deprecate, find_dataset
from training.installation import STORE
from training.registry.dataset_table import dataset_line, dataset_words, none_words
from training.store import Store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(lambda: _COMMANDS[options.command](connect(), options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift datasets", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True, metavar="{list,show,deprecate}")
    listing = commands.add_parser(
        "list",
        help="the versions of a pipeline's data, the newest first",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift datasets list search_ranking"),
    )
    listing.add_argument("pipeline", nargs="?", help="name of a pipeline; absent: all")
    listing.add_argument("--json", action="store_true", help="as JSON")
    show = commands.add_parser(
        "show",
        help="one version",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift datasets show search_ranking 0a1b2c3d4e5f6071"),
    )
    mark = commands.add_parser(
        "deprecate",
        help="mark a version, so that new runs refuse it; nothing is deleted",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example('nightshift datasets deprecate search_ranking 0a1b2c3d4e5f6071 --reason "wrong prices"'),
    )
    show.add_argument("--store", default=STORE.text(), metavar="URI", help="root of the store, for the columns; default: NIGHTSHIFT_STORE")
    for command in (show, mark):
        command.add_argument("pipeline", help="name of a pipeline")
        command.add_argument("version", help="16 hexadecimal digits, as `list` shows them, or the whole digest")
        command.add_argument("--json", action="store_true", help="as JSON")
    mark.add_argument("--reason", required=True, help="for those who read it a year later")
    mark.add_argument("--by", default=None, help="the user who orders it (default: the user of this process)")
    return found


def _list(engine: Engine, options: argparse.Namespace) -> int:
    found = datasets(engine, options.pipeline)
    if options.json:
        sys.stdout.write(_json([each.record() for each in found]))
        return 0
    if not found:
        sys.stdout.write(f"{none_words(options.pipeline)}\n")
    sys.stdout.write("".join(f"{dataset_line(each)}\n" for each in found))
    return 0


def _show(engine: Engine, options: argparse.Namespace) -> int:
    found = find_dataset(engine, options.pipeline, options.version)
    columns = columns_of(Store(options.store), found) if options.store else None
    sys.stdout.write(_json({**found.record(), "tables": columns}) if options.json else dataset_words(found, columns))
    return 0


def _deprecate(engine: Engine, options: argparse.Namespace) -> int:
    found = deprecate(engine, options.pipeline, options.version, by=options.by or _user(), reason=options.reason)
    sys.stdout.write(_json(found.record()) if options.json else dataset_words(found))
    return 0


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def _json(value: object) -> str:
    return json.dumps(value, default=lambda found: found.isoformat() if isinstance(found, datetime) else str(found), indent=1) + "\n"


_COMMANDS: Final[Mapping[str, Callable[[Engine, argparse.Namespace], int]]] = {"list": _list, "show": _show, "deprecate": _deprecate}


if __name__ == "__main__":
    sys.exit(main())
