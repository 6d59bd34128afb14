"""Erases the rows of a person, of a run or of a snapshot from the store; docs/retention.md says what that is, and what it is not.

    nightshift erase PIPELINE --key COLUMN=VALUE [--key ...] [--delete --reason "..."] [--by USER] [--models] [--json]
    nightshift erase PIPELINE:RUN_ID | PIPELINE:VERSION [--delete --reason "..."] [--by USER] [--models] [--json]

Without --delete nothing is written: it lists every artifact that holds the rows, and what is lost with it.
Remove the rows from the source first: an ingest that finds them again is refused. Weights that were trained on them stay, unless --models
is given; champion, canary and versions that wait for approval stay all the same.

Exit codes: 0 done; 2 the command line is wrong; 65 the store is damaged, or rows were found after the deletion; 74 store, database or
MLflow do not answer; 75 a collection is under way; 77 refused (unknown target or key, work under way).
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys
from collections.abc import Collection, Iterator

from training.command_line import describe
from training.database import connect
from training.database.datasets import check_reason, datasets, find_dataset
from training.errors import DeniedError, StoreError, counted, shown
from training.process.scratch import scratch_folder
from training.registry.ledger.retention import LedgerRoots
from training.retention.erasure import ErasureOrder, earlier_orders, erase, erased_digests
from training.retention.held_rows import CONSEQUENCES, HeldRows, RowSearch
from training.retention.settings import load_retention
from training.store import Store, installed_store
from training.store.garbage_collector import Collector

NOT_ERASED = """not erased:
  the source: remove the rows there first, else the next ingest is refused
  weights trained on the rows, where none are listed as deleted; the decisions about them, with their figures
  Airflow's logs, backups, and earlier versions of the objects in a bucket with versioning"""
_VERSION = re.compile("[0-9a-f]{16}|[0-9a-f]{64}")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe(parser, _erase, "nightshift erase search_ranking --key user_id=4711", __doc__)
    parser.add_argument("target", metavar="TARGET", help="PIPELINE with --key, PIPELINE:RUN_ID, or PIPELINE:VERSION (`datasets list`)")
    parser.add_argument("--key", metavar="COLUMN=VALUE", action="append", help="column of a source's table; several: rows with all of them")
    parser.add_argument("--delete", action="store_true", help="erase; without it, nothing is deleted or written")
    parser.add_argument("--reason", default="", help="required with --delete, stored in the ledger: no personal data")
    parser.add_argument("--by", help="who orders it (default: the user of this process)")
    parser.add_argument("--models", action="store_true", help="also delete the weights that were trained on the rows")
    parser.add_argument("--store", metavar="URI", help="root of the store; default: NIGHTSHIFT_STORE")
    parser.add_argument("--json", action="store_true", help="the artifacts as JSON")


def _erase(options: argparse.Namespace) -> int:
    pipeline, _, part = options.target.partition(":")
    if bool(part) == bool(options.key):
        options.error("give PIPELINE with --key, or PIPELINE:RUN_ID, or PIPELINE:VERSION")
    key = dict(_column(text, options) for text in options.key or ())
    if options.delete:
        check_reason(options.reason)
    store, engine = installed_store(options.store), connect()
    for at, by, reason in earlier_orders(engine, store, pipeline, key) if key else ():
        sys.stderr.write(f"this key was erased before: {at:%Y-%m-%d %H:%M} UTC by {by}: {reason}\n")
    with scratch_folder() as folder:

        def look() -> tuple[RowSearch, HeldRows]:
            search = RowSearch(store, folder, erased=erased_digests(engine))
            return search, _search(store, search, pipeline, part, key)

        if not options.delete:
            _, found = look()
            _print(store, found, set(found.weights) if options.models else (), options)
            return 0
        order = ErasureOrder(
            pipeline=pipeline,
            target=f"snapshot {part}" if part else ", ".join(sorted(key)),
            key=key or None,
            by=options.by or getpass.getuser(),
            reason=options.reason.strip(),
            includes_models=options.models,
        )
        retention = load_retention()
        roots = LedgerRoots(champions=retention.champions)
        found, weights = erase(store, engine, Collector(store, retention.rules(), roots), roots, look, order)
        _print(store, found, weights, options)
        _refuse_left(look()[1])
    return 0


