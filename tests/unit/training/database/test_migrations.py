"""Databases of earlier versions keep their rows, and what the tables promise the database itself holds."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from training.database import Base, connect
from training.database.connect import MIGRATIONS, _open
from training.registry.ledger import AliasHolder, Ledger

BOUNDS = {"test": ["2013-01-05T00:00:00+00:00", "2013-01-06T00:00:00+00:00"]}


def at_revision(url: str, revision: str) -> Engine:
    engine = _open(url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return engine


def insert(engine: Engine, table: str, **values: Any) -> None:
    names = ", ".join(values)
    with engine.begin() as connection:
        marks = ", ".join(f":{name}" for name in values)
        plain = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in values.items()}
        connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), plain)  # noqa: S608 - names are this file's own


def old_decision(engine: Engine, version: str, action: str, outcome: str) -> None:
    evidence = {"weights_digest": f"w{version}", "model_uri": f"u{version}", "as_of": f"2013-01-0{version}", "metrics": {"auc": 0.7}}
    reasons = [{"gate": "finite", "passed": True, "words": "fine"}]
    row = {"model": "m", "decision_key": f"k{version}", "version": version, "action": action, "outcome": outcome}
    insert(
        engine,
        "ledger_decision",
        **row,
        reasons=reasons,
        evidence=evidence,
        decided_at="2026-01-01 00:00:00+00:00",
        decided_by=f"m/{version}",
    )


def migrated(url: str) -> Ledger:
    """A ledger of before canaries: versions 1 and 3 promoted, 2 rejected."""
    engine = at_revision(url, "0002")
    for version, action, outcome in [("1", "promoted", "accepted"), ("2", "recorded", "rejected"), ("3", "promoted", "accepted")]:
        old_decision(engine, version, action, outcome)
    standing = {"model": "m", "version": "3", "weights_digest": "w3", "model_uri": "u3", "as_of": "2013-01-03"}
    insert(engine, "model_standing", **standing, bounds=BOUNDS, revision=2)
    return Ledger(url)


def test_migrations_make_exactly_the_declared_tables_on_each_database(empty_database: str) -> None:
    with connect(empty_database).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_ledger_of_before_canaries_keeps_its_champion_and_its_decisions(empty_database: str) -> None:
    ledger = migrated(empty_database)
    standing = ledger.standing("m")
    assert standing.champion == AliasHolder(version="3", weights_digest="w3", model_uri="u3", as_of="2013-01-03", bounds=BOUNDS)
    assert (standing.canary, standing.revision) == (None, 2)
    history = ledger.history("m")
    assert [(entry.version, entry.outcome, entry.semantic_version, entry.revision) for entry in history] == [
        ("1", "accepted", "", None),
        ("2", "rejected", "", None),
        ("3", "accepted", "", None),
    ]
    assert history[0].evidence["metrics"] == {"auc": 0.7}
    assert [entry.weights_digest for entry in history] == ["w1", "w2", "w3"]
    assert ledger.pending() == []


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
    ledger = migrated(empty_database)
    with pytest.raises(DBAPIError, match="append-only"), connect(empty_database).begin() as connection:
        connection.execute(text(statement))
    assert [entry.decided_by for entry in ledger.history("m")] == ["m/1", "m/2", "m/3"]


def test_deletion_of_weights_can_be_noted_once_in_a_decision(empty_database: str) -> None:
    ledger = migrated(empty_database)
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
    migrated(empty_database)
    engine = connect(empty_database)

    def add(key: str) -> None:
        row = {"model": "m", "decision_key": key, "version": "9", "weights_digest": "w9", "action": "recorded", "outcome": "declined"}
        row |= {"decided_by": "x", **promise}
        insert(engine, "ledger_decision", **row, reasons=[], evidence={}, decided_at="2026-01-01 00:00:00+00:00")

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
