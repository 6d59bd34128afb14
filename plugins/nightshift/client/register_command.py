"""Have a pipeline judge a model that was trained elsewhere: a run imports it, measures it, and its gates decide about it.

    nightshift register PIPELINE ARTIFACT --format xgboost_json [--transforms URI] [--version 17] [--metric auc=0.81] [--wait] [--json]

ARTIFACT is a URI that the server can read: '${FLIGHTS_URI}/models/17/model.ubj', below a variable that the pipeline's YAML names for its
data (in single quotes: the shell must not fill it in), or s3://…, gs://… or az://…. Never a pickle.
Metrics that are given are recorded as claims, and not judged.

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 1 the run that `--wait` waited for failed; 2 the command line is wrong; 64 the request is wrong; 74 the server does
not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Final, get_args

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command
from nightshift.client.runs_command import add_data_options, add_start_options, require_start, started
from training.contracts import JsonValue
from training.errors import shown, spec_error
from training.spec.registration import Format

OF_THE_BODY: Final = {
    **{"transforms": "transforms_uri", "sha256": "sha256", "version": "version", "notes": "notes"},
    **{"as_of": "as_of", "snapshot": "snapshot", "trained_until": "trained_until"},
}
"""Option to the key of the request."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    example = "nightshift register search_ranking s3://models/ranker/17/model.ubj --format xgboost_json --version 17"
    describe_server_command(parser, _register, example, __doc__)
    parser.add_argument("pipeline", help="name of the pipeline whose data, evaluation and gates judge the model")
    parser.add_argument("artifact", metavar="ARTIFACT", help="URI of the file")
    parser.add_argument("--format", required=True, choices=get_args(Format), help="xgboost_json is XGBoost's own JSON or UBJ")
    parser.add_argument("--transforms", metavar="URI", help="transforms.json of the model; default: that of the run's own prepare")
    parser.add_argument("--sha256", metavar="DIGEST", help="of the file; another file is refused")
    parser.add_argument("--version", metavar="NAME", help="its version outside; recorded")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME=VALUE", help="a claim about it; recorded, and not judged")
    parser.add_argument(
        "--trained-until", metavar="TIME", help="newest event time of its training rows; refused if test rows are before it"
    )
    parser.add_argument("--notes", metavar="TEXT", help="stored in the ledger")
    add_data_options(parser)
    add_start_options(parser)


def _register(client: Client, options: argparse.Namespace) -> int:
    require_start(client, options, options.pipeline)
    given = {name: getattr(options, option) for option, name in OF_THE_BODY.items()}
    body: dict[str, JsonValue] = {name: value for name, value in given.items() if value is not None}
    if options.metric:
        body["metrics"] = claims_of(options.metric)
    run = client.register(options.pipeline, options.artifact, options.format, key=options.key, **body)
    return started(client, options, run)


def claims_of(texts: Sequence[str]) -> dict[str, float]:
    """Return the claims `auc=0.81` by name.

    Raises:
        SpecError: `command.metric`.
    """
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value):
            message = f"{shown(text)} is not a name with a finite number"
            raise spec_error("--metric", "command.metric", message, hint="write --metric auc=0.81")
        found[name] = value
    return found
