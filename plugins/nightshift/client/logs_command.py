"""The log of a run's stages, as Airflow keeps it.

    nightshift logs PIPELINE[:RUN_ID] [STAGE] [--try NUMBER] [--follow] [--json]

PIPELINE may be a helper DAG: housekeeping, NAME.canary. Without RUN_ID: the newest run that has started. Without STAGE: that of the stage
that failed, else of the last one that has started. `--follow` prints new lines until the stage, or without STAGE the run, has ended.
`--json` prints one record a line.

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 1 `--follow` saw the stage or the run fail; 2 the command line is wrong; 64 the request is wrong;
74 the server does not answer; 77 refused, or there is no such stage or try.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Final, TypedDict
from urllib.parse import quote

from nightshift.client.client import ENDED, POLL_SECONDS, Client, airflow_path
from nightshift.client.query_command import describe_server_command
from nightshift.queries.schemas import Run, StageRun
from training.command_line import number_from
from training.contracts import JsonObject
from training.errors import DeniedError, shown
from training.sanitizing import for_terminal

FAILED: Final = "failed"
STAGE_ENDED: Final = frozenset({"success", FAILED, "upstream_failed", "skipped", "removed"})
HIDDEN: Final = ("::group::", "::endgroup::", "Could not read served logs")
"""Beginnings of lines that only Airflow's page needs: folds, and a warning that it adds to the log of every running task."""


OF_A_STAGE: Final = re.compile(r"\d\d:\d\d:\d\d ([A-Z]+) ")
"""Time and level that a stage's process writes before a line: Airflow's record has the time, too, and `info` for each."""


class LogRecord(TypedDict, total=False):
    """A line of a task's log, as Airflow has it; of a log that it cannot parse, a line of text is the event."""

    timestamp: str
    level: str
    event: str
    error_detail: list[JsonObject]
    """Of an exception: `exc_type`, `exc_value`, frames."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _logs, "nightshift logs search_ranking:night-2026-02-01 train", __doc__)
    parser.add_argument("id", metavar="PIPELINE[:RUN_ID]", help="as `nightshift runs list` and `status` show it")
    parser.add_argument("stage", nargs="?", metavar="STAGE", help="a stage, or resolve or wait")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--try", dest="number", type=number_from(1), metavar="NUMBER", help="of Airflow's task, from 1; default: the last one"
    )
    which.add_argument("--follow", action="store_true", help="print new lines until the end")


def _logs(client: Client, options: argparse.Namespace) -> int:
    if ":" not in options.id:
        options.id = _newest(client, options.id)
    return _follow(client, options) if options.follow else _print_one(client, options)


def _newest(client: Client, name: str) -> str:
    """Return the id of the newest run of a DAG that has started."""
    # By Airflow's own route, which also has the runs of helper DAGs. A look at a canary may be queued for a later time.
    query = {"state": ["running", "success", "failed"], "order_by": "-id", "limit": 1}
    runs = client.airflow("GET", f"/dags/{quote(name, safe='')}/dagRuns", params=query).json()["dag_runs"]
    if not runs:
        raise DeniedError("logs.none", f"no run of {shown(name)} has started", hint="`nightshift status` shows when the next one starts")
    return f"{name}:{runs[0]['dag_run_id']}"


def _print_one(client: Client, options: argparse.Namespace) -> int:
    run = client.run(options.id)
    stage = _chosen(run, options.stage)
    number = options.number or stage.try_number
    if not 1 <= number <= stage.try_number:
        message = f"{stage.name} of {run.id} has no try {number}" if stage.try_number else f"{stage.name} of {run.id} has not started"
        raise DeniedError("logs.none", message, hint=f"`nightshift runs show {run.id}` shows the state of each stage")
    _print_head(stage.name, number, options)
    for record in _records(client, run, stage.name, number, follow=stage.state in STAGE_ENDED):
        _print(record, options)
    return 0


def _follow(client: Client, options: argparse.Namespace) -> int:
    printed: set[tuple[str, int]] = set()
    while True:
        run = client.run(options.id)
        stages = [_chosen(run, options.stage)] if options.stage else run.stages
        new = next((each for each in stages if each.started_at is not None and (each.name, each.try_number) not in printed), None)
        if new is not None:
            _print_head(new.name, new.try_number, options)
            for record in _records(client, run, new.name, new.try_number, follow=True):
                _print(record, options)
            printed.add((new.name, new.try_number))
        elif run.state in ENDED or (options.stage and stages[0].state in STAGE_ENDED):
            return 1 if (stages[0].state if options.stage else run.state) == FAILED else 0
        else:
            time.sleep(POLL_SECONDS)


def _chosen(run: Run, name: str | None) -> StageRun:
    if name is not None:
        found = next((stage for stage in run.stages if stage.name == name), None)
        if found is None:
            names = ", ".join(stage.name for stage in run.stages)
            raise DeniedError("logs.none", f"{run.id} has no stage {shown(name)}", hint=f"stages: {names}")
        return found
    started = [stage for stage in run.stages if stage.started_at is not None]
    if not started:
        raise DeniedError("logs.none", f"no stage of {run.id} has started", hint="--follow waits for the first one")
    return next((stage for stage in started if stage.state == FAILED), max(started, key=_start))


def _start(stage: StageRun) -> float:
    return 0.0 if stage.started_at is None else stage.started_at.timestamp()


def _records(client: Client, run: Run, stage: str, number: int, *, follow: bool) -> Iterator[LogRecord]:
    """Yield what is in the log now; with `follow` until the try has ended, for Airflow offers a next part until then."""
    token: str | None = None
    while True:
        content, token = _chunk(client, run, stage, number, token)
        yield from content
        if token is None or not (content or follow):
            return
        if not content:
            time.sleep(POLL_SECONDS)


def _chunk(client: Client, run: Run, stage: str, number: int, token: str | None) -> tuple[list[LogRecord], str | None]:
    place = f"{airflow_path(run.id)}/taskInstances/{quote(stage, safe='')}/logs/{number}"
    answer = client.airflow("GET", place, params={} if token is None else {"token": token}, headers={"Accept": "application/json"}).json()
    content: list[LogRecord] = [{"event": each} if isinstance(each, str) else each for each in answer["content"]]
    return content, answer.get("continuation_token")


def _print_head(stage: str, number: int, options: argparse.Namespace) -> None:
    if not options.json:
        sys.stderr.write(f"{stage}, try {number}\n")


def _print(record: LogRecord, options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    elif not record.get("event", "").startswith(HIDDEN):
        sys.stdout.write("".join(f"{line}\n" for line in _lines(record)))
    sys.stdout.flush()


def _lines(record: LogRecord) -> list[str]:
    event, level = record.get("event", ""), record.get("level")
    if level and (own := OF_A_STAGE.match(event)):
        event, level = event[own.end() :], own[1].lower()
    head = " ".join(filter(None, (record.get("timestamp"), level)))
    first, *more = [for_terminal(line) for line in event.splitlines()] or [""]
    errors = [f"  {each.get('exc_type')}: {for_terminal(str(each.get('exc_value')))}" for each in record.get("error_detail") or ()]
    return [f"{head} {first}".strip(), *more, *errors]
