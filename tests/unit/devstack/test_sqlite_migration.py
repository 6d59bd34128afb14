"""A migration that is killed at any statement leaves nothing behind that the next one stumbles over."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.sqlite_migration import migrate

NUM_STATEMENTS = 3
MIGRATION = """
import os, sqlite3, sys
# As Alembic does on SQLite: each change is for good at once, and none may be done twice.
database = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
for number in range(3):
    if str(number) == sys.argv[2]:
        os.kill(os.getpid(), 9)
    database.execute(f"CREATE TABLE t{number} (a)")
database.execute("INSERT INTO t0 VALUES (7)")
"""


def run(path: Path, killed_at: str = "never") -> int:
    return migrate([path], [sys.executable, "-c", MIGRATION, f"sqlite:///{path}", killed_at], os.environ)


def values(path: Path, table: str) -> list[tuple[int]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT a FROM {table}").fetchall()  # noqa: S608


@pytest.mark.parametrize("killed_at", range(NUM_STATEMENTS))
def test_migration_that_was_killed_at_any_statement_succeeds_the_next_time(tmp_path: Path, killed_at: int) -> None:
    path = tmp_path / "service.db"
    assert run(path, str(killed_at)) == -signal.SIGKILL
    assert not path.exists()

    assert run(path) == 0
    assert values(path, "t0") == [(7,)]
    assert [found.name for found in tmp_path.iterdir()] == ["service.db"]


def test_database_keeps_its_rows_and_is_unchanged_by_a_migration_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "service.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE old (a)")
        database.execute("INSERT INTO old VALUES (3)")

    assert run(path, "1") == -signal.SIGKILL
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        values(path, "t0")

    assert run(path) == 0
    assert values(path, "old") == [(3,)]
    assert values(path, "t0") == [(7,)]


def test_rows_in_the_log_of_a_killed_service_are_in_the_migrated_database(tmp_path: Path) -> None:
    path = tmp_path / "service.db"
    killed = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE old (a)")
database.execute("INSERT INTO old VALUES (5)")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", killed, str(path)], check=False)
    assert path.with_name("service.db-wal").exists()

    assert run(path) == 0
    assert values(path, "old") == [(5,)]


def test_path_is_replaced_in_the_environment_and_left_in_other_texts(tmp_path: Path) -> None:
    path, seen = tmp_path / "service.db", tmp_path / "seen"
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['CONNECTION']); open(os.environ['CONNECTION'], 'w')"
    environment = {**os.environ, "CONNECTION": str(path)}

    assert migrate([path], [sys.executable, "-c", code, str(seen)], environment) == 0
    assert seen.read_text() == f"{path}.draft"
    assert path.exists()
