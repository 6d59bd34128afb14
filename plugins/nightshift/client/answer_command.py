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
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from nightshift.client.client import POLL_SECONDS, Client
from nightshift.client.login import PASSWORD_KEYS, USERNAME, add_options, client_of
from nightshift.queries.questions import ASK
from nightshift.queries.records import ApprovalAnswer
from training.command_line import example, exit_code_of
from training.errors import DeniedError
from training.registry.decisions import VERSION_NAMES

ANSWERS: Final = ("approve", "decline")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(lambda: _answer(options))


def _answer(options: argparse.Namespace) -> int:
    with client_of(options.server, user=options.user) as client:
        answer = client.answer(options.model, options.version, options.answer, note=options.note)
        if options.wait:
            _wait(client, answer)
            # Once more, now that the request has ended: refused unless it ended by this answer, and not as expired or stale.
            answer = client.answer(options.model, options.version, options.answer, note=options.note)
    if options.json:
        sys.stdout.write(answer.model_dump_json(indent=1) + "\n")
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
    dag_id, _, run_id = run.partition(":")
    path = f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}/taskInstances/{ASK}/-1/hitlDetails"
    try:
        found = client.airflow("GET", path).json()
    except DeniedError:
        # Between two tries there is no question; without the right to read it, the time limit ends the request.
        return None
    return None if found["response_received"] else str(found["subject"])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    answers = found.add_subparsers(dest="answer", required=True, metavar="{approve,decline}")
    for answer in ANSWERS:
        command = answers.add_parser(
            answer,
            help=f"{answer} a candidate that waits for a person",
            formatter_class=argparse.RawTextHelpFormatter,
            epilog=example(f'nightshift {answer} search_ranking 1.3.0 --reason "seen with Eve"'),
        )
        command.add_argument("model", help="name of a model")
        command.add_argument("version", help=f"of the candidate: {VERSION_NAMES}")
        command.add_argument(
            "--reason", "--note", dest="note", default="", metavar="TEXT", help="for those who read the ledger a year later"
        )
        command.add_argument("--wait", action="store_true", help="return when the request has ended; exit code 77 if not by this answer")
        command.add_argument("--user", choices=PASSWORD_KEYS, default=USERNAME, help=f"of the laptop installation; default {USERNAME}")
        add_options(command)
    return found


if __name__ == "__main__":
    sys.exit(main())
