"""Runs of a server's pipelines: listed, shown, started, begun again at a checkpoint.

    nightshift runs list [PIPELINE] [--state failed] [--limit 20] [--json]
    nightshift runs show PIPELINE:RUN_ID [--json]
    nightshift runs metrics PIPELINE:RUN_ID [--trial N | --refit] [--follow] [--after ID] [--json]
    nightshift runs start PIPELINE [--as-of 2026-01-31] [--set train.learning_rate=0.01] [--snapshot VERSION] [--force] [--no-promote]
                          [--unpause] [--wait] [--json]
    nightshift runs restore PIPELINE:RUN_ID CHECKPOINT [--set train.learning_rate=0.001] [--unpause] [--wait] [--json]

`metrics` prints a point of the training's metrics a line; with `--follow` until the training has ended.
`restore` (also `nightshift restore`) starts a run whose training begins at a checkpoint of an earlier run, over the same data.

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 done; 1 the run that `--wait` waited for failed; 2 the command line is wrong; 64 the request is wrong; 74 the server does
not answer; 77 refused: with `--wait` also where the pipeline is paused, without `--unpause`; only with `--key` the run is queued then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command, print_cut, print_json, print_lines
from nightshift.queries.schemas import Run, RunSummary, StageRun
from training.command_line import number_from
from training.contracts import JsonObject
from training.errors import DeniedError, shown, spec_error
from training.format import NOTHING, brief, finite
from training.sanitizing import for_terminal

LIMIT: Final = 20
SECTIONS: Final = ("data", "train", "evaluate", "tune")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.description = __doc__
    add = parser.add_subparsers(required=True, metavar="{list,show,metrics,start,restore}").add_parser
    listing = add("list", help="the newest runs first")
    describe_server_command(listing, _list, "nightshift runs list search_ranking --state failed")
    listing.add_argument("pipeline", nargs="?", help="name of a pipeline; absent: all")
    listing.add_argument("--state", choices=("queued", "running", "success", "failed"), help="only runs in this state")
    listing.add_argument("--limit", type=number_from(1), default=LIMIT, help=f"how many at most; default {LIMIT}")
    show = add("show", help="one run with its stages")
    describe_server_command(show, _show, "nightshift runs show search_ranking:night-2026-02-01")
    show.add_argument("id", metavar="PIPELINE:RUN_ID", help="as `list` shows it")
    metrics = add("metrics", help="metrics of a run's training, also while it trains")
    describe_server_command(metrics, _metrics, "nightshift runs metrics search_ranking:night-2026-02-01 --follow")
    metrics.add_argument("id", metavar="PIPELINE:RUN_ID", help="as `list` shows it")
    trial = "of this trial of the study of the run, from 0, instead of its training"
    which = metrics.add_mutually_exclusive_group()
    which.add_argument("--trial", type=number_from(0), metavar="N", help=trial)
    which.add_argument("--refit", action="store_true", help="of the refit of the run, instead of its training")
    metrics.add_argument("--follow", action="store_true", help="print new points until the training has ended")
    metrics.add_argument("--after", metavar="ID", help="only points that follow the one with this id; --json shows ids")
    start = add("start", help="queue a run")
    describe_server_command(start, _start, "nightshift runs start search_ranking --as-of 2026-02-01 --set train.learning_rate=0.01")
    start.add_argument("pipeline", help="name of a pipeline")
    start.add_argument("--force", action="store_true", help="do the work of every stage again")
    start.add_argument("--no-promote", action="store_true", help="end with the evaluation, without a decision")
    add_data_options(start)
    add_start_options(start)
    add_set_option(start)
    declare_restore(add("restore", help="queue a run whose training begins at a checkpoint"))


def declare_restore(parser: argparse.ArgumentParser) -> None:
    """Declare `nightshift restore`, which is also `nightshift runs restore`."""
    describe_server_command(parser, _restore, "nightshift restore search_ranking:night-2026-02-01 best --set train.epochs=5")
    parser.add_argument("id", metavar="PIPELINE:RUN_ID", help="run that saved the checkpoint, as `list` shows it")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="epoch_3 or 3, step_400, best, newest; `checkpoints list` shows them")
    add_start_options(parser)
    add_set_option(parser)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add what `overrides_of` reads."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key that a trigger may change (docs/api.md); the value is JSON, or a word",
    )


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add which data a run takes."""
    parser.add_argument("--as-of", metavar="TIME", help="a day, or a time with an offset; default: the last slot")
    parser.add_argument("--snapshot", metavar="VERSION", help="dataset version instead of the sources")


