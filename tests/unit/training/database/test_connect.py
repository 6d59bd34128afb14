from __future__ import annotations

import contextlib
import importlib
import sqlite3
import threading
import traceback
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from training.database import connect, database_url
from training.database.connect import MIGRATIONS, database_faults, head_revision, reading
from training.errors import DataError, SpecError, UnavailableError


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deeper/nightshift.db"


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


def test_a_reader_sees_one_moment_while_another_process_writes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("training.database.connect"), "SQLITE_BUSY_SECONDS", 0.1)
    engine = connect(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (n INTEGER)"))
    with engine.begin() as writer:
        writer.execute(text("INSERT INTO kept VALUES (1)"))
        # The schema's revision is read as well.
        with reading(connect(url)) as session:
            assert session.scalar(text("SELECT count(*) FROM kept")) == 0
            writer.commit()
            assert session.scalar(text("SELECT count(*) FROM kept")) == 0
    with reading(engine) as session:
        assert session.scalar(text("SELECT count(*) FROM kept")) == 1


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


SECRET = "hunter2"
WRONG_URLS = {
    "unknown dialect": f"nosuch://user:{SECRET}@host/db",
    "dialect that is not supported": f"mysql://user:{SECRET}@host/db",
    "driver that is not installed": f"postgresql+nosuch://user:{SECRET}@host/db",
    "port that is not a number": f"postgresql://user:{SECRET}@host:{SECRET}/db",
    "port out of range": f"postgresql://user:{SECRET}@host:70000/db",
    "no slashes": f"postgresql:user:{SECRET}@host",
    "no scheme": SECRET,
    "password with an unescaped @": f"postgresql://user:x@{SECRET}@host/db",
    "password with an unescaped colon and slash": f"postgresql://user/{SECRET}:{SECRET}/x@host/db",
    "unknown option after ?": f"postgresql+psycopg2://user@127.0.0.1:1/db?password={SECRET}&nosuch={SECRET}",
    "option of SQLite with a wrong value": f"sqlite:////nowhere/x.db?timeout={SECRET}",
}


def everything_said(error: BaseException) -> str:
    """Return what a log would show of an error: message, traceback, and every error that it came from."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


@pytest.mark.parametrize("url", WRONG_URLS.values(), ids=WRONG_URLS.keys())
def test_wrong_url_is_refused_with_its_variable_and_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        connect(url.replace("/nowhere", str(tmp_path)))
    assert caught.value.code == "database.url"
    assert "NIGHTSHIFT_DATABASE: [database.url]" in str(caught.value)
    assert caught.value.problems[0].hint
    assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize(
    "where", ["user:{}@127.0.0.1:1/db", "user@127.0.0.1:1/db?password={}", "u@127.0.0.1:1/d?sslmode=disable&password={}"]
)
def test_password_of_a_server_that_does_not_answer_is_masked_wherever_it_is(where: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        connect(f"postgresql+psycopg2://{where.format(SECRET)}")
    assert caught.value.code == "database.unavailable"
    assert "@127.0.0.1:1/d" in str(caught.value)
    assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize(
    "content", [b"this is not a database at all" * 400, b"SQLite format 3\x00" + b"\xff" * 4096], ids=["text", "header only"]
)
def test_damaged_database_is_reported_with_its_path_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nightshift.db"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        connect(f"sqlite:///{path}")
    assert caught.value.code == "database.damaged"
    assert f"sqlite:///{path} is damaged" in str(caught.value)
    assert "backup" in caught.value.hint
    assert path.read_bytes() == content


def test_database_damaged_in_the_middle_is_reported_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.db"
    with connect(f"sqlite:///{path}").begin() as connection:
        connection.execute(text("CREATE TABLE kept (n TEXT)"))
        connection.execute(
            text("INSERT INTO kept WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i+1 FROM n WHERE i < 2000) SELECT 'row' || i FROM n")
        )
    engine = connect(f"sqlite:///{path}")
    engine.dispose()
    with contextlib.closing(sqlite3.connect(path)) as alone:
        alone.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged") as caught, database_faults(), engine.connect() as connection:
        connection.execute(text("SELECT count(*), max(n) FROM kept")).all()
    assert caught.value.code == "database.damaged"
    assert str(path) in str(caught.value)


def test_database_that_is_not_writable_is_reported_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.db"
    sqlite3.connect(path).close()
    with pytest.raises(UnavailableError) as caught:
        connect(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert caught.value.code == "database.unavailable"
    assert str(path) in str(caught.value)
    assert "make the file and its folder writable for this user" in caught.value.hint


def test_locked_database_is_reported_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By name, `training.database.connect` is the function.
    monkeypatch.setattr(importlib.import_module("training.database.connect"), "SQLITE_BUSY_SECONDS", 0.05)
    url = f"sqlite:///{tmp_path}/locked.db"
    engine = connect(url)
    with engine.begin(), pytest.raises(UnavailableError, match=f"{tmp_path}/locked.db does not answer: database is locked") as caught:
        # It writes nothing yet: the lock comes with its beginning.
        with database_faults(), engine.begin():
            pass
    assert "another process" in caught.value.hint


@pytest.mark.parametrize("below", ["file/nightshift.db", "file/deeper/nightshift.db"])
def test_database_below_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="is not a folder") as caught:
        connect(f"sqlite:///{tmp_path / below}")
    assert caught.value.code == "database.url"


def test_database_in_a_folder_that_cannot_be_made_is_reported() -> None:
    with pytest.raises(UnavailableError, match="cannot make the folder '/proc/nightshift'") as caught:
        connect("sqlite:////proc/nightshift/nightshift.db")
    assert caught.value.code == "database.unavailable"


def test_default_database_lies_in_the_home_of_the_installation() -> None:
    assert database_url({"NIGHTSHIFT_HOME": "/x"}) == "sqlite:////x/nightshift.db"
    assert database_url({"NIGHTSHIFT_HOME": "/x", "NIGHTSHIFT_DATABASE": "sqlite:////y.db"}) == "sqlite:////y.db"
    assert database_url({"NIGHTSHIFT_HOME": "/x", "NIGHTSHIFT_DATABASE": " "}) == "sqlite:////x/nightshift.db"
