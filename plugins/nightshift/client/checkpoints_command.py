"""Checkpoints of a pipeline's trainings, on a server.

    nightshift checkpoints list PIPELINE [RUN] --server URL [--json]

Without a server, `nightshift checkpoints` reads the store itself, and also exports and imports (`python -m training.engine.checkpoint`).
`nightshift restore` starts a run at a checkpoint.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nightshift.client.client import Client
from nightshift.client.login import add_options, client_of
from nightshift.client.runs_command import print_json
from nightshift.queries.records import Checkpoint
from training.command_line import example, exit_code_of
from training.engine.checkpoint.summary import CheckpointSummary, table_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args(arguments)

    def asked() -> int:
        with client_of(options.server) as client:
            return _list(client, options)

    return exit_code_of(asked)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift checkpoints", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True, metavar="{list}")
    listed = commands.add_parser(
        "list",
        help="checkpoints of a pipeline's trainings",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift checkpoints list search_ranking night-2026-02-01 --server https://airflow.example.com"),
    )
    listed.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
    listed.add_argument("run", nargs="?", metavar="RUN", help="id of a run; absent: all runs that Airflow has, a request for each")
    add_options(listed)
    return found


def _list(client: Client, options: argparse.Namespace) -> int:
    if options.run is not None:
        found = list(client.checkpoints(f"{options.pipeline}:{options.run}"))
    else:
        found = _of_all(client, options.pipeline)
    if options.json:
        print_json(found)
    else:
        lines = table_lines([CheckpointSummary(**{**dict(each), "created_at": each.created_at.isoformat()}) for each in found])
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _of_all(client: Client, pipeline: str) -> list[Checkpoint]:
    client.pipeline(pipeline)
    by_run: dict[str, dict[str, Checkpoint]] = {}
    for run in client.runs(pipeline):
        for each in client.checkpoints(run.id):
            # A run that reused a training has those of the run that trained.
            by_run.setdefault(each.run, {}).setdefault(f"{each.uri}:{each.step}", each)
    return [each for _run, found in sorted(by_run.items()) for each in found.values()]


if __name__ == "__main__":
    sys.exit(main())
