"""Make an earlier champion champion again.

    nightshift rollback MODEL [--to VERSION] --reason "..." [--yes] [--wait] [--json]

Without a server it writes the ledger itself, so it also works while Airflow is stopped. On a server, which --server or NIGHTSHIFT_SERVER
names, it is a run of the DAG `rollback`, with the rights of the user of the token in NIGHTSHIFT_TOKEN.

Exit codes: 0 done, or no was answered; 2 the command line is wrong; 64 the request is wrong; 74 database, server or MLflow do not answer;
77 refused (unknown version, nothing to go back to, another decision was faster).
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from nightshift.client.client import ENDED, POLL_SECONDS, Client, airflow_path
from nightshift.client.query_command import describe_query_command, print_json
from nightshift.client.show_command import holder_words, version_words
from nightshift.queries.schemas import ModelDetails, ModelVersion, StageOrder
from training.errors import DeniedError
from training.registry.ledger.decisions import VERSION_NAMES, champions
from training.spec.scalar_types import free_text_fault

if TYPE_CHECKING:
    from nightshift.client.query_command import Reader


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    example = 'nightshift rollback search_ranking --reason "complaints since Monday"'
    describe_query_command(parser, _rollback, example, __doc__, local_options=["by"])
    parser.add_argument("model", help="name of a model")
    parser.add_argument("--to", metavar="VERSION", help=f"{VERSION_NAMES}; absent: the champion before this one")
    parser.add_argument("--reason", required=True, help="stored in the ledger")
    parser.add_argument("--by", help="without a server: the user who orders it (default: the user of this process)")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; required where standard input is not a terminal")
    wait = "with a server: return when the run has ended; exit code 77 if it failed. Without a server it always is done"
    parser.add_argument("--wait", action="store_true", help=wait)


def _rollback(reader: Reader, options: argparse.Namespace) -> int:
    if fault := "is empty" if not options.reason.strip() else free_text_fault(options.reason):
        raise DeniedError("rollback.reason", f"--reason {fault}", hint="say why in words: the ledger keeps them")
    model = reader.model(options.model)
    version = reader.version(model.name, options.to or _one_before(reader, model))
    # Without a server, what is champion already is refused below.
    is_refused = version.alias == "champion" and not isinstance(reader, Client)
    if not (options.yes or is_refused or _is_agreed(model, version)):
        sys.stdout.write("nothing was changed\n")
        return 0
    if isinstance(reader, Client):
        order = _ordered(reader, version, options)
    else:
        order = reader.roll_back(model, version, reason=options.reason, by=options.by)
    if options.json:
        print_json(order)
    elif order.is_done:
        sys.stdout.write(f"{order.model}: champion is version {order.version}\n")
    else:
        sys.stdout.write(f"{order.model}: {order.run} ({order.run_state}) makes version {order.version} champion\n")
    return 0


def _one_before(reader: Reader, model: ModelDetails) -> str:
    """Return the weights' digest of the champion before this one."""
    line = champions(list(reader.decisions(model.name))[::-1])
    if len(line) < 2:
        message = f"{model.name} had no champion before this one" if line else f"{model.name} has no champion"
        raise DeniedError("rollback.nothing", message, hint="name the version to go to with --to")
    return line[-2].weights_digest


def _is_agreed(model: ModelDetails, version: ModelVersion) -> bool:
    if not sys.stdin.isatty():
        raise DeniedError("rollback.unconfirmed", "confirmation is impossible: standard input is not a terminal", hint="add --yes")
    sys.stdout.write(f"{model.name}: champion {holder_words(model.champion)}\n  -> {version_words(version)}\nGo on? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _ordered(client: Client, version: ModelVersion, options: argparse.Namespace) -> StageOrder:
    """Order the rollback; return what came of it: with --wait, once its run has succeeded.

    Raises:
        DeniedError: `rollback.failed`.
    """
    order = client.change_stage(version.model, version.weights_digest, "champion", reason=options.reason)
    if not options.wait or order.run is None:
        return order
    while (state := client.airflow("GET", airflow_path(order.run)).json()["state"]) not in ENDED:
        time.sleep(POLL_SECONDS)
    if state != "success":
        hint = "its task's log has the reason; the same command repeats it"
        raise DeniedError("rollback.failed", f"the run {order.run} failed", hint=hint)
    # Its number of now: one that MLflow had lost is registered again under another.
    number = client.version(version.model, version.weights_digest).version
    # Not by another order: what has moved the model since then must stay.
    return order.model_copy(update={"is_done": True, "run_state": "success", "version": number})
