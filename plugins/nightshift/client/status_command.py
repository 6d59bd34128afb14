"""The state of all pipelines, or of one run.

    nightshift status [--json]
    nightshift status PIPELINE:RUN_ID [--json]

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 1 the run has failed, or the last run of a pipeline; 2 the command line is wrong; 64 the request is wrong;
74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.client.client import Client
from nightshift.client.login import add_options, client_of
from nightshift.client.runs_command import print_json, run_lines, time_words
from nightshift.client.tables import print_table
from nightshift.queries.records import Model, Pipeline, RunSummary
from training.command_line import example, exit_code_of
from training.format import NOTHING


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A pipeline, its newest run, and its models."""

    pipeline: Pipeline
    last_run: RunSummary | None
    models: tuple[Model, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline.model_dump(mode="json"),
            "last_run": None if self.last_run is None else self.last_run.model_dump(mode="json"),
            "models": [model.model_dump(mode="json") for model in self.models],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    options = parser().parse_args(arguments)

    def asked() -> int:
        with client_of(options.server) as client:
            return _all(client, options) if options.id is None else _one(client, options)

    return exit_code_of(asked)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="nightshift status", description=__doc__, formatter_class=argparse.RawTextHelpFormatter, epilog=example("nightshift status")
    )
    found.add_argument("id", nargs="?", metavar="PIPELINE:RUN_ID", help="a run; absent: a line for each pipeline")
    add_options(found)
    return found


def _one(client: Client, options: argparse.Namespace) -> int:
    run = client.run(options.id)
    if options.json:
        print_json(run)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in run_lines(run)))
    return 1 if run.state == "failed" else 0


def _all(client: Client, options: argparse.Namespace) -> int:
    models = list(client.models())
    found = [
        Standing(
            pipeline=pipeline,
            last_run=next(client.runs(pipeline.name), None),
            models=tuple(model for model in models if pipeline.name in model.pipelines),
        )
        for pipeline in client.pipelines()
    ]
    if options.json:
        sys.stdout.write(json.dumps([each.as_json() for each in found], indent=1, ensure_ascii=False) + "\n")
    elif not found:
        sys.stdout.write("there is no pipeline\n")
    else:
        print_table([("pipeline", "next run", "champion", "waits", "last run", "state", "note"), *map(_row, found)])
    return 1 if any(each.last_run is not None and each.last_run.state == "failed" for each in found) else 0


def _row(found: Standing) -> tuple[str, ...]:
    champions = [model.champion.semantic_version or model.champion.version for model in found.models if model.champion is not None]
    waiting = [version for model in found.models for version in model.awaiting_approval]
    run = found.last_run
    behind = [
        f"decisions about {model.name} that MLflow does not show: {model.not_in_mlflow}" for model in found.models if model.not_in_mlflow
    ]
    return (
        found.pipeline.name,
        "paused" if found.pipeline.is_paused else time_words(found.pipeline.next_run_after),
        ", ".join(champions) or NOTHING,
        ", ".join(waiting) or NOTHING,
        NOTHING if run is None else time_words(run.started_at),
        NOTHING if run is None else run.state,
        "; ".join([*([run.note] if run is not None and run.note else []), *behind]),
    )


if __name__ == "__main__":
    sys.exit(main())