def add_start_options(parser: argparse.ArgumentParser) -> None:
    """Add what `started` reads, and the key of the request."""
    parser.add_argument("--key", help="idempotency key: the same key starts one run, as long as the run exists")
    parser.add_argument("--unpause", action="store_true", help="let a paused pipeline run, as `nightshift schedule on` does")
    wait = "show each stage, and return when the run has ended; refused where the pipeline is paused, without --unpause"
    parser.add_argument("--wait", action="store_true", help=wait)


def overrides_of(settings: Sequence[str]) -> Mapping[str, JsonObject]:
    """Return section to keys and values of `train.learning_rate=0.01`.

    Raises:
        SpecError: `command.set`.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        *folders, last = key.split(".")
        if not separator or not folders or folders[0] not in SECTIONS or not all((*folders, last)):
            hint = f"write --set train.learning_rate=0.01; sections: {', '.join(SECTIONS)}"
            message = f"{shown(setting)} is not SECTION.KEY=VALUE of a section that a run may change"
            raise spec_error("--set", "command.set", message, hint=hint)
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                hint = "set the whole of it once, or keys of it"
                raise spec_error("--set", "command.set", f"{shown(setting)}: {folder} has a value already", hint=hint)
        place[last] = _value_of(setting, text)
    return found


def _value_of(setting: str, text: str) -> Any:
    """Return JSON, or a word: `--set train.optimizer=adamw`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    try:
        # What a request can hold.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        hint = "write a finite number, or text in UTF-8"
        raise spec_error("--set", "command.set", f"{shown(setting)} is no value of JSON", hint=hint) from None
    return value


def _list(client: Client, options: argparse.Namespace) -> int:
    found = list(islice(client.runs(options.pipeline, state=options.state), options.limit))
    if options.json:
        print_json(found)
        return 0
    width = max((len(run.id) for run in found), default=0)
    for run in found:
        words = for_terminal("; ".join(filter(None, [waiting_words(run), run.note])))
        print_cut(f"{run.id:<{width}}  {run.state:<8}  {time_words(run.started_at)}  {words}".rstrip())
    if not found:
        sys.stdout.write("there is no such run\n")
    return 0


def _show(client: Client, options: argparse.Namespace) -> int:
    print_run(client.run(options.id), options)
    return 0


def print_run(run: Run, options: argparse.Namespace) -> None:
    """Print a run with its stages."""
    if options.json:
        print_json(run)
    else:
        print_lines([*head_lines(run), "", *(stage_line(stage, run) for stage in run.stages)])


def _metrics(client: Client, options: argparse.Namespace) -> int:
    if options.trial is None:
        points = client.metrics(options.id, after=options.after, follow=options.follow, refit=options.refit)
    else:
        points = client.trial_metrics(options.id, options.trial, after=options.after, follow=options.follow)
    for point in points:
        if options.json:
            line = json.dumps(point.model_dump(mode="json"), ensure_ascii=False)
        else:
            value = brief(point.value) if isinstance(point.value, float) else point.value
            line = for_terminal(f"{point.logged_at:%H:%M:%S}  attempt {point.attempt}  step {point.step:>8,}  {point.name} {value}")
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


def _start(client: Client, options: argparse.Namespace) -> int:
    require_start(client, options, options.pipeline)
    run = client.start_run(
        options.pipeline,
        as_of=options.as_of,
        snapshot=options.snapshot,
        force=options.force,
        promote=not options.no_promote,
        overrides=overrides_of(options.set),
        key=options.key,
    )
    return started(client, options, run)


def _restore(client: Client, options: argparse.Namespace) -> int:
    require_start(client, options, options.id.partition(":")[0])
    run = client.restore(options.id, options.checkpoint, overrides=overrides_of(options.set), key=options.key)
    return started(client, options, run)


