"""Opens the database of our own tables, its schema brought up to date first."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, NotSupportedError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from training.database.outages import wait_on_connect
from training.errors import DataError, SpecError, UnavailableError, first_line, shown, spec_error
from training.installation import DATABASE, home_folder
from training.sanitizing import masked as without_secrets

MIGRATIONS: Final = Path(__file__).resolve().parent / "migrations"
SQLITE_BUSY_SECONDS: Final = 30.0
ONLY_READS: Final = "nightshift_only_reads"
"""Option of a connection whose transactions write nothing."""
WAL_PAUSE_SECONDS: Final = 0.02
ADVISORY_LOCK: Final = 0x6E69676874
"""PostgreSQL lock held while the schema is brought up to date; an arbitrary number of our own."""

URL_FORMS: Final = "sqlite:////path/file.db or postgresql+psycopg2://user:password@host:port/name"
ESCAPES: Final = "in a password write @ : / ? # % as %40 %3A %2F %3F %23 %25"
READ_ONLY: Final = "25006"
"""PostgreSQL's code of a write on a server that takes none, as after a failover."""
DAMAGED: Final = ("file is not a database", "disk image is malformed", "malformed database schema", "unsupported file format")
HINTS: Final = {
    "read-only transaction": "the server is a standby, or read-only: point NIGHTSHIFT_DATABASE to the one that takes writes",
    "readonly database": "make the file and its folder writable for this user",
    "unable to open": "make the file and its folder readable and writable for this user; the path must not be a folder",
    "is locked": "another process holds its write lock: try again, or end that process",
    "disk is full": "free space on its disk",
    "password authentication": "check user and password in NIGHTSHIFT_DATABASE",
}


