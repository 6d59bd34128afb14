"""Checkpoints by name: which there are, and one as a file of safetensors.

    nightshift checkpoints list PIPELINE [RUN] [--json]
    nightshift checkpoints export PIPELINE RUN NAME FILE.safetensors [--what module|best|all] [--force]

    nightshift checkpoints restore PIPELINE RUN NAME
    nightshift checkpoints import PIPELINE RUN FILE.safetensors

`list` asks a server where --server or NIGHTSHIFT_SERVER names one, with the token in NIGHTSHIFT_TOKEN; else, as the others do, it reads
the store. `restore` and `import` print the conf of a trigger: its training begins at the checkpoint, or at step 0 with the file's weights;
`nightshift restore` starts such a run. NAME is `epoch_3` (or `3`), `step_400`, `best` or `newest`.

Exit codes: 0 done; 2 the command line is wrong; else that of the error that is printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nightshift.client.client import Client
from nightshift.client.query_command import describe_query_command, print_json, print_lines
from nightshift.queries.checkpoints import checkpoint_of
from nightshift.queries.schemas import SavedCheckpoint
from training.command_line import describe
from training.contracts import instant_text
from training.engine.checkpoint.catalog import NEWEST, SOURCE, Listing, as_of, listings, named, opened, requests, restorable
from training.engine.checkpoint.safetensors_export import export
from training.engine.checkpoint.safetensors_import import imported
from training.errors import shown, spec_error
from training.store import Store, installed_store
from training.store.work_folder import StoreUri

if TYPE_CHECKING:
    from nightshift.client.query_command import Reader

_FOLDER: Final = re.compile(r"(?!\.)[^/\x00-\x1f\x7f]{1,250}")
NAMES: Final = "epoch_3 or 3, step_400, best, newest"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.description = __doc__
    add = parser.add_subparsers(required=True, metavar="{list,export,restore,import}").add_parser
    listed = add("list", help="checkpoints of a pipeline's trainings")
    describe_query_command(listed, _list, "nightshift checkpoints list search_ranking", local_options=["store"])
    listed.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
    listed.add_argument("run", nargs="?", metavar="RUN", help="id of a run; absent: all runs (of a server: those that Airflow has)")
    written = add("export", help="write a checkpoint's tensors to a file of safetensors")
    describe(written, _in_store(_export), "nightshift checkpoints export search_ranking night-2026-02-01 best best.safetensors")
    restored = add("restore", help="print the trigger's conf for a training that begins at a checkpoint")
    describe(restored, _in_store(_restore), "nightshift checkpoints restore search_ranking night-2026-02-01 epoch_2")
    taken = add("import", help="print the trigger's conf for a training that begins with the weights of a file")
    describe(taken, _in_store(_import), "nightshift checkpoints import search_ranking night-2026-02-01 best.safetensors")
    for command, of_the_run in (
        (written, ""),
        (restored, ""),
        (taken, " with checkpoints of the same model, dataset and number of processes"),
    ):
        command.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
        command.add_argument("run", metavar="RUN", help=f"id of a run{of_the_run}")
    for command in (written, restored):
        command.add_argument("checkpoint", metavar="NAME", help=NAMES)
    written.add_argument("file", type=Path, metavar="FILE", help="FILE.safetensors")
    what = "module: the weights at the checkpoint (default); best: those of its best epoch so far; all: with the optimizer's state"
    written.add_argument("--what", choices=("module", "best", "all"), default="module", help=what)
    written.add_argument("--force", action="store_true", help="replace a file that exists")
    taken.add_argument("file", type=Path, metavar="FILE", help="FILE.safetensors, with the tensors of `export --what module`")
    for command in (listed, written, restored, taken):
        command.add_argument("--store", metavar="URI", help="root of the store; default: NIGHTSHIFT_STORE")


def _list(reader: Reader, options: argparse.Namespace) -> int:
    if not isinstance(reader, Client):
        _check_names(options)
        store = installed_store(options.store)
        found = [checkpoint_of(store, each) for each in listings(store, options.pipeline, options.run)]
    elif options.run is not None:
        found = list(reader.checkpoints(f"{options.pipeline}:{options.run}"))
    else:
        found = _of_all(reader, options.pipeline)
    if options.json:
        print_json(found)
    else:
        print_lines(_table(found))
    return 0


def _of_all(client: Client, pipeline: str) -> list[SavedCheckpoint]:
    client.pipeline(pipeline)
    by_run: dict[str, dict[str, SavedCheckpoint]] = {}
    for run in client.runs(pipeline):
        for each in client.checkpoints(run.id):
            # A run that reused a training has those of the run that trained.
            by_run.setdefault(each.run, {}).setdefault(f"{each.uri}:{each.step}", each)
    return [each for _run, found in sorted(by_run.items()) for each in found.values()]


def _table(found: Sequence[SavedCheckpoint]) -> Iterator[str]:
    """Yield the lines of a table, with a heading for each run."""
    if not found:
        yield "no checkpoint was found"
    run = None
    for each in found:
        if each.run != run:
            run = each.run
            yield run
            yield f"  {'step':>8} {'epoch':>6}  {'saved':<20} {'MB':>10}  {'layout':<24} names"
        size = "" if each.size_bytes is None else f"{each.size_bytes / 1e6:.1f}"
        created_at = f"{each.created_at:%Y-%m-%d %H:%M:%S}Z"
        names = ", ".join(each.names) + (f"  not usable: {each.fault}" if each.fault else "")
        yield f"  {each.step:>8} {each.epoch:>6}  {created_at:<20} {size:>10}  {each.layout:<24} {names}"


def _in_store(command: Callable[[Store, argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        _check_names(options)
        return command(installed_store(options.store), options)

    return run


def _check_names(options: argparse.Namespace) -> None:
    for value in (options.pipeline, options.run):
        if value is not None and not _FOLDER.fullmatch(value):
            raise spec_error(SOURCE, "checkpoint.unknown", f"{shown(value)} is not the name of a pipeline or a run")


def _export(store: Store, options: argparse.Namespace) -> int:
    listing = named(store, options.pipeline, options.run, options.checkpoint)
    manifest, saved = opened(store, listing.uri)
    metadata = {
        "format": "pt",
        "nightshift.pipeline": options.pipeline,
        "nightshift.run": listing.run,
        "nightshift.checkpoint": StoreUri(listing.uri).digest,
        "nightshift.what": options.what,
        "nightshift.step": str(listing.step),
        "nightshift.epoch": str(listing.epoch),
        "nightshift.dataset": str((manifest.meta.get("identity") or {}).get("dataset", "")),
        "nightshift.code": _code_of(store, options.pipeline, listing),
    }
    size = export(saved, store.objects, options.file, what=options.what, metadata=metadata, force=options.force)
    number = ", ".join(name for name in listing.names if name != NEWEST)
    sys.stdout.write(f"{options.file}: {options.what} of {number} (step {listing.step}), {size / 1e6:.1f} MB\n")
    return 0


def _restore(store: Store, options: argparse.Namespace) -> int:
    """Print the conf to the standard output, so that it can be handed on, and for which instant it is to the standard error."""
    listing = restorable(store, options.pipeline, options.run, options.checkpoint)
    _print_conf(store, options.pipeline, listing, listing.uri)
    return 0


def _import(store: Store, options: argparse.Namespace) -> int:
    listing = named(store, options.pipeline, options.run, NEWEST)
    uri = imported(store, options.file, *opened(store, listing.uri))
    _print_conf(store, options.pipeline, listing, uri)
    return 0


def _print_conf(store: Store, pipeline: str, listing: Listing, uri: str) -> None:
    if instant := as_of(store, pipeline, listing):
        sys.stderr.write(f"trigger the run as of {instant_text(instant)}: the training needs the same dataset\n")
    sys.stdout.write(json.dumps({"train": {"from_checkpoint": StoreUri(uri).digest}}) + "\n")


def _code_of(store: Store, pipeline: str, listing: Listing) -> str:
    """Return the version of the code that the training was requested with, empty where its request is deleted."""
    for request in requests(store, pipeline, listing.work_id):
        return request.code_version
    return ""
