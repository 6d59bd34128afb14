"""Open the page of a run, a pipeline or a model.

    nightshift open PIPELINE:RUN_ID [--print]
    nightshift open NAME [--pipeline] [--print]

NAME is a model, whose page is MLflow's where MLFLOW_TRACKING_URI names it, or a pipeline, whose page is Airflow's. With --pipeline it is
a pipeline: most models have the name of theirs.
Where there is no browser, the address is printed.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from urllib.parse import quote

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command, print_json
from nightshift.settings import Settings
from training.installation import TRACKING


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _open, "nightshift open search_ranking:night-2026-02-01", __doc__)
    parser.add_argument("name", metavar="NAME", help="PIPELINE:RUN_ID, a model or a pipeline")
    parser.add_argument("--pipeline", action="store_true", help="NAME is a pipeline, also where a model has that name")
    parser.add_argument("--print", action="store_true", help="print the address, and open nothing")


def _open(client: Client, options: argparse.Namespace) -> int:
    name = options.name
    address = _run_page(client, name) if ":" in name else _page(client, name, is_pipeline=options.pipeline)
    if options.json:
        print_json({"url": address})
    elif options.print or not _has_opened(address):
        sys.stdout.write(f"{address}\n")
    return 0


def _run_page(client: Client, id: str) -> str:
    run = client.run(id)
    return f"{client.server}/dags/{quote(run.pipeline, safe='')}/runs/{quote(run.run_id, safe='')}"


def _page(client: Client, name: str, *, is_pipeline: bool) -> str:
    """Return MLflow's page of a model, or Airflow's of a pipeline.

    Raises:
        DeniedError: `pipeline.unknown`, it is neither.
    """
    names = {} if is_pipeline else {model.name: model.pipelines for model in client.models()}
    if name not in names:
        return f"{client.server}/dags/{quote(client.pipeline(name).name, safe='')}"
    tracking = TRACKING.text()
    if not tracking and not client.is_local:
        # The MLflow of another machine has an address that only a variable can tell.
        return f"{client.server}/dags/{quote(names[name][0], safe='')}"
    return f"{(tracking or Settings.from_environment().mlflow_uri).rstrip('/')}/#/models/{quote(name, safe='')}"


def _has_opened(address: str) -> bool:
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
