"""Let a pipeline's schedule start its runs, or not.

    nightshift schedule on PIPELINE [--json]
    nightshift schedule off PIPELINE [--json]

A new pipeline is off: it is paused in Airflow. `off` also holds the tasks of a run under way, until `on`.

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 2 the command line is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import sys

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command, print_json
from nightshift.client.runs_command import time_words
from nightshift.queries.schemas import Pipeline


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _switch, "nightshift schedule off search_ranking", __doc__)
    parser.add_argument("state", choices=("on", "off"), help="whether the schedule starts runs")
    parser.add_argument("pipeline", help="name of a pipeline")


def _switch(client: Client, options: argparse.Namespace) -> int:
    found = client.switch(options.pipeline, on=options.state == "on")
    if options.json:
        print_json(found)
    else:
        sys.stdout.write(f"{found.name} is {options.state}: {_meaning(found)}\n")
    return 0


def _meaning(found: Pipeline) -> str:
    if found.is_paused:
        return f"its runs wait until `nightshift schedule on {found.name}`"
    if found.schedule is None:
        return f"it has no schedule; `nightshift runs start {found.name}` starts a run"
    return f"schedule {found.schedule}, next run {time_words(found.next_run_after)}"
