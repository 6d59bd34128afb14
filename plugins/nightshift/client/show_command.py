"""Decisions about models, champion and canary.

    nightshift show                                              all models, their champions and canaries
    nightshift show MODEL [--json]                               every decision about one

Without a server it reads the ledger itself, so it also works while Airflow is stopped. The server is that of --server or
NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the database or the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from nightshift.client.client import Client
from nightshift.client.query_command import describe_query_command, print_json, print_lines
from nightshift.queries.schemas import DecisionSummary, Holder, Model, ModelDetails, ModelVersion
from training.contracts import instant_text
from training.format import in_columns, learned_words
from training.registry.ledger.reasons import Reason, reason_line
from training.sanitizing import for_terminal

if TYPE_CHECKING:
    from nightshift.client.query_command import Reader

COLUMNS: Final = ("decided (UTC)", "version", "outcome", "what moved", "by")
INDENT: Final = "    "
LEAST_WIDTH: Final = 60
"""Narrower terminals wrap the lines themselves."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_query_command(parser, _show, "nightshift show search_ranking", __doc__)
    parser.add_argument("model", nargs="?", help="name of a model; absent: champion and canary of each")


def _show(reader: Reader, options: argparse.Namespace) -> int:
    found = [reader.model(options.model)] if options.model else list(reader.models())
    if options.json:
        print_json({model.name: _whole(reader, model) for model in found})
        return 0
    if not found:
        sys.stdout.write("nothing was decided yet\n")
    for model in found:
        print_lines(standing_lines(model))
        if isinstance(model, ModelDetails):
            print_lines(["", *history_lines(list(reader.decisions(model.name))[::-1], retraining=model.retraining)])
    return 0


def _whole(reader: Reader, model: Model) -> dict[str, Any]:
    """Return all about a model, with the evidence of every decision, the oldest first."""
    if not isinstance(reader, Client):
        return reader.whole(model)
    decisions = [reader.decision(model.name, each.key) for each in reader.decisions(model.name)]
    return {"standing": model, "decisions": decisions[::-1]}


def standing_lines(model: Model) -> Iterator[str]:
    """Yield who is champion and canary, and what waits, in words."""
    yield model.name
    for alias, holder in (("champion", model.champion), ("canary", model.canary)):
        yield f"  {alias + ':':<10}{holder_words(holder)}"
        if holder is not None and (learned := learned_words(holder.bounds)):
            yield f"  {'':<10}learned from {learned}"
        if holder is not None and holder.artifact_digest:
            yield f"  {'':<10}load_verified digest {holder.artifact_digest}"
    if model.awaiting_approval:
        yield f"  waits for an approval: version {', '.join(model.awaiting_approval)}"


def holder_words(holder: Holder | None) -> str:
    """Return which version holds an alias."""
    if holder is None:
        return "none"
    since = f", since {holder.since}" if holder.since else ""
    return f"version {_named(holder)}, as of {instant_text(holder.as_of)}, weights {holder.weights_digest[:12]}{since}"


def version_words(version: ModelVersion) -> str:
    """Return which version it is."""
    return f"version {_named(version)}, weights {version.weights_digest[:12]}"


def _named(version: Holder | ModelVersion | DecisionSummary) -> str:
    return f"{version.version} ({version.semantic_version})" if version.semantic_version else version.version


def history_lines(history: Sequence[DecisionSummary], width: int | None = None, *, retraining: Sequence[str] = ()) -> list[str]:
    """Return decisions as a table, below each row why, and below them all the lines of `retraining`.

    Args:
        history: the oldest decision first.
        width: in characters; None: the terminal's. Output that goes elsewhere is not wrapped: a line of reasons is one line there.
    """
    if width is None and sys.stdout.isatty():
        width = max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    head, *rows = (_cut(f"  {row}", width) for row in in_columns([COLUMNS, *(_cells(entry) for entry in history)]))
    lines = [head]
    for entry, row in zip(history, rows, strict=True):
        lines += [row, *_reasons(entry, width)]
    return [*lines, "", *(f"  {line}" for line in retraining)] if retraining else lines


def _cells(entry: DecisionSummary) -> tuple[str, ...]:
    version = _named(entry) + (", deleted" if entry.weights_deleted_at is not None else "")
    return f"{entry.decided_at:%Y-%m-%d %H:%M}", version, entry.outcome, entry.action.replace("_", " "), for_terminal(entry.decided_by)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _reasons(entry: DecisionSummary, width: int | None) -> list[str]:
    lines: list[str] = []
    for reason in entry.reasons:
        text = reason_line(Reason.from_json(reason.model_dump()), for_terminal)
        wrapped = textwrap.wrap(text, width - len(INDENT), subsequent_indent="  ") if width else [text]
        lines += [INDENT + line for line in wrapped]
    return lines