def database_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return `NIGHTSHIFT_DATABASE`, by default a SQLite file in `NIGHTSHIFT_HOME`."""
    return DATABASE.text(environ) or f"sqlite:///{home_folder(environ)}/nightshift.db"


def connect(url: str | None = None) -> Engine:
    """Return an engine for `url` (default: the installation's database), tables made or migrated where needed.

    Transactions on SQLite take the write lock when they begin, so that what a transaction has read still holds when it writes; those of
    `reading` take none.

    Raises:
        SpecError: `database.url`, not the URL of a database that can be used.
        DataError: `database.damaged`; `database.newer`, another version has migrated it.
        UnavailableError: `database.unavailable`.
    """
    engine = _open(url or database_url())
    with database_faults():
        try:
            with engine.execution_options(**{ONLY_READS: True}).connect() as connection:
                revision = revision_of(connection)
        except (TypeError, ValueError, ProgrammingError, NotSupportedError) as err:
            if getattr(err, "statement", None) is not None:
                raise
            # Options of the URL that the driver does not take. Its message may quote their values, and so may the chain.
            raise _refused(f"the driver refuses an option of {masked(engine.url)}", hint="check what follows `?` in the URL") from None
        head = head_revision()
        if revision is not None and revision > head:
            message = f"{masked(engine.url)} has the tables of revision {revision}, this version reads up to {head}"
            hint = "upgrade Nightshift, restore a backup from before the upgrade, or name another database in NIGHTSHIFT_DATABASE"
            raise DataError("database.newer", message, hint=hint)
        if revision != head:
            _upgrade(engine)
    return engine


def head_revision() -> str:
    """Return the newest migration's revision; files are named `<revision>_<what>.py`, revisions counting up."""
    return max(path.name.split("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


@contextmanager
def database_faults() -> Iterator[None]:
    """Turn what the database cannot do right now into `database.unavailable`, a damaged file into `database.damaged`; other faults pass."""
    try:
        yield
    except PoolTimeoutError as err:
        raise UnavailableError("database.unavailable", f"no connection to the database became free: {err}") from err
    except DBAPIError as err:
        place, reason = _place_of(err), without_secrets(first_line(err.orig))
        if any(sign in reason for sign in DAMAGED):
            hint = "restore it from a backup; or move it away, and the history of decisions begins empty"
            raise DataError("database.damaged", f"{place} is damaged or not a SQLite database: {reason}", hint=hint) from err
        if isinstance(err, OperationalError) or getattr(err.orig, "pgcode", None) == READ_ONLY:
            hint = next((hint for sign, hint in HINTS.items() if sign in reason), "see NIGHTSHIFT_DATABASE")
            raise UnavailableError("database.unavailable", f"{place} does not answer: {reason}", hint=hint) from err
        if err.connection_invalidated:
            raise UnavailableError("database.unavailable", f"the connection to {place} broke: {reason}") from err
        raise


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Open a session that reads and never writes: on SQLite it takes no write lock, waits for none, and sees one moment.

    Raises:
        UnavailableError, DataError: as `database_faults`.
    """
    with database_faults(), Session(engine.execution_options(**{ONLY_READS: True})) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """Open a session of one transaction, which is committed at the end; an exception undoes it.

    Raises:
        UnavailableError, DataError: as `database_faults`.
    """
    with database_faults(), Session(engine) as session, session.begin():
        yield session


def with_zone(instant: datetime) -> datetime:
    """Return an instant of the database with its zone: SQLite keeps none, and all that is written is UTC."""
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def masked(url: URL) -> str:
    """Return a URL for people: no password, and no option, since `?password=` and `?sslpassword=` are options too."""
    text = url.set(query={}).render_as_string(hide_password=True)
    return f"{text}?…" if url.query else text


def _place_of(err: DBAPIError) -> str:
    # `_note_place` has put it there.
    return err.detail[-1] if err.detail else "the database"


def _note_place(context: ExceptionContext) -> None:
    if context.sqlalchemy_exception is not None and context.engine is not None:
        context.sqlalchemy_exception.add_detail(masked(context.engine.url))


@functools.cache
def _open(url: str) -> Engine:
    engine = _engine(url)
    # A connection is one process's: a forked one opens its own, and leaves those of its parent alone.
    os.register_at_fork(after_in_child=functools.partial(engine.dispose, close=False))
    return engine


def _engine(url: str) -> Engine:
    parsed = parse_url(url)
    try:
        if parsed.get_backend_name() != "sqlite":
            engine = create_engine(parsed, pool_pre_ping=True)
            event.listen(engine, "handle_error", _note_place)
            wait_on_connect(engine)
            return engine
        engine = create_engine(parsed, connect_args={"timeout": SQLITE_BUSY_SECONDS})
    except (SQLAlchemyError, ImportError) as err:
        raise _refused(f"cannot use {masked(parsed)}: {err}", hint=URL_FORMS) from err
    except (TypeError, ValueError):
        raise _refused(f"an option of {masked(parsed)} has a wrong value", hint="check what follows `?` in the URL") from None
    if parsed.database and parsed.database != ":memory:" and not parsed.query.get("uri"):
        _make_folder(Path(parsed.database).parent)
    event.listen(engine, "handle_error", _note_place)
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def parse_url(text: str) -> URL:
    """Return a database's URL, checked as far as that goes without a connection.

    Raises:
        SpecError: `database.url`. The message never quotes a part that may be the password.
    """
    try:
        url = make_url(text.strip())
    except ValueError:
        raise _refused("the port is not a number", hint=f"{URL_FORMS}; {ESCAPES}") from None
    except SQLAlchemyError:
        raise _refused("the value is not a URL", hint=URL_FORMS) from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise _refused(f"{shown(url.drivername)} is not a supported database", hint=URL_FORMS)
    if "@" in f"{url.host}{url.database}" and url.get_backend_name() != "sqlite":
        raise _refused("a character of the password ends it early", hint=ESCAPES)
    if url.port is not None and not 1 <= url.port <= 65535:
        raise _refused(f"port {url.port} is not in 1 to 65535", hint=URL_FORMS)
    return url


def _refused(message: str, *, hint: str) -> SpecError:
    return spec_error("environment", "database.url", message, hint=hint, field=DATABASE.name)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as err:
        raise _refused(f"{str(folder)!r} is not a folder: a file is in its place", hint="choose a file in a folder") from err
    except OSError as err:
        message = f"cannot make the folder {str(folder)!r}: {err.strerror}"
        raise UnavailableError("database.unavailable", message, hint="create it, or make it writable for this user") from err


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver's own implicit BEGIN is late and leaves DDL outside of transactions.
    connection.isolation_level = None
    _use_wal(connection)
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(ONLY_READS) else "BEGIN IMMEDIATE")


def _use_wal(connection: Any) -> None:
    """Switch to the write-ahead log. A switch needs the file for itself, and SQLite does not wait for that as for other locks."""
    deadline = time.monotonic() + SQLITE_BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as err:
            if "locked" not in str(err) or time.monotonic() > deadline:
                raise
            time.sleep(WAL_PAUSE_SECONDS)
        else:
            return


def revision_of(connection: Connection) -> str | None:
    """Return the migration that a database's tables have, None where there are no tables yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _upgrade(engine: Engine) -> None:
    # Loaded here alone: operators connect often and migrate once.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
