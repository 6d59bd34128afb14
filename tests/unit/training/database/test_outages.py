"""A PostgreSQL that is away for a while: stages and tasks wait for it, pages and commands do not."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from tests.databases import KillablePostgres
from training.database import connect, outages
from training.database.connect import database_faults
from training.errors import SpecError, UnavailableError
from training.process.waiting import WAIT, database_wait_seconds, waiting_for_database
from training.registry.ledger.ledger import Ledger
from training.runtime.provenance import CHECKOUT


class Clock:
    """Time that passes in pauses alone; `server` is started again after so many seconds of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, back_after_seconds: float = 0.0, server: KillablePostgres | None = None) -> None:
        self.now, self._back_after, self._server = 0.0, back_after_seconds, server
        monkeypatch.setattr(outages, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._server is not None and self.now >= self._back_after:
            self._server.start()
            self._server = None


@pytest.mark.slow
def test_a_connection_waits_two_minutes_for_a_killed_server_where_waiting_is_allowed(
    killable_postgres: KillablePostgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(killable_postgres.url)
    assert ledger.standing("m").champion is None
    killable_postgres.kill()
    clock = Clock(monkeypatch, back_after_seconds=120, server=killable_postgres)

    with waiting_for_database():
        # The connection of the pool is broken, and new ones are refused.
        assert ledger.standing("m").champion is None

    assert clock.now >= 120
    assert "the database does not answer" in caplog.text


@pytest.mark.slow
def test_the_first_connection_of_a_process_waits_too(killable_postgres: KillablePostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    killable_postgres.kill()
    Clock(monkeypatch, back_after_seconds=1, server=killable_postgres)

    with waiting_for_database():
        assert Ledger(killable_postgres.url).standing("m").champion is None


def test_a_server_that_stays_away_is_an_error_after_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setenv(WAIT.name, "60")

    with waiting_for_database(), pytest.raises(UnavailableError) as caught:
        Ledger(f"postgresql+psycopg2://nightshift@/postgres?host={tmp_path}")

    assert caught.value.code == "database.unavailable"
    assert 50 < clock.now <= 60


def test_outside_of_stages_and_tasks_the_error_comes_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)

    with pytest.raises(UnavailableError):
        Ledger(f"postgresql+psycopg2://nightshift@/postgres?host={tmp_path}")

    assert clock.now == 0


def test_a_database_that_does_not_exist_is_not_waited_for(killable_postgres: KillablePostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    url = make_url(killable_postgres.url).set(database="nosuch").render_as_string(hide_password=False)

    with waiting_for_database(), pytest.raises(UnavailableError, match="nosuch"):
        Ledger(url)

    assert clock.now == 0


def test_the_wait_is_a_setting_and_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT.name, "7")
    with waiting_for_database():
        assert database_wait_seconds() == 7
    assert database_wait_seconds() == 0

    monkeypatch.setenv(WAIT.name, "soon")
    with pytest.raises(SpecError, match=WAIT.name), waiting_for_database():
        time.sleep(0)


OPENS_NO_DATABASE = {"CleanHomeOperator.execute"}


def test_every_task_of_the_plugins_waits_for_the_database() -> None:
    found = {
        f"{owner.name}.{method.name}": [ast.unparse(decorator) for decorator in method.decorator_list]
        for path in (CHECKOUT / "plugins/nightshift").rglob("*.py")
        for owner in ast.walk(ast.parse(path.read_text()))
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and method.name in ("execute", "execute_complete", "trigger_reentry")
    }

    assert {"StageOperator.trigger_reentry", "TrialsOperator.trigger_reentry"} < found.keys()
    assert {name for name, decorators in found.items() if "waiting_for_database()" not in decorators} == OPENS_NO_DATABASE


def test_a_server_that_takes_no_writes_is_unavailable(killable_postgres: KillablePostgres) -> None:
    # As a standby after a failover.
    standby = connect(killable_postgres.url).execution_options(postgresql_readonly=True)
    with pytest.raises(UnavailableError, match="read-only transaction") as caught, database_faults(), standby.begin() as connection:
        connection.execute(text("CREATE TABLE refused (n INTEGER)"))
    assert caught.value.code == "database.unavailable"
    assert "standby" in caught.value.hint
