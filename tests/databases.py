"""A PostgreSQL of one's own for tests, on a socket in a folder of its own: Debian's binaries, no port, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

BINARIES = Path("/usr/lib/postgresql")
READY_SECONDS = 120.0
"""Longer than a start or an end takes, on a busy machine too."""


def why_no_postgres() -> str:
    """Return why no PostgreSQL can be started here; empty: it can."""
    if not list(BINARIES.glob("*/bin/postgres")):
        return f"no PostgreSQL in {BINARIES}"
    # The server refuses to run as root.
    return "root, and no user postgres" if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()} else ""


@contextmanager
def postgres_cluster() -> Iterator[str]:
    """Run a cluster; yield the SQLAlchemy URL of its database `postgres`."""
    binaries = sorted(BINARIES.glob("*/bin"))[-1]
    folder = Path(tempfile.mkdtemp(prefix="nightshift-postgres-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    data = folder / "data"
    initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "nightshift", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run(initdb, **user, cwd="/", check=True, capture_output=True)
    command = [
        str(binaries / "postgres"),
        "-D",
        str(data),
        "-k",
        str(folder),
        "-c",
        "listen_addresses=",
        "-c",
        "fsync=off",
        "-c",
        "full_page_writes=off",
    ]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(command, **user, cwd="/", stdout=log, stderr=log)
    url = f"postgresql+psycopg2://nightshift@/postgres?host={folder}"
    try:
        _wait_until_ready(process, binaries, folder)
        yield url
    finally:
        # At once, and nothing written out: the data go with the folder.
        process.send_signal(signal.SIGQUIT)
        process.wait(30)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(process: subprocess.Popen[bytes], binaries: Path, folder: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while subprocess.run([str(binaries / "pg_isready"), "-q", "-h", str(folder)], check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"PostgreSQL did not start: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.05)


class KillablePostgres:
    """The server of a `postgres_cluster`, which a test may kill and start again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = Path(str(make_url(url).query["host"]))
        self._restarted: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """kill -9 of the server and of all that it has started."""
        server = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0]))
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=READY_SECONDS)

    def start(self) -> None:
        (self._folder / "data" / "postmaster.pid").unlink()
        binaries = sorted(BINARIES.glob("*/bin"))[-1]
        command = [str(binaries / "postgres"), "-D", str(self._folder / "data"), "-k", str(self._folder), "-c", "listen_addresses="]
        user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        self._restarted = subprocess.Popen(command, **user, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_until_ready(self._restarted, binaries, self._folder)

    def stop(self) -> None:
        if self._restarted is not None:
            self._restarted.send_signal(signal.SIGINT)
            self._restarted.wait(READY_SECONDS)


def new_database(cluster_url: str, name: str) -> str:
    """Make an empty database; return its URL."""
    engine = create_engine(cluster_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    engine.dispose()
    return make_url(cluster_url).set(database=name).render_as_string(hide_password=False)
