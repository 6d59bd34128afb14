"""The versions of data sets (snapshots) that runs made, and their deprecation.

    nightshift datasets list [PIPELINE] [--json]
    nightshift datasets show PIPELINE VERSION [--store URI] [--json]
    nightshift datasets deprecate PIPELINE VERSION --reason "..." [--by USER] [--json]

New runs refuse a deprecated version. Nothing is deleted: models made of it stay, and so do its files, until retention deletes them.
It asks a server where --server or NIGHTSHIFT_SERVER names one, with the token in NIGHTSHIFT_TOKEN: a deprecation is then by the token's
user. Without a server it reads and writes the ledger's database itself.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the database or the server does not answer;
77 refused (unknown version, deprecated already).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nightshift.client.client import Client
from nightshift.client.query_command import describe_query_command, print_json, print_lines
from nightshift.queries.schemas import DatasetDetails, DatasetVersion

if TYPE_CHECKING:
    from nightshift.client.query_command import Reader


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.description = __doc__
    add = parser.add_subparsers(required=True, metavar="{list,show,deprecate}").add_parser
    listing = add("list", help="the versions of a pipeline's data, the newest first")
    describe_query_command(listing, _list, "nightshift datasets list search_ranking")
    listing.add_argument("pipeline", nargs="?", help="name of a pipeline; absent: all")
    show = add("show", help="one version")
    describe_query_command(show, _show, "nightshift datasets show search_ranking 0a1b2c3d4e5f6071", local_options=["store"])
    mark = add("deprecate", help="mark a version, so that new runs refuse it; nothing is deleted")
    example = 'nightshift datasets deprecate search_ranking 0a1b2c3d4e5f6071 --reason "wrong prices"'
    describe_query_command(mark, _deprecate, example, local_options=["by"])
    for command in (show, mark):
        command.add_argument("pipeline", help="name of a pipeline")
        command.add_argument("version", help="16 hexadecimal digits, as `list` shows them, or the whole digest")
    show.add_argument("--store", metavar="URI", help="without a server: root of the store, for the columns; default: NIGHTSHIFT_STORE")
    mark.add_argument("--reason", required=True, help="stored with the version")
    mark.add_argument("--by", help="without a server: the user who orders it (default: the user of this process)")


def _list(reader: Reader, options: argparse.Namespace) -> int:
    if isinstance(reader, Client) and not options.pipeline:
        found = [version for newest in reader.datasets() for version in reader.datasets(newest.pipeline)]
    else:
        found = list(reader.datasets(options.pipeline))
    if options.json:
        print_json(found)
    else:
        print_lines(map(_line, found))
        if not found:
            sys.stdout.write(f"pipeline {options.pipeline} has no snapshot\n" if options.pipeline else "there is no snapshot yet\n")
    return 0


def _show(reader: Reader, options: argparse.Namespace) -> int:
    if isinstance(reader, Client):
        found = reader.dataset(options.pipeline, options.version)
    else:
        found = reader.dataset(options.pipeline, options.version, store=options.store)
    return _print(found, options)


def _deprecate(reader: Reader, options: argparse.Namespace) -> int:
    if isinstance(reader, Client):
        found = reader.deprecate(options.pipeline, options.version, reason=options.reason)
    else:
        found = reader.deprecate(options.pipeline, options.version, reason=options.reason, by=options.by)
    return _print(found, options)


def _print(found: DatasetVersion, options: argparse.Namespace) -> int:
    if options.json:
        print_json(found)
    else:
        print_lines(f"{name + ':':<12} {value}" for name, value in _facts(found))
    return 0


def _line(found: DatasetVersion) -> str:
    state = {"deprecated": "  deprecated", "deleted": "  deleted by retention"}.get(found.health, "")
    created = found.created_at.isoformat(timespec="seconds")
    return f"{found.pipeline}  {found.version}  {created}  {found.rows:,} rows  {found.size_bytes / 2**20:,.1f} MiB{state}"


def _facts(found: DatasetVersion) -> Iterator[tuple[str, str]]:
    """Yield all about a version, and the columns of each table where they are known."""
    yield "snapshot", f"{found.version} of {found.pipeline}"
    yield "manifest", found.uri
    yield "rows", f"{found.rows:,}"
    yield "size", f"{found.size_bytes:,} bytes"
    yield "schema", found.schema_hash
    yield "split", ", ".join(f"{name} {value}" for name, value in found.split.items()) or "as by default"
    yield "created", f"{found.created_at.isoformat(timespec='seconds')} by {found.created_by}"
    if found.changed_at is not None:
        who = f"by {found.deprecated_by}: {found.reason}" if found.health == "deprecated" else "(its files were deleted by retention)"
        yield found.health, f"{found.changed_at.isoformat(timespec='seconds')} {who}"
    for name, types in (found.tables or {}).items() if isinstance(found, DatasetDetails) else ():
        yield f"table {name}", ", ".join(f"{column} {kind}" for column, kind in types.items())
