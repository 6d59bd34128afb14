"""`python -m devstack.sqlite_migration DATABASE … -- COMMAND …`: migrates SQLite databases in drafts that replace them at the end.

In SQLite, a migration by Alembic is not atomic: a killed one leaves a database that no later migration accepts, and its service
never starts again. Linux, files on one disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

BESIDE: Final = ("", "-journal", "-wal", "-shm")
"""Files that SQLite writes next to a database."""


def migrate(databases: Sequence[Path], command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command on drafts of the databases; return its exit code. The databases change only if that is 0.

    Args:
        databases: those that exist are copied to their drafts, the others are made.
        command: in it, and in the environment's values, each database's path is replaced by its draft's.
    """
    drafts = {path: path.with_name(f"{path.name}.draft") for path in databases}
    for path, draft in drafts.items():
        for suffix in BESIDE:
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
        if path.exists():
            _copy(path, draft)

    def in_drafts(text: str) -> str:
        for path, draft in drafts.items():
            text = text.replace(str(path), str(draft))
        return text

    code = subprocess.call([in_drafts(word) for word in command], env={name: in_drafts(value) for name, value in environment.items()})
    if code == 0:
        for path, draft in drafts.items():
            _merge_log(draft)
            draft.replace(path)
    return code


def _copy(path: Path, draft: Path) -> None:
    # By SQLite: a process that was killed may have left a journal, which belongs to the file.
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(draft)) as target:
        source.backup(target)
    _merge_log(path)


def _merge_log(path: Path) -> None:
    """Bring a write-ahead log into its database: it is not renamed with it."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devstack.sqlite_migration", description=__doc__)
    parser.add_argument("databases", nargs="+", type=Path, metavar="DATABASE")
    separator = sys.argv.index("--")
    options = parser.parse_args(sys.argv[1:separator])
    return migrate(options.databases, sys.argv[separator + 1 :], os.environ)


if __name__ == "__main__":
    sys.exit(main())
