"""Answer the request for approval of a candidate.

    nightshift approve MODEL VERSION [--reason TEXT] [--wait] [--user NAME] [--json]
    nightshift decline MODEL VERSION [--reason TEXT] [--wait] [--user NAME] [--json]

The DAG PIPELINE.approval judges who may answer, and records the answer; `nightshift show MODEL` lists what waits for one. The server is
that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer, or has not asked yet; 77 refused.
"""

from __future__ import annotations

import argparse
import sys
import time

from nightshift.client.client import POLL_SECONDS, Client, airflow_path
from nightshift.client.login import PASSWORD_KEYS, USERNAME
from nightshift.client.query_command import describe_server_command, print_json
from nightshift.queries.approval_question import ASK
from nightshift.queries.schemas import ApprovalAnswer
from training.errors import DeniedError
from training.registry.ledger.decisions import VERSION_NAMES


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _answer, f'{parser.prog} search_ranking 1.3.0 --reason "seen with Eve"', __doc__)
    parser.add_argument("model", help="name of a model")
    parser.add_argument("version", help=f"of the candidate: {VERSION_NAMES}")
    parser.add_argument("--reason", "--note", dest="note", default="", metavar="TEXT", help="stored in the ledger")
    parser.add_argument("--wait", action="store_true", help="return when the request has ended; exit code 77 if not by this answer")
    parser.add_argument("--user", choices=PASSWORD_KEYS, default=USERNAME, help=f"of the laptop installation; default {USERNAME}")


def _answer(client: Client, options: argparse.Namespace) -> int:
    answer = client.answer(options.model, options.version, options.command, note=options.note)
    if options.wait:
        _wait(client, answer)
        # Once more, now that the request has ended: refused unless it ended by this answer, and not as expired or stale.
        answer = client.answer(options.model, options.version, options.command, note=options.note)
    if options.json:
        print_json(answer)
    else:
        where = "" if answer.run is None or options.wait else f"; {answer.run} records it"
        sys.stdout.write(f"{answer.model} {answer.version}: {answer.answer} by {answer.answered_by}{where}\n")
    return 0


def _wait(client: Client, answer: ApprovalAnswer) -> None:
    """Return once the request is no longer open: by this answer, another one, or its time limit.

    Raises:
        DeniedError: `approval.refused`, the DAG did not accept the answer and asks again.
    """
    while answer.version in client.model(answer.model).awaiting_approval:
        if answer.run is not None and (question := _open_question(client, answer.run)) is not None:
            message = f"the answer of {answer.answered_by} about version {answer.version} of {answer.model} was refused"
            raise DeniedError("approval.refused", message, hint=f"{question}; the task's log has the reason")
        time.sleep(POLL_SECONDS)


def _open_question(client: Client, run: str) -> str | None:
    """Return the headline of the question of a run of the DAG that asks, where it is asked and has no answer: it has refused one."""
    try:
        found = client.airflow("GET", f"{airflow_path(run)}/taskInstances/{ASK}/-1/hitlDetails").json()
    except DeniedError:
        # Between two tries there is no question; without the right to read it, the time limit ends the request.
        return None
    return None if found["response_received"] else str(found["subject"])