def require_start(client: Client, options: argparse.Namespace, pipeline: str) -> None:
    """Refuse what `--wait` would wait for without end; queued, it would run with its overrides at some later time.

    Not with a key, whose run may have ended already: a new one is queued, and then the wait ends.

    Raises:
        DeniedError: `pipeline.unknown`, `pipeline.paused`.
    """
    if options.wait and not options.unpause and options.key is None:
        client.require_on(pipeline, option="--unpause, or ")


def started(client: Client, options: argparse.Namespace, run: Run) -> int:
    if options.unpause:
        client.switch(run.pipeline, on=True)
        run = run.model_copy(update={"waits_for": None})
    elif not options.wait and run.waits_for:
        sys.stderr.write(f"warning: {_paused(run)} until `nightshift schedule on {run.pipeline}`\n")
    if options.wait:
        if not options.json:
            sys.stdout.write(f"{run.id}\n")
        show = (lambda _run: None) if options.json else _StageReporter().show

        def look(run: Run) -> None:
            show(run)
            if run.waits_for:
                raise DeniedError("pipeline.paused", _paused(run), hint=f"nightshift schedule on {run.pipeline}")

        run = client.wait(run.id, each=look)
    if options.json:
        print_json(run)
    else:
        # The stages were shown while they ended.
        lines = ["", *head_lines(run)] if options.wait else [f"{run.id}  {run.state}"]
        print_lines(lines)
    return 1 if run.state == "failed" else 0


def _paused(run: Run) -> str:
    return f"{run.pipeline} is paused in Airflow: {run.id} waits"


class _StageReporter:
    """Says once of each stage that it ended."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int, str]] = set()

    def show(self, run: Run) -> None:
        for stage in run.stages:
            event = (stage.name, stage.try_number, stage.state or "")
            if stage.state in ("success", "failed", "up_for_retry", "upstream_failed", "skipped") and event not in self._told:
                self._told.add(event)
                sys.stdout.write(f"{stage_line(stage, run)}\n")
                sys.stdout.flush()


def waiting_words(run: RunSummary) -> str:
    """Return what an unfinished run of a paused pipeline waits for; empty for other runs."""
    return f"waits for {run.waits_for}" if run.waits_for else ""


def head_lines(run: Run) -> list[str]:
    """Return a run without its stages, in words."""
    lines = {
        "run": run.id,
        "state": run.state + (f", {waits}" if (waits := waiting_words(run)) else "") + (f": {run.note}" if run.note else ""),
        "as of": NOTHING if run.as_of is None else run.as_of.isoformat(),
        "started": f"{time_words(run.started_at)}" + (f" by {run.triggered_by}" if run.triggered_by else ""),
        "ended": time_words(run.ended_at),
    }
    if run.parameters:
        lines["given"] = json.dumps(run.parameters, sort_keys=True)
    return [f"{name + ':':<9}{for_terminal(value)}" for name, value in lines.items()]


def stage_line(stage: StageRun, run: Run) -> str:
    """Return a stage's state, duration and first numbers, and the command that prints the words of its warnings."""
    seconds = "" if stage.seconds is None else f"{stage.seconds:,.1f} s"
    found = [f"{name} {brief(value)}" for name, value in stage.scalars.items() if finite(value) is not None]
    if stage.reused_from:
        found.insert(0, f"reused from {stage.reused_from}")
    if stage.progress:
        found.insert(0, stage.progress)
    if stage.waits_for:
        found.insert(0, f"waits for {stage.waits_for}")
    # The log of a result that was found has no words, and the run that made it may be of another DAG.
    has_words = stage.scalars.get("warnings") and not stage.reused_from
    warnings = f" (in words: nightshift logs {run.pipeline}:{run.run_id} {stage.name})" if has_words else ""
    return f"{stage.name:<10}{stage.state or 'waits':<16}{seconds:>10}  {', '.join(found[:4])}{warnings}".rstrip()


def time_words(instant: datetime | None) -> str:
    """Return an instant to the second."""
    return NOTHING if instant is None else instant.isoformat(timespec="seconds")
