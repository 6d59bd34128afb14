"""Deletes by the retention settings: python -m training.retention [--dry-run]; docs/retention.md.

Exit code 0: done; 75: another collection is under way; else that of the error that it names.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from training.command_line import exit_code_of
from training.database import connect
from training.database.run_metrics import delete_expired
from training.installation import STORE, home_folder
from training.registry.retention import LedgerRoots
from training.retention.settings import load_retention
from training.store import Store
from training.store.addresses import StoreUri
from training.store.collector import Collector

KEPT = "kept/"


def main(arguments: list[str] | None = None) -> int:
    """Collect, or mark what stays; print bytes by kind; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.retention", description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="delete and write nothing: say what would be deleted")
    parser.add_argument("--store", default=STORE.text(), help="root URI; default: NIGHTSHIFT_STORE")
    parser.add_argument("--json", action="store_true", help="bytes by kind, as JSON")
    marks = parser.add_mutually_exclusive_group()
    marks.add_argument("--keep", metavar="URI", help="keep this snapshot, model or other artifact until it is released; collects nothing")
    marks.add_argument("--release", metavar="URI", help="end the keeping of this artifact; collects nothing")
    given = parser.parse_args(arguments)
    return exit_code_of(lambda: _collect(given))


def _collect(given: argparse.Namespace) -> int:
    store = Store(given.store or str(home_folder() / "store"))
    if given.keep or given.release:
        sys.stdout.write(keep(store, given.keep) if given.keep else release(store, given.release))
        return 0
    retention = load_retention()
    roots = LedgerRoots(champions=retention.champions)
    report = Collector(store, retention.rules(), roots, say=say_progress).collect(dry_run=given.dry_run)
    if not given.dry_run:
        num_rows = delete_expired(connect(), store.bucket, before=datetime.now(UTC) - retention.runs)
        say_progress(f"{num_rows:,} rows of run_metric were deleted")
    if given.json:
        sys.stdout.write(json.dumps({kind: asdict(tally) for kind, tally in report.by_kind.items()}, indent=1) + "\n")
        return 0
    sys.stdout.write("\n".join(report.lines(dry_run=given.dry_run)) + "\n")
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
    return f"kept: {manifest.kind} {uri}\n"


def release(store: Store, uri: str) -> str:
    """End the keeping of an artifact; a no-op where it is not kept."""
    store.ref(f"{KEPT}{StoreUri(uri).digest}").delete()
    return f"released: {uri}\n"


if __name__ == "__main__":
    sys.exit(main())
