"""Opens the database of our own tables, its schema brought up to date first."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from training.errors import Problem, SpecError, UnavailableError, shown

MIGRATIONS: Final = Path(__file__).resolve().parent / "migrations"
CHECKOUT: Final = Path(__file__).resolve().parent.parent.parent
SQLITE_BUSY_SECONDS: Final = 30.0
WAL_PAUSE_SECONDS: Final = 0.02
ADVISORY_LOCK: Final = 0x6E69676874
"""PostgreSQL lock held while the schema is brought up to date; an arbitrary number of our own."""


def database_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return `NIGHTSHIFT_DATABASE`, by default a SQLite file in `NIGHTSHIFT_HOME`."""
    home = environ.get("NIGHTSHIFT_HOME") or str(CHECKOUT / ".local")
    return environ.get("NIGHTSHIFT_DATABASE") or f"sqlite:///{home}/nightshift.db"


def connect(url: str | None = None) -> Engine:
    """Return an engine for `url` (default: the installation's database), tables made or migrated where needed.

    Transactions on SQLite take the write lock when they begin, so that what a transaction has read still holds when it writes.

    Raises:
        SpecError: `database.url`, not a SQLAlchemy URL.
        UnavailableError: `database.unavailable`.
    """
    engine = _open(url or database_url())
    with database_faults():
        if _revision(engine) != head_revision():
            _upgrade(engine)
    return engine


def head_revision() -> str:
    """Return the newest migration's revision; files are named `<revision>_<what>.py`, revisions counting up."""
    return max(path.name.split("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


@contextmanager
def database_faults() -> Iterator[None]:
    """Turn what the database cannot do right now into `database.unavailable`; other faults pass through."""
    try:
        yield
    except OperationalError as err:
        raise UnavailableError(
            "database.unavailable", f"the database does not answer: {str(err.orig).splitlines()[0]}", hint="see NIGHTSHIFT_DATABASE"
        ) from err
    except PoolTimeoutError as err:
        raise UnavailableError("database.unavailable", f"no connection to the database became free: {err}") from err
    except DBAPIError as err:
        if err.connection_invalidated:
            raise UnavailableError("database.unavailable", f"the connection to the database broke: {err.orig}") from err
        raise


@functools.cache
def _open(url: str) -> Engine:
    engine = _engine(url)
    # A connection is one process's: a forked one opens its own, and leaves those of its parent alone.
    os.register_at_fork(after_in_child=functools.partial(engine.dispose, close=False))
    return engine


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
        if parsed.database and parsed.database != ":memory:":
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, connect_args={"timeout": SQLITE_BUSY_SECONDS})
    except (SQLAlchemyError, ImportError) as err:
        problem = Problem(
            code="database.url",
            message=f"cannot use {shown(_masked(url))}: {err}",
            hint="a SQLAlchemy URL, sqlite:////path or postgresql://…",
        )
        raise SpecError("NIGHTSHIFT_DATABASE", [problem]) from err
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _masked(url: str) -> str:
    """Return the URL without what may be a password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}***@{rest.rsplit('@', 1)[1]}" if "@" in rest else url


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver's own implicit BEGIN is late and leaves DDL outside of transactions.
    connection.isolation_level = None
    _use_wal(connection)
    connection.execute("PRAGMA foreign_keys=ON")


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


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
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
