"""Checkpoints by name: which there are, and one as a file of safetensors.

    nightshift checkpoints list PIPELINE [RUN] [--json]
    nightshift checkpoints export PIPELINE RUN NAME FILE.safetensors [--what module|best|all] [--force]

    nightshift checkpoints restore PIPELINE RUN NAME
    nightshift checkpoints import PIPELINE RUN FILE.safetensors

`nightshift checkpoints list` asks a server instead where --server or NIGHTSHIFT_SERVER names one.
`restore` and `import` print the conf of a trigger: its training begins at the checkpoint, or at step 0 with the file's weights.
NAME is `epoch_3` (or `3`), `step_400`, `best` or `newest`.

Exit codes: 0 done; 2 the command line is wrong; else that of the error that is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from training.command_line import example, exit_code_of
from training.engine.checkpoint.catalog import NEWEST, SOURCE, Listing, instant_of, listings, named, opened, requests, restorable
from training.engine.checkpoint.export import export
from training.engine.checkpoint.importing import imported
from training.engine.checkpoint.summary import summary_of, table_lines
from training.errors import Problem, SpecError, shown
from training.installation import STORE, home_folder
from training.store import Store
from training.store.addresses import StoreUri

_FOLDER: Final = re.compile(r"(?!\.)[^/\x00-\x1f\x7f]{1,250}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(lambda: _chosen(options))


def _chosen(options: argparse.Namespace) -> int:
    for value in (options.pipeline, options.run):
        _check_name(value)
    store = Store(options.store or str(home_folder() / "store"))
    return _COMMANDS[options.command](store, options)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift checkpoints", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True, metavar="{list,export,restore,import}")
    listed = commands.add_parser(
        "list",
        help="checkpoints of a pipeline's trainings",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift checkpoints list search_ranking"),
    )
    listed.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
    listed.add_argument("run", nargs="?", metavar="RUN", help="id of a run; absent: all runs")
    listed.add_argument("--json", action="store_true", help="as JSON, with the URIs of the manifests")
    written = commands.add_parser(
        "export",
        help="write a checkpoint's tensors to a file of safetensors",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift checkpoints export search_ranking night-2026-02-01 best best.safetensors"),
    )
    written.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
    written.add_argument("run", metavar="RUN", help="id of a run")
    written.add_argument("name", metavar="NAME", help="epoch_3 or 3, step_400, best, newest")
    written.add_argument("file", type=Path, metavar="FILE", help="FILE.safetensors")
    what = "module: the weights at the checkpoint (default); best: those of its best epoch so far; all: with the optimizer's state"
    written.add_argument("--what", choices=("module", "best", "all"), default="module", help=what)
    written.add_argument("--force", action="store_true", help="replace a file that exists")
    restored = commands.add_parser(
        "restore",
        help="print the trigger's conf for a training that begins at a checkpoint",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift checkpoints restore search_ranking night-2026-02-01 epoch_2"),
    )
    restored.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
    restored.add_argument("run", metavar="RUN", help="id of a run")
    restored.add_argument("name", metavar="NAME", help="epoch_3 or 3, step_400, best, newest")
    taken = commands.add_parser(
        "import",
        help="print the trigger's conf for a training that begins with the weights of a file",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift checkpoints import search_ranking night-2026-02-01 best.safetensors"),
    )
    taken.add_argument("pipeline", metavar="PIPELINE", help="name of a pipeline")
    taken.add_argument("run", metavar="RUN", help="id of a run with checkpoints of the same model, dataset and number of processes")
    taken.add_argument("file", type=Path, metavar="FILE", help="FILE.safetensors, with the tensors of `export --what module`")
    for command in (listed, written, restored, taken):
        command.add_argument("--store", default=STORE.text(), metavar="URI", help="root of the store; default: NIGHTSHIFT_STORE")
    return found


def _check_name(value: str | None) -> None:
    if value is not None and not _FOLDER.fullmatch(value):
        problem = Problem(code="checkpoint.unknown", message=f"{shown(value)} is not the name of a pipeline or a run")
        raise SpecError(SOURCE, [problem])


def _list(store: Store, options: argparse.Namespace) -> int:
    found = [summary_of(store, listing) for listing in listings(store, options.pipeline, options.run)]
    if options.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(each) for each in found], indent=1, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in table_lines(found)))
    return 0


def _export(store: Store, options: argparse.Namespace) -> int:
    listing = named(store, options.pipeline, options.run, options.name)
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
    listing = restorable(store, options.pipeline, options.run, options.name)
    _print_conf(store, options.pipeline, listing, listing.uri)
    return 0


def _import(store: Store, options: argparse.Namespace) -> int:
    listing = named(store, options.pipeline, options.run, NEWEST)
    uri = imported(store, options.file, *opened(store, listing.uri))
    _print_conf(store, options.pipeline, listing, uri)
    return 0


def _print_conf(store: Store, pipeline: str, listing: Listing, uri: str) -> None:
    if as_of := instant_of(store, pipeline, listing):
        sys.stderr.write(f"trigger the run as of {as_of}: the training needs the same dataset\n")
    sys.stdout.write(json.dumps({"train": {"from_checkpoint": StoreUri(uri).digest}}) + "\n")


def _code_of(store: Store, pipeline: str, listing: Listing) -> str:
    """Return the version of the code that the training was requested with, empty where its request is deleted."""
    for request in requests(store, pipeline, listing.fingerprint):
        return request.code_version
    return ""


_COMMANDS: Final[Mapping[str, Callable[[Store, argparse.Namespace], int]]] = {
    "list": _list,
    "export": _export,
    "restore": _restore,
    "import": _import,
}
