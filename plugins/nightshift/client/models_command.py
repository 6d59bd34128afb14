"""Decisions about models, and the way back, on a server.

    nightshift show [MODEL] --server URL [--json]
    nightshift rollback MODEL [--to VERSION] --reason "..." [--yes] [--wait] --server URL

Without a server, `nightshift show` and `nightshift rollback` read and write the ledger itself (`python -m training.registry`).
A rollback is a run of the DAG `rollback`, with the rights of the token's user.

Exit codes: 0 done, or no was answered; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from nightshift.client.client import ENDED, POLL_SECONDS, Client
from nightshift.client.login import add_options, client_of
from nightshift.queries.records import DecisionSummary, Holder, Model, ModelDetails, StageOrder
from training.command_line import example, exit_code_of
from training.errors import DeniedError
from training.registry.decisions import VERSION_NAMES, champions
from training.registry.history_table import history_lines
from training.registry.ledger import Entry, name_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args(arguments)

    def asked() -> int:
        with client_of(options.server) as client:
            return _COMMANDS[options.command](client, options)

    return exit_code_of(asked)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True, metavar="{show,rollback}")
    show = commands.add_parser(
        "show",
        help="decisions, champion and canary",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift show search_ranking"),
    )
    show.add_argument("model", nargs="?", help="name of a model; absent: the standing of each")
    back = commands.add_parser(
        "rollback",
        help="make an earlier version champion again",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example('nightshift rollback search_ranking --reason "complaints since Monday"'),
    )
    back.add_argument("model", help="name of a model")
    back.add_argument("--to", metavar="VERSION", help=f"{VERSION_NAMES}; absent: the champion before this one")
    back.add_argument("--reason", required=True, help="for those who read the ledger a year later")
    back.add_argument("--yes", action="store_true", help="do not ask for confirmation; required where standard input is not a terminal")
    back.add_argument("--wait", action="store_true", help="return when the run has ended; exit code 77 if it failed")
    for command in (show, back):
        add_options(command)
    return found


def _show(client: Client, options: argparse.Namespace) -> int:
    found: list[ModelDetails] | list[Model] = [client.model(options.model)] if options.model else list(client.models())
    if options.json:
        sys.stdout.write(json.dumps({model.name: _whole(client, model) for model in found}, indent=1, ensure_ascii=False) + "\n")
        return 0
    if not found:
        sys.stdout.write("nothing was decided yet\n")
    for model in found:
        sys.stdout.write("".join(f"{line}\n" for line in standing_lines(model)))
        if isinstance(model, ModelDetails):
            lines = history_lines(_history(client, model.name), retraining=model.retraining)
            sys.stdout.write("".join(f"{line}\n" for line in ["", *lines]))
    return 0


def _whole(client: Client, model: Model) -> dict[str, Any]:
    decisions = [client.decision(model.name, each.key).model_dump(mode="json") for each in client.decisions(model.name)]
    return {"standing": model.model_dump(mode="json"), "decisions": decisions[::-1]}


def standing_lines(model: Model) -> list[str]:
    """Return who is champion and canary, and what waits, in words."""
    lines = [model.name, f"  champion: {_words(model.champion)}", f"  canary:   {_words(model.canary)}"]
    if model.awaiting_approval:
        lines.append(f"  waits for an approval: version {', '.join(model.awaiting_approval)}")
    return lines


def _rollback(client: Client, options: argparse.Namespace) -> int:
    if not options.reason.strip():
        raise DeniedError("rollback.reason", "--reason is empty", hint="say why, for those who read the ledger a year later")
    model = client.model(options.model)
    target = options.to or _one_before(client, model)
    if not options.yes:
        if not sys.stdin.isatty():
            raise DeniedError("rollback.unconfirmed", "confirmation is impossible: standard input is not a terminal", hint="add --yes")
        sys.stdout.write(f"{model.name}: champion {_words(model.champion)}\n  -> version {target}\nGo on? [y/N] ")
        sys.stdout.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            sys.stdout.write("nothing was changed\n")
            return 0
    weights = client.version(model.name, target).weights_digest
    order = client.change_stage(model.name, weights, "champion", reason=options.reason)
    if options.wait and order.run is not None:
        _wait(client, order.run)
        # Its number of now: one that MLflow had lost is registered again under another.
        number = client.version(model.name, weights).version
        # Not by another order: what has moved the model since then must stay.
        order = order.model_copy(update={"is_done": True, "run_state": "success", "version": number})
    if options.json:
        sys.stdout.write(order.model_dump_json(indent=1) + "\n")
    else:
        sys.stdout.write(_outcome(order))
    return 0


def _one_before(client: Client, model: Model) -> str:
    """Return the version of the champion before this one."""
    line = champions(_history(client, model.name))
    if len(line) < 2:
        message = f"{model.name} had no champion before version {name_of(line[-1])}" if line else f"{model.name} has no champion"
        raise DeniedError("rollback.nothing", message, hint="name the version to go to with --to")
    return name_of(line[-2])


def _wait(client: Client, run: str) -> None:
    """Return once the run of the DAG `rollback` has succeeded.

    Raises:
        DeniedError: `rollback.failed`.
    """
    dag_id, _, run_id = run.partition(":")
    while True:
        state = client.airflow("GET", f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}").json()["state"]
        if state == "success":
            return
        if state in ENDED:
            raise _failed(run)
        time.sleep(POLL_SECONDS)


def _failed(run: str) -> DeniedError:
    return DeniedError("rollback.failed", f"the run {run} failed", hint="its task's log has the reason; the same command repeats it")


def _outcome(order: StageOrder) -> str:
    if order.is_done:
        return f"{order.model}: champion is version {order.version}\n"
    return f"{order.model}: {order.run} ({order.run_state}) makes version {order.version} champion\n"


def _history(client: Client, model: str) -> list[Entry]:
    return [_entry(each) for each in client.decisions(model)][::-1]


def _entry(found: DecisionSummary) -> Entry:
    """Return a decision as the ledger has it, without its evidence."""
    return Entry(
        model=found.model,
        key=found.key,
        weights_digest=found.weights_digest,
        version=found.version,
        action=found.action,
        outcome=found.outcome,
        reasons=[reason.model_dump() for reason in found.reasons],  # type: ignore[misc]
        evidence={},
        decided_by=found.decided_by,
        decided_at=found.decided_at,
        semantic_version=found.semantic_version,
        deleted_at=found.weights_deleted_at,
    )


def _words(holder: Holder | None) -> str:
    if holder is None:
        return "none"
    named = f"{holder.version} ({holder.semantic_version})" if holder.semantic_version else holder.version
    since = f", since {holder.since}" if holder.since else ""
    return f"version {named}, as of {holder.as_of}, weights {holder.weights_digest[:12]}{since}"


_COMMANDS: Final[Mapping[str, Callable[[Client, argparse.Namespace], int]]] = {"show": _show, "rollback": _rollback}


if __name__ == "__main__":
    sys.exit(main())
