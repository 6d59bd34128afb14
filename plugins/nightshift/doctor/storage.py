"""Store, database and pipelines: what they promise, before a run relies on it."""

from __future__ import annotations

import os
import secrets
import shlex
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import URL, create_engine, text

from nightshift.doctor.findings import Finding, Installation, bad, good
from nightshift.execution.backend import BACKENDS
from nightshift.slots import pool_problem
from training.database.connect import database_faults, head_revision, masked, parse_url, revision_of
from training.errors import DataError, SpecError
from training.registry.ledger.ledger import Ledger
from training.spec import load_spec
from training.spec.descriptors.families import REGISTRIES
from training.store.bucket import Bucket
from training.store.garbage_collector import MAX_CLOCK_DIFFERENCE
from training.store.probe import problems_of

CONNECT_SECONDS: Final = 10
PROBE_HINT: Final = "use a storage that keeps it (docs/kubernetes.md): without it, two runs can both believe that their commit stands"


def store(place: Installation) -> Iterator[Finding]:
    """Write to the store and read it, two writers at once; nothing is left in it."""
    bucket = Bucket(place.settings.store_uri)
    for words, problem in problems_of(bucket):
        yield bad("store", f"{words}: {problem}", hint=PROBE_HINT) if problem else good("store", words)
    if not bucket.is_local:
        yield _clock_of(bucket)


def _clock_of(bucket: Bucket) -> Finding:
    key = f"probe/{secrets.token_hex(8)}/clock"
    bucket.put(key, b"")
    try:
        written = next(entry.modified for entry in bucket.list(key.rsplit("/", 1)[0]))
    finally:
        bucket.delete(key)
    difference = abs(datetime.now(UTC) - written)
    message = f"the clock of {bucket.root_uri} differs by {difference.total_seconds():,.0f} s from this machine's"
    if difference > MAX_CLOCK_DIFFERENCE:
        return bad("clock", message, hint="set the wrong clock: by it, runs in use look old to retention")
    return good("clock", message)


def database(place: Installation) -> Iterator[Finding]:
    """Read the ledger's database, and migrate nothing."""
    url = parse_url(place.settings.database_url)
    with database_faults():
        revision = _sqlite_revision(url) if url.get_backend_name() == "sqlite" else _server_revision(url)
    head = head_revision()
    if revision is None:
        yield good("database", f"{masked(url)} has no tables yet: the first run makes them")
    elif revision == head:
        yield good("database", f"{masked(url)} has the tables of this version ({revision})")
    elif revision < head:
        hint = "make a backup; the next command or run migrates it"
        yield bad("database", f"{masked(url)} has the tables of an earlier version ({revision}, this one: {head})", hint=hint)
    else:
        yield bad(
            "database", f"{masked(url)} was made by a newer version ({revision}, this one: {head})", hint="install that version here too"
        )
    path = Path(url.database or "")
    if url.get_backend_name() == "sqlite" and path.is_file() and not os.access(path, os.W_OK):
        yield bad("database", f"this user cannot write to {path}", hint=f"chown it to the user of the services: chown {os.getuid()} {path}")
    elif revision == head:
        yield from _unmirrored(place.settings.ledger())


def _unmirrored(ledger: Ledger) -> Iterator[Finding]:
    for model, missing in ledger.unmirrored().items():
        if missing:
            hint = f"housekeeping does it within the hour once MLflow answers; now: python -m training.registry check {model} --repair"
            yield bad("mirror", f"MLflow does not show the newest decisions about {model}: {missing}", hint=hint)


def _sqlite_revision(url: URL) -> str | None:
    path = Path(url.database or "")
    if not path.is_file():
        return None
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=CONNECT_SECONDS)
    )
    with engine.connect() as connection:
        said = str(connection.execute(text("PRAGMA quick_check(1)")).scalar())
        if said != "ok":
            hint = "restore it from a backup (docs/operating.md)"
            raise DataError("database.damaged", f"{path} is damaged: {said}", hint=hint)
        return revision_of(connection)


def _server_revision(url: URL) -> str | None:
    engine = create_engine(url, connect_args={"connect_timeout": CONNECT_SECONDS})
    try:
        with engine.connect() as connection:
            return revision_of(connection)
    finally:
        engine.dispose()


def pipelines(place: Installation) -> Iterator[Finding]:
    """Read each pipeline's YAML, as Airflow's parser does, and what it may name: entry points and pools that go unused."""
    folder = place.settings.pipelines_path
    if not folder.is_dir():
        yield bad("pipelines", f"the folder {folder} does not exist", hint="set NIGHTSHIFT_PIPELINES to the folder of the YAML files")
        return
    sound = 0
    for path in sorted(folder.glob("*.yaml")):
        try:
            load_spec(path)
        except SpecError as err:
            more = f" and {len(err.problems) - 1} more" if len(err.problems) > 1 else ""
            command = f"nightshift check {shlex.quote(str(path))}"
            yield bad("pipelines", f"{path.name}: {err.problems[0].message}{more}", hint=f"`{command}` shows every problem")
        else:
            sound += 1
    yield good("pipelines", f"YAML files of {folder} that are sound: {sound}")
    for registry in (*REGISTRIES, BACKENDS):
        for fault in registry.left_out.values():
            yield bad("names", fault.message, hint=fault.hint)
    if (problem := pool_problem(place.settings)) is not None:
        yield bad("pools", f"{problem.field} {problem.message}", hint=problem.hint)