def _column(text: str, options: argparse.Namespace) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not (column and equals):
        options.error(f"--key {shown(text)}: give COLUMN=VALUE")
    return column, value


def _search(store: Store, search: RowSearch, pipeline: str, part: str, key: dict[str, str]) -> HeldRows:
    engine = connect()
    if key:
        uris = [*(version.uri for version in datasets(engine, pipeline)), *search.results_of(pipeline)]
        if not uris:
            raise DeniedError("erase.target", f"pipeline {shown(pipeline)} has no snapshot", hint="`nightshift datasets list` shows them")
        return search.of_key(uris, key)
    if _VERSION.fullmatch(part):
        return search.of_snapshot(find_dataset(engine, pipeline, part).uri)
    head = store.run_ref(pipeline, part, "snapshot").read()
    if head is None:
        raise DeniedError("erase.target", f"run {shown(part)} of {pipeline} has no snapshot", hint="`nightshift runs list` shows the runs")
    return search.of_snapshot(str(head.value))


def _print(store: Store, found: HeldRows, weights: Collection[str], options: argparse.Namespace) -> None:
    if options.json:
        artifacts = [{"kind": kind, "uri": uri, "consequence": words} for kind, uri, words in _artifacts(store, found, weights, options)]
        counts = {"rows": found.num_rows, "snapshots_searched": found.num_scanned, "parts": len(found.parts)}
        sys.stdout.write(json.dumps({**counts, "erased": options.delete, "artifacts": artifacts}, indent=1) + "\n")
        return
    rows = "all rows" if found.num_rows is None else f"{found.num_rows:,} rows"
    sys.stdout.write(
        f"{rows} in {counted(len(found.parts), 'file')}, found in {counted(found.num_scanned, 'snapshot')} of {options.target}\n"
    )
    for kind, uri, words in _artifacts(store, found, weights, options):
        sys.stdout.write(f"{kind:<10}  {uri}  {words}\n")
    if not found.holders:
        sys.stdout.write("nothing holds such rows: write the value as the data has it\n")
        return
    sys.stdout.write(f"{NOT_ERASED}\n")
    if not options.delete:
        sys.stdout.write('nothing was erased: do it with --delete --reason "..."\n')


def _artifacts(store: Store, found: HeldRows, weights: Collection[str], options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, URI, what is lost with it)."""
    for holder in sorted(found.holders.values(), key=lambda holder: (list(CONSEQUENCES).index(holder.kind), holder.key)):
        yield holder.kind, store.bucket.uri(holder.key), CONSEQUENCES[holder.kind]
    for kind, keys, words in (("page", found.pages, "is gone"), ("log", found.logs, "is gone"), ("ref", found.refs, "is gone")):
        yield from ((kind, store.bucket.uri(key), words) for key in sorted(keys))
    yield from (("page", f"MLflow run {run}", "its evaluation.html is gone") for run in sorted(found.mlflow_runs))
    used = "stays: champion, canary, or waiting for approval; order it again after the next promotion"
    stays = used if options.models else "stays: --models deletes it"
    for digest, holder in sorted(found.weights.items()):
        yield holder.kind, store.bucket.uri(holder.key), "is deleted, where no alias has it" if digest in weights else stays


def _refuse_left(left: HeldRows) -> None:
    """Say what a search finds after the deletion.

    Raises:
        StoreError: `erase.left`.
    """
    if left.holders:
        kinds = ", ".join(sorted({holder.kind for holder in left.holders.values()}))
        message = f"{len(left.holders)} artifacts ({kinds}) hold such rows after the deletion: a stage that was under way has stored them"
        raise StoreError(
            "erase.left", message, hint="stop the pipeline's runs, remove the rows from the source, then give the same order again"
        )
    sys.stderr.write(f"a second search found 0 rows in {left.num_scanned} snapshots\n")
