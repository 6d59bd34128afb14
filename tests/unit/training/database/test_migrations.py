"""A database is brought up to date and keeps its rows, and what the tables promise the database itself holds."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from training.database import Base, connect
from training.database.connect import MIGRATIONS
from training.errors import DataError
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.overview import overviews

INSTANT = "2026-01-01 00:00:00+00:00"
ADDED = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0004", "0003", None, None


def upgrade() -> None:
    op.add_column("ledger_decision", sa.Column("added", sa.Text))
"""


def insert(engine: Engine, table: str, **values: Any) -> None:
    names = ", ".join(values)
    with engine.begin() as connection:
        marks = ", ".join(f":{name}" for name in values)
        plain = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in values.items()}
        connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), plain)  # noqa: S608 - names are this file's own


def decided(url: str) -> Ledger:
    """A ledger: versions 1 and 3 promoted, 2 rejected."""
    engine = connect(url)
    for version, action, outcome in [("1", "promoted", "accepted"), ("2", "recorded", "rejected"), ("3", "promoted", "accepted")]:
        row = {"model": "m", "decision_key": f"k{version}", "weights_digest": f"w{version}", "version": version, "action": action}
        row |= {"outcome": outcome, "decided_at": INSTANT, "decided_by": f"m/{version}", "semantic_version": f"1.{version}.0"}
        insert(engine, "ledger_decision", **row, reasons=[], evidence={})
    return Ledger(url)


def test_migrations_make_exactly_the_declared_tables_on_each_database(empty_database: str) -> None:
    with connect(empty_database).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_database_of_an_earlier_revision_is_brought_to_the_newest_and_keeps_its_rows(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(empty_database)
    migrations = Path(shutil.copytree(MIGRATIONS, tmp_path / "migrations"))
    (migrations / "versions" / "0004_added.py").write_text(ADDED)
    # By name, `training.database.connect` is the function.
    monkeypatch.setattr(importlib.import_module("training.database.connect"), "MIGRATIONS", migrations)
    with connect(empty_database).connect() as connection:
        rows = connection.execute(text("SELECT version, added FROM ledger_decision ORDER BY id")).all()
        assert [tuple(row) for row in rows] == [("1", None), ("2", None), ("3", None)]


def test_a_ledger_of_revision_1_has_what_lists_read_of_all_its_decisions(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(shutil.copytree(MIGRATIONS, tmp_path / "migrations"))
    for later in ("0002_reads.py", "0003_erasures.py"):
        (first / "versions" / later).unlink()
    module = importlib.import_module("training.database.connect")
    with monkeypatch.context() as patched:
        patched.setattr(module, "MIGRATIONS", first)
        engine = connect(empty_database)
    made = [("a", {"pipeline": "x"}), ("a", {"pipeline": "y"}), ("a", {"pipeline": "x"}), ("a", {}), ("b", {"pipeline": "y"})]
    for number, (model, evidence) in enumerate(made):
        row = {"model": model, "decision_key": f"k{number}", "weights_digest": f"w{number}", "version": "1", "action": "recorded"}
        row |= {"outcome": "rejected", "decided_at": INSTANT, "decided_by": "x", "semantic_version": ""}
        insert(engine, "ledger_decision", **row, reasons=[], evidence=evidence)
    for model, mirrored in (("a", 1), ("b", 1), ("never_decided", 0)):
        insert(engine, "model_standing", model=model, revision=0, mirrored_decisions=mirrored, mirrors={})

    ledger = Ledger(empty_database)

    assert (ledger.models(), ledger.unmirrored()) == (["a", "b"], {"a": 3})
    assert {found.model: (found.pipelines, found.num_unmirrored) for found in overviews(ledger)} == {"a": (("x", "y"), 3), "b": (("y",), 0)}


def test_a_database_of_a_newer_version_is_refused_with_what_to_do_and_stays_as_it_is(empty_database: str) -> None:
    ledger, engine = decided(empty_database), connect(empty_database)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0012'"))
    with pytest.raises(DataError, match=r"has the tables of revision 0012, this version reads up to 0003 \(upgrade Nightshift") as caught:
        connect(empty_database)
    assert caught.value.code == "database.newer"
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0003'"))
    assert [entry.version for entry in ledger.history("m")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_decision SET decided_by = 'eve'",
        "UPDATE ledger_decision SET weights_digest = 'w9'",
        "DELETE FROM ledger_decision",
        "TRUNCATE ledger_decision",
    ],
)
def test_the_database_refuses_to_change_or_delete_a_decision(empty_database: str, statement: str) -> None:
    if statement.startswith("TRUNCATE") and empty_database.startswith("sqlite"):
        pytest.skip("SQLite has no TRUNCATE")
    ledger = decided(empty_database)
    with pytest.raises(DBAPIError, match="append-only"), connect(empty_database).begin() as connection:
        connection.execute(text(statement))
    assert [entry.decided_by for entry in ledger.history("m")] == ["m/1", "m/2", "m/3"]


def test_deletion_of_weights_can_be_noted_once_in_a_decision(empty_database: str) -> None:
    ledger = decided(empty_database)
    with connect(empty_database).begin() as connection:
        connection.execute(text("UPDATE ledger_decision SET deleted_at = '2026-02-01 00:00:00+00:00' WHERE version = '2'"))
    assert [entry.deleted_at is not None for entry in ledger.history("m")] == [False, True, False]
    for again in ("'2027-01-01 00:00:00+00:00'", "NULL"):
        with pytest.raises(DBAPIError, match="append-only"), connect(empty_database).begin() as connection:
            connection.execute(text(f"UPDATE ledger_decision SET deleted_at = {again} WHERE version = '2'"))  # noqa: S608


@pytest.mark.parametrize("promise", [{"request_key": "r"}, {"revision": 7}, {"decision_key": "k1"}])
def test_the_database_refuses_a_second_ending_a_second_winner_and_a_second_row_of_one_key(
    empty_database: str, promise: dict[str, Any]
) -> None:
    decided(empty_database)
    engine = connect(empty_database)

    def add(key: str) -> None:
        row = {"model": "m", "decision_key": key, "version": "9", "weights_digest": "w9", "action": "recorded", "outcome": "declined"}
        row |= {"decided_by": "x", "semantic_version": "", **promise}
        insert(engine, "ledger_decision", **row, reasons=[], evidence={}, decided_at=INSTANT)

    if "decision_key" not in promise:
        add("k8")
    with pytest.raises(IntegrityError):
        add("k9")


def test_a_forked_process_opens_a_connection_of_its_own(empty_database: str) -> None:
    engine = connect(empty_database)
    with engine.connect() as connection:
        parents = connection.connection.dbapi_connection
    child = os.fork()
    if child == 0:
        try:
            with engine.connect() as connection:
                os._exit(3 if connection.connection.dbapi_connection is parents else 0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is parents
        assert connection.execute(text("SELECT 1")).scalar() == 1
