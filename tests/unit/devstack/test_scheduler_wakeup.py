"""An idle scheduler waits for a change of its database; nothing that is written is overlooked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from devstack.scheduler_wakeup import MAX_WAIT_SECONDS, POLL_SECONDS, IdleWait


class FakeTime:
    """A clock that only sleeping moves; `at` are things that happen during the sleep that reaches that second."""

    def __init__(self, at: dict[float, Callable[[], object]] | None = None) -> None:
        self.now = 0.0
        self._at = dict(at or {})

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self._at if moment <= self.now]:
            self._at.pop(moment)()


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    """Return the connection of another process, to a database in the mode that Airflow sets."""
    connection = sqlite3.connect(tmp_path / "airflow.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE job (heartbeat INTEGER)")
    connection.commit()
    return connection


def commit(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO job VALUES (1)")
    database.commit()


def idle_wait(tmp_path: Path, fake: FakeTime) -> IdleWait:
    made = IdleWait(f"sqlite:///{tmp_path}/airflow.db", clock=fake.clock, sleep=fake.sleep)
    made.wait()  # the first one knows nothing of the time before it
    assert fake.now == 0.0
    return made


def test_wait_without_a_change_ends_after_its_maximum(tmp_path: Path, database: sqlite3.Connection) -> None:
    fake = FakeTime()
    idle_wait(tmp_path, fake).wait()
    assert MAX_WAIT_SECONDS <= fake.now <= MAX_WAIT_SECONDS + 2 * POLL_SECONDS


def test_commit_of_another_process_ends_a_wait_at_the_next_look(tmp_path: Path, database: sqlite3.Connection) -> None:
    fake = FakeTime({0.3: lambda: commit(database)})
    idle_wait(tmp_path, fake).wait()
    assert 0.3 <= fake.now <= 0.3 + 2 * POLL_SECONDS


def test_commit_between_two_waits_ends_the_next_one_at_once(tmp_path: Path, database: sqlite3.Connection) -> None:
    fake = FakeTime()
    wait = idle_wait(tmp_path, fake)
    commit(database)
    wait.wait()
    assert fake.now == 0.0
    wait.wait()
    assert fake.now >= MAX_WAIT_SECONDS


def test_wait_after_close_returns_at_once_and_leaves_no_connection_to_a_forked_process(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    fake = FakeTime()
    wait = idle_wait(tmp_path, fake)
    wait.close()
    assert wait._connection is None
    wait.wait()
    assert fake.now == 0.0


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///{}/absent.db", "sqlite:///{}", "postgresql+psycopg2://127.0.0.1/airflow"])
def test_database_that_cannot_be_watched_is_never_waited_for(tmp_path: Path, url: str) -> None:
    fake = FakeTime()
    wait = IdleWait(url.format(tmp_path), clock=fake.clock, sleep=fake.sleep)
    for _ in range(3):
        wait.wait()
    assert fake.now == 0.0
    assert list(tmp_path.iterdir()) == []
