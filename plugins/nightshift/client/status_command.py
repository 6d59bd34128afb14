"""The state of all pipelines and of the helper DAGs whose last run failed, or of one run.

    nightshift status [--json]
    nightshift status PIPELINE:RUN_ID [--json]

"shows gains above" is of the gates' newest decision, in units of the primary metric: on this test split a smaller gain over the champion
looks like chance. What helps is a longer data.split.test, or a person who decides (evaluate.severity: {significance: approve}).

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 1 the run has failed, or the last run of a pipeline or of a helper DAG; 2 the command line is wrong;
64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import datetime

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command, print_json, print_table
from nightshift.client.runs_command import print_run, time_words, waiting_words
from nightshift.queries.schemas import Model, Pipeline, RunSummary
from training.format import NOTHING, brief


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A pipeline, its newest run, and its models; or a helper DAG whose last run failed."""

    pipeline: Pipeline
    last_run: RunSummary | None
    models: tuple[Model, ...] = ()
    failed_since: datetime | None = None
    """Of a helper DAG: when the first run failed after the last that succeeded."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _status, "nightshift status", __doc__)
    parser.add_argument("id", nargs="?", metavar="PIPELINE:RUN_ID", help="a run; absent: a line for each pipeline")


def _status(client: Client, options: argparse.Namespace) -> int:
    if options.id is None:
        return _all(client, options)
    run = client.run(options.id)
    print_run(run, options)
    return 1 if run.state == "failed" else 0


def _all(client: Client, options: argparse.Namespace) -> int:
    models = list(client.models())
    found = [
        Standing(
            pipeline=Pipeline(**found.model_dump(exclude={"last_run"})),
            last_run=found.last_run,
            models=tuple(model for model in models if found.name in model.pipelines),
        )
        for found in client.pipelines_with_runs()
    ]
    found += [
        Standing(
            pipeline=Pipeline(**helper.model_dump(exclude={"last_run", "failed_since"})),
            last_run=helper.last_run,
            failed_since=helper.failed_since,
        )
        for helper in client.failed_helpers()
    ]
    if options.json:
        print_json(found)
    elif not found:
        sys.stdout.write("there is no pipeline\n")
    else:
        print_table([("pipeline", "next run", "champion", "shows gains above", "waits", "last run", "state", "note"), *map(_row, found)])
    return 1 if any(each.last_run is not None and each.last_run.state == "failed" for each in found) else 0


def _row(found: Standing) -> tuple[str, ...]:
    # Of a pipeline that has decided about one model, as nearly all have, the name says nothing.
    named = [(f"{model.name} " if len(found.models) > 1 else "", model) for model in found.models]
    champions = [
        f"{name}{model.champion.semantic_version or model.champion.version}" for name, model in named if model.champion is not None
    ]
    waiting = [f"{name}{version}" for name, model in named for version in model.awaiting_approval]
    gains = [f"{name}{brief(model.shows_gains_above)}" for name, model in named if model.shows_gains_above is not None]
    run = found.last_run
    behind = [
        f"decisions about {model.name} that MLflow does not show: {model.not_in_mlflow}" for model in found.models if model.not_in_mlflow
    ]
    since = [] if found.failed_since is None else [f"since {time_words(found.failed_since)}"]
    return (
        found.pipeline.name,
        "paused" if found.pipeline.is_paused else time_words(found.pipeline.next_run_after),
        ", ".join(champions) or NOTHING,
        ", ".join(gains) or NOTHING,
        ", ".join(waiting) or NOTHING,
        NOTHING if run is None else time_words(run.started_at),
        NOTHING if run is None else run.state,
        "; ".join(filter(None, [*since, *([] if run is None else [waiting_words(run), run.note]), *behind])),
    )
