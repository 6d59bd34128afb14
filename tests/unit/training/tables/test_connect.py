from __future__ import annotations

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from training.errors import SpecError, UnavailableError
from training.tables import Base, connect, database_url
from training.tables.connect import MIGRATIONS, head_revision


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deeper/nightshift.db"


def test_migrations_make_exactly_the_declared_tables(url: str) -> None:
    with connect(url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_head_by_file_name_is_the_head_that_alembic_sees() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == head_revision()


def test_connecting_twice_migrates_once_and_keeps_rows(url: str) -> None:
    with connect(url).begin() as connection:
        connection.execute(text("CREATE TABLE kept (n INTEGER)"))
    assert inspect(connect(url)).has_table("kept")


def test_many_connects_at_once_make_the_tables_once(url: str) -> None:
    faults: list[Exception] = []

    def open_database() -> None:
        try:
            connect(url)
        except Exception as err:
            faults.append(err)

    threads = [threading.Thread(target=open_database) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_failed_transaction_leaves_no_table(url: str) -> None:
    engine = connect(url)

    def create_and_fail() -> None:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE half (n INTEGER)"))
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        create_and_fail()
    assert not inspect(engine).has_table("half")


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "n.db"
    path.mkdir()
    with pytest.raises(UnavailableError) as caught:
        connect(f"sqlite:///{path}")
    assert caught.value.code == "database.unavailable"


def test_a_wrong_url_is_refused_without_showing_its_password() -> None:
    with pytest.raises(SpecError) as caught:
        connect("nosuch://user:hunter2@host/db")
    assert caught.value.code == "database.url"
    assert "hunter2" not in str(caught.value)


def test_default_database_lies_in_the_home_of_the_installation() -> None:
    assert database_url({"NIGHTSHIFT_HOME": "/x"}) == "sqlite:////x/nightshift.db"
    assert database_url({"NIGHTSHIFT_HOME": "/x", "NIGHTSHIFT_DATABASE": "sqlite:////y.db"}) == "sqlite:////y.db"
