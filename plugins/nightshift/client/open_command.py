"""Open the page of a run, a pipeline or a model.

    nightshift open PIPELINE:RUN_ID [--print]
    nightshift open NAME [--print]

NAME is a model, whose page is MLflow's where MLFLOW_TRACKING_URI names it, or a pipeline, whose page is Airflow's.
Where there is no browser, the address is printed.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from urllib.parse import quote

from nightshift.client.client import Client
from nightshift.client.login import add_options, client_of
from nightshift.server_variables import names_server
from nightshift.settings import Settings
from training.command_line import example, exit_code_of
from training.installation import TRACKING


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    options = parser().parse_args(arguments)

    def asked() -> int:
        with client_of(options.server) as client:
            address = _run_page(client, options.name) if ":" in options.name else _page(client, options)
        if options.json:
            sys.stdout.write(json.dumps({"url": address}) + "\n")
        elif options.print or not _has_opened(address):
            sys.stdout.write(f"{address}\n")
        return 0

    return exit_code_of(asked)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="nightshift open",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift open search_ranking:night-2026-02-01"),
    )
    found.add_argument("name", metavar="NAME", help="PIPELINE:RUN_ID, a model or a pipeline")
    found.add_argument("--print", action="store_true", help="print the address, and open nothing")
    add_options(found)
    return found


def _run_page(client: Client, id: str) -> str:
    run = client.run(id)
    return f"{client.server}/dags/{quote(run.pipeline, safe='')}/runs/{quote(run.run_id, safe='')}"


def _page(client: Client, options: argparse.Namespace) -> str:
    """Return MLflow's page of a model, or Airflow's of a pipeline.

    Raises:
        DeniedError: `pipeline.unknown`, it is neither.
    """
    names = {model.name: model.pipelines for model in client.models()}
    if options.name not in names:
        return f"{client.server}/dags/{quote(client.pipeline(options.name).name, safe='')}"
    tracking = TRACKING.text()
    if not tracking and names_server([] if options.server is None else ["--server"]):
        # The MLflow of another machine has an address that only a variable can tell.
        return f"{client.server}/dags/{quote(names[options.name][0], safe='')}"
    return f"{(tracking or Settings.from_environment().mlflow_uri).rstrip('/')}/#/models/{quote(options.name, safe='')}"


def _has_opened(address: str) -> bool:
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


if __name__ == "__main__":
    sys.exit(main())
