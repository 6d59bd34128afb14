"""Where the trials of a study under way see one another: a journal file on one machine, a schema of PostgreSQL's across pods.

What is finished is in the store besides (`training.tuning.records`): losing this storage loses no finished trial.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from training.database.connect import database_url
from training.database.outages import wait_on_connect
from training.errors import UnavailableError, first_line, spec_error
from training.installation import DATABASE, home_folder

SCHEMA: Final = "nightshift_tuning"
"""Optuna's tables are its own: their names and migrations must not meet ours."""
ADVISORY_LOCK: Final = 0x74756E65
"""PostgreSQL lock held while the schema is made; an arbitrary number of our own."""
TAIL_BYTES: Final = 1 << 20


def open_storage(study: str, *, shared: bool) -> BaseStorage:
    """Return the storage of a study.

    Args:
        study: its name, which is its work id.
        shared: its trials run on machines that share no disk.

    Raises:
        SpecError: `tuning.database`, trials in pods need PostgreSQL.
        UnavailableError: `database.unavailable`.
    """
    url = database_url()
    if make_url(url).get_backend_name() == "postgresql":
        return _in_postgres(url)
    if shared:
        message = "the trials of a study run in pods, which share no file"
        hint = "set it to PostgreSQL's URL, in a Secret of the stage `trial` (docs/kubernetes.md)"
        raise spec_error("environment", "tuning.database", message, hint=hint, field=DATABASE.name)
    folder = home_folder() / "tuning"
    folder.mkdir(parents=True, exist_ok=True)
    return in_journal(folder / f"{study}.journal")


def in_journal(path: Path) -> BaseStorage:
    """Return a storage in a file, its end mended where a writer was cut off in the middle of a line."""
    lock = _FileLock(path)
    backend = JournalFileBackend(str(path), lock_obj=lock)  # type: ignore[arg-type]
    lock.acquire()
    try:
        _mend(path)
    finally:
        lock.release()
    return JournalStorage(backend)


class _FileLock:
    """The kernel's lock, which ends with its holder: Optuna's own is a link that outlives a killed one by half a minute."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_suffix(".lock")
        self._descriptor = -1

    def acquire(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        os.close(self._descriptor)


def _mend(path: Path) -> None:
    """Cut off a last line without an end: its writer never learnt that it was written, and the next would be appended to it."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - TAIL_BYTES)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def _in_postgres(url: str) -> BaseStorage:
    try:
        engine = create_engine(url)
        wait_on_connect(engine)
        with engine.begin() as connection:
            # Many trials begin at once, and Optuna makes its tables without a lock.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            with engine.begin() as making:
                making.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
            storage = RDBStorage(_with_schema(url), engine_kwargs={"pool_pre_ping": True})
            wait_on_connect(storage.engine)
        engine.dispose()
    except OperationalError as err:
        message = f"the database does not answer: {first_line(err.orig)}"
        raise UnavailableError("database.unavailable", message, hint="see NIGHTSHIFT_DATABASE") from err
    return storage


def _with_schema(url: str) -> str:
    parsed = make_url(url)
    query = {**parsed.query, "options": f"-csearch_path={SCHEMA}"}
    return parsed.set(query=query).render_as_string(hide_password=False)
