"""Shows what retention would delete from the store, and deletes it with --delete; docs/retention.md.

    nightshift gc [--delete] [--json]
    nightshift gc --keep URI | --release URI

Airflow's DAG `housekeeping` deletes on its own.

Exit codes: 0 done; 2 the command line is wrong; 64 the settings are wrong; 65 the store is damaged, or has not what is to be kept;
74 store or database do not answer; 75 another collection is under way; 77 the URI is not that of an artifact of the store.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from training.command_line import describe
from training.database import connect
from training.database.run_metrics import delete_expired
from training.errors import DeniedError, shown
from training.registry.ledger.retention import LedgerRoots
from training.retention.settings import load_retention
from training.store import Store, installed_store
from training.store.garbage_collector import Collector
from training.store.work_folder import StoreUri

KEPT = "kept/"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe(parser, _collect, "nightshift gc", __doc__)
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--delete", action="store_true", help="delete; without it, nothing is deleted or written")
    does.add_argument("--keep", metavar="URI", help="keep this snapshot, model or other artifact until it is released; collects nothing")
    does.add_argument("--release", metavar="URI", help="end the keeping of this artifact; collects nothing")
    parser.add_argument("--store", metavar="URI", help="root of the store; default: NIGHTSHIFT_STORE")
    parser.add_argument("--json", action="store_true", help="bytes by kind, or what became of the artifact, as JSON")


def _collect(options: argparse.Namespace) -> int:
    store = installed_store(options.store)
    if options.keep is not None or options.release is not None:
        line = release(store, options.release) if options.keep is None else keep(store, options.keep)
        answer = {"answer": line.partition(":")[0], "uri": options.keep or options.release}
        sys.stdout.write(f"{json.dumps(answer) if options.json else line}\n")
        return 0
    retention = load_retention()
    roots = LedgerRoots(champions=retention.champions)
    report = Collector(store, retention.rules(), roots, say=say_progress).collect(dry_run=not options.delete)
    if options.delete:
        num_rows = delete_expired(connect(), store.bucket, before=datetime.now(UTC) - retention.runs)
        say_progress(f"{num_rows:,} rows of run_metric were deleted")
    if options.json:
        sys.stdout.write(json.dumps({kind: asdict(tally) for kind, tally in report.by_kind.items()}, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(report.lines(dry_run=not options.delete)) + "\n")
    return 0


def say_progress(line: str) -> None:
    """Print a line of progress to the standard error; the table goes to the standard output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def keep(store: Store, uri: str) -> str:
    """Keep an artifact until it is released; it must be an existing, readable manifest.

    Raises:
        StoreError: `object.missing`, `object.altered`; DeniedError: `store.foreign_uri`, no URI of a manifest.
    """
    manifest = store.manifests.get(uri)
    store.claim(uri)
    ref = store.ref(f"{KEPT}{manifest.digest}")
    head = ref.read()
    if head is None or head.value != uri:
        ref.move(uri, expected=head.number if head else 0)
    return f"kept: {manifest.kind} {uri}"


def release(store: Store, uri: str) -> str:
    """End the keeping of an artifact; a no-op where it is not kept, which the answer says.

    Raises:
        DeniedError: `store.foreign_uri`, no URI of a manifest.
    """
    if StoreUri(uri).content_key is None:
        raise DeniedError("store.foreign_uri", f"{shown(uri)} is not the URI of an artifact", hint="give the URI that --keep was given")
    ref = store.ref(f"{KEPT}{StoreUri(uri).digest}")
    is_kept = ref.read() is not None
    ref.delete()
    return f"{'released' if is_kept else 'was not kept'}: {uri}"
